"""What the tuner looks at: a loader's counters at one moment, and what happened between two of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one loader at one moment; they only grow."""

    at: float
    """Seconds of a clock that only goes on."""
    workers: int
    """Workers that make batches now; those that are to leave do not count."""
    epoch: int = 0
    """Number of the epoch under way."""
    batches: int = 0
    """Batches yielded."""
    made: int = 0
    """Batches that workers have made."""
    compute: float = 0.0
    """Seconds of the training thread that were training's own."""
    waiting: float = 0.0
    """Seconds for which the training thread waited for workers."""
    busy: float = 0.0
    """Seconds for which workers were at a batch, summed over workers."""
    processor: float | None = None
    """Seconds of those in which they were on a processor; None: not known."""
    queued: float | None = None
    """Seconds of those in which they waited for a processor; None: not known."""
    processors: float = 0.0
    """Processors that the loader may use, without what other ranks of the run take of them; 0: not known. Those of
    other machines are among them."""
    steady: bool = True
    """Whether what happens now says something about workers: an epoch is under way, not paused and not at its end."""
    pressed: bool = False
    """Whether memory is short: more workers would take more."""
    alarm: bool = False
    """Whether memory is so short that processes may be killed."""
    away: float = 0.0
    """Seconds of `processor` that were other machines'."""


@dataclass(slots=True)
class Block:
    """What happened in a stretch of time with the same number of workers."""

    workers: int
    seconds: float = 0.0
    batches: int = 0
    made: int = 0
    compute: float = 0.0
    waiting: float = 0.0
    busy: float = 0.0
    processor: float | None = None
    queued: float | None = None
    away: float = 0.0
    processors: float = 0.0
    """Processors that the loader could use, at the end of it."""

    @property
    def gap(self) -> float:
        """Seconds that training takes of its own for a batch."""
        return self.compute / self.batches

    @property
    def service(self) -> float:
        """Seconds for which a worker is busy with a batch."""
        return self.busy / self.made

    @property
    def waits(self) -> float:
        """Share of the training thread's time that is waiting, 0 to 1."""
        return self.waiting / max(self.compute + self.waiting, 1e-9)

    @property
    def cost(self) -> float:
        """Seconds a batch: what training sees, or what the workers can do if that is slower.

        The second counts after a change to fewer workers: batches that were finished before hide for a while that
        there are too few now.
        """
        return max(self.gap + self.waiting / self.batches, self.service / self.workers)

    @property
    def queues(self) -> float:
        """Share of the workers' time in which they waited for a processor, 0 to 1; 0 where that is not known."""
        return 0.0 if self.queued is None or not self.busy else min(max(self.queued / self.busy, 0.0), 1.0)


def between(before: Reading, after: Reading) -> Block | None:
    """What happened between two readings; None: it tells nothing."""
    if not (before.steady and after.steady) or before.epoch != after.epoch or before.workers != after.workers:
        return None
    block = Block(after.workers, after.at - before.at, processors=after.processors)
    for name in ("batches", "made", "compute", "waiting", "busy", "processor", "queued", "away"):
        first, last = getattr(before, name), getattr(after, name)
        setattr(block, name, None if first is None or last is None else last - first)
    return block if block.seconds > 0 and block.batches >= 0 and block.made >= 0 else None


def total(blocks: list[Block]) -> Block:
    """Several stretches with the same number of workers as one."""
    whole = Block(blocks[-1].workers, processors=blocks[-1].processors, processor=0.0, queued=0.0)
    for block in blocks:
        for field in fields(Block):
            if field.name in ("workers", "processors"):
                continue
            sum_, part = getattr(whole, field.name), getattr(block, field.name)
            setattr(whole, field.name, None if sum_ is None or part is None else sum_ + part)
    return whole
