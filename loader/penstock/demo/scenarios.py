"""What the demo can show: a table of trainings, each of which makes one point. No torch here: `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """A training that makes one point."""

    summary: str
    """What is to be seen, in one line."""
    workers: int = 2
    """Worker processes at the start, of each rank."""
    samples: int = 8192
    """In an epoch, of all ranks."""
    batch_size: int = 16
    side: int = 64
    """Pixels along each side of an image."""
    wait: float = 0.0
    """Seconds that every sample waits for its storage."""
    compute: float = 0.0
    """Processor seconds that every sample takes at the least."""
    slow_share: float = 0.0
    """Share of the samples, 0 to 1, that wait longer."""
    slow_wait: float = 0.0
    """Seconds that those wait."""
    step: float = 0.05
    """Seconds that a training step takes at the least."""
    stream: bool = False
    """An iterable-style dataset."""
    pin_memory: bool = False
    memory_budget: int | None = None
    """Bytes for finished batches; None: the loader's default."""
    crash_every: float | None = None
    """Seconds after which a worker is killed, again and again."""
    ranks: int = 1
    """Training processes."""
    straggler: int | None = None
    """The rank with slow data."""
    local: int | None = None
    """Workers of training's own machine, which is given one processor; all others run on agents that have the rest.
    None: there are no agents."""


STARVED = "starved"

SCENARIOS = {
    STARVED: Scenario(
        "too few workers, so training mostly waits for data: press + on its page up to 6, then Apply",
        wait=0.02,
        slow_share=0.005,
        slow_wait=0.3,
        step=0.08,
    ),
    "balanced": Scenario("the workers keep up: training is the limit, and more workers change nothing", wait=0.002),
    "skewed": Scenario(
        "a few samples take seconds: batches that are finished wait for an earlier one (reorder stalls)",
        workers=4,
        wait=0.002,
        slow_share=0.003,
        slow_wait=1.5,
        memory_budget=16 << 20,
    ),
    "crashing": Scenario(
        "a worker is killed every few seconds: it is replaced, and training loses nothing",
        workers=3,
        wait=0.004,
        crash_every=4.0,
    ),
    "pinned": Scenario(
        "large batches through the pin stage (page-locked in place where there is no accelerator)",
        samples=4096,
        batch_size=32,
        side=224,
        step=0.15,
        pin_memory=True,
    ),
    "iterable": Scenario(
        "an iterable-style dataset, sharded by worker: a resize is pending until the next epoch",
        samples=2048,
        wait=0.011,
        stream=True,
    ),
    "remote": Scenario(
        "training may use one processor of this machine, and that is full: press + and workers are added on the "
        "others, by agents that stand in for other machines",
        workers=1,
        compute=0.008,
        step=0.06,
        local=1,
    ),
    "many-ranks": Scenario(
        "six training processes in step (DDP), one of which has slow data: the straggler of the overview",
        samples=24576,
        batch_size=8,
        wait=0.006,
        step=0.08,
        ranks=6,
        straggler=3,
    ),
}

STRAGGLING = 10
"""How many times as long a straggler's samples wait."""
