"""How many workers there shall be: a plain object that is fed readings and returns steps. It knows no clock, no pool.

The method:

1. **Measure** the number of workers that there is: seconds a batch, in blocks of a few batches. Blocks count only what
   belongs together (`reading.between`), and begin when every worker has made a batch since the last change.
2. **Seed.** Replay, or else the costs of a batch (blocked, on a processor), say which number should do: it is tried
   first, however far away. Replay is asked again whenever twice as much was seen: rare slow batches show late.
3. **Try** a number: measure it for as many batches, against the number that is held. More workers are kept if they
   make training measurably faster, fewer if they make it no slower than the best that was seen. What cannot be told
   apart is decided for fewer; what is too noisy to tell stays as it is, or grows if replay says so. Then the next
   number, in a bracket that closes (`search.py`); no growth while memory is short or the processors are full.
4. **Hold.** When the bracket is closed, nothing changes any more, but for a small trial now and then: after two
   minutes, then four, then eight.
5. **Wake.** When training's own time or the workers' time a batch is another one for a while, or training waits where
   it did not, all begins anew.

A memory alarm halves the workers at once. A pin, which a person's resize is, ends all this until it is released.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..protocol import TunerState
from .reading import Block, Reading, between, total
from .search import RESOLUTION, Search

TOLERANCE = 0.03
"""Gains below this, as a share of the seconds a batch, are none; nor are losses below two thirds of it."""
BLOCK_SECONDS = 0.5
"""A block is at least so long."""
BLOCK_BATCHES = 4
"""A block has at least so many batches, and half as many as there are workers."""
MOST_BLOCKS = 8
"""After so many blocks a trial is decided in one way or another."""
FINE = 4
"""Before fewer workers are tried, what is held is measured for so many blocks: the difference is a small one."""
UNSURE = 0.2
"""Where blocks differ by more than this share by chance, fewer workers are kept only if that is certain, and a trial
has three times as many blocks."""
NOISE = 0.05
"""How much blocks are taken to differ from each other by chance, as a share, before it is known."""
CERTAINTY = 2.0
"""A difference counts when it is so many times its standard error."""
VAGUE = 0.1
"""Relative error of what is held from which on it is measured for longer before anything is tried."""
AGAIN = 100
"""Batches after which replay is asked again, at the least."""
FULL = 0.9
"""The processors are full when workers use this share of them."""
FIRST_HOLD = 120.0
"""Seconds until the first trial after a search; each time twice as many."""
LAST_HOLD = 3600.0
ONE_CHANGE = 60.0
"""Seconds between two trials while it holds, at the least."""
WATCH_SECONDS = 2.0
"""While it holds, what is compared with how it was is at least so long."""
CHANGE = 0.25
"""A change of costs by less than this share wakes nobody."""
LASTING = 3
"""A change counts when it was seen so many times in a row."""
HEADROOM = 1.1
"""How many more workers than batches need on average, because not all take the same time."""

REPLAY = "replay says so"


@dataclass(frozen=True, slots=True)
class Step:
    """Something that the tuner does, and why."""

    what: Literal["try", "keep", "back", "hold", "wake", "halve"]
    workers: int
    """Workers that there shall be from now on."""
    before: int
    """Workers that there were."""
    why: str
    predicted: float | None = None
    """Batches a second that were expected of the number that is, or was, tried."""
    measured: float | None = None
    """Batches a second that were measured: with `before` when a trial begins, with the tried number when it ends."""


Seed = Callable[[float], tuple[int, float] | None]
"""Returns the number of workers that should do and the batches a second it should bring, by what was seen from a moment
of the readings' clock on; None: not known."""


class Tuner:
    """Finds the number of workers for one loader."""

    def __init__(
        self, workers: int, most: int, *, least: int = 1, tolerance: float = TOLERANCE, seed: Seed | None = None
    ) -> None:
        self.state: TunerState = "measuring"
        self.most = most
        """The most workers it asks for."""
        self.wants = False
        """Whether it would begin a trial if it were allowed to."""
        self._least = least
        self._tolerance = tolerance
        self._seed = seed
        self._wanted = workers
        self._search = Search(workers, least, most)
        self._last: Reading | None = None
        self._part: Block | None = None
        self._settling = 0
        self._blocks: deque[Block] = deque(maxlen=3 * MOST_BLOCKS)
        self._held_blocks: deque[Block] = deque(maxlen=3 * MOST_BLOCKS)
        self._best = math.inf
        self._seen_noise = (2.0, 2.0 * NOISE**2)
        self._seeded = False
        self._since = 0.0
        """When this search began; before it, it may have been another load."""
        self._replays = (0, 0)
        """Batches yielded when this search began, and from which on replay is asked again."""
        self._next: tuple[int, float | None, str] | None = None
        self._predicted: float | None = None
        self._by_replay = False
        """Whether replay has chosen the number that is tried."""
        self._hold_until: float | None = None
        self._quiet_until = 0.0
        """Until then nothing is tried, whatever replay says."""
        self._hold = FIRST_HOLD
        self._changed = ("", 0)
        self._upwards = False
        self._may_grow = True

    @property
    def held(self) -> int:
        """The number of workers that is, or will be, held when no trial is on."""
        return self._search.held

    @property
    def experimenting(self) -> bool:
        """Whether a number is tried that may not be kept."""
        return self.state in ("trying", "returning")

    def standing(self) -> tuple[float, float]:
        """Share of its time for which training waits, and processors of this host that workers use, lately."""
        blocks = self._blocks or self._held_blocks
        if not blocks:
            return 0.0, 0.0
        newest = blocks[-1]
        return newest.waits, max((newest.processor or 0.0) - newest.away, 0.0) / newest.seconds

    def pin(self, workers: int) -> None:
        """A person has chosen: nothing is tried until `release`."""
        self.state, self.wants = "pinned", False
        self._wanted = workers
        self._search = Search(workers, self._least, self.most)

    def release(self) -> None:
        """Begin anew from the number that there is."""
        self._restart(self._wanted)

    def observe(self, reading: Reading, may_try: bool = True) -> Step | None:
        """Take in a reading; returns what is to be done, if anything. `may_try`: a trial may begin now."""
        before, self._last = self._last, reading
        if self.state == "pinned":
            self._wanted = reading.workers
            return None
        if reading.alarm and reading.workers > self._least:
            return self._halve(reading)
        if reading.workers != self._wanted:  # it is still to come, or a worker is replaced, or an epoch begins
            self._settling = self._wanted
            return None
        self._may_grow = not (reading.pressed or reading.alarm)
        block = None if before is None else between(before, reading)
        if block is None:
            return None
        if self._settling > 0:
            self._settling -= block.made
            return None
        if not self._closes(block):
            return None
        if self.state == "holding":
            return self._watch(reading, may_try)
        if self.state == "trying":
            return self._judge_trial()
        self._take_as_held()
        return self._go_on(reading.at, may_try)

    # -- measuring ------------------------------------------------------------------------------------------

    def _closes(self, more: Block) -> bool:
        """Add to the block under way; True: it is whole now, and among the blocks."""
        self._part = more if self._part is None else total([self._part, more])
        part, needed = self._part, max(BLOCK_BATCHES, math.ceil(self._wanted / 2))
        seconds = BLOCK_SECONDS
        if self.state == "holding":
            needed, seconds = max(16, self._wanted), WATCH_SECONDS
        if part.batches < needed or part.made < needed or part.seconds < seconds:
            return False
        self._blocks.append(part)
        self._part = None
        return True

    def _start_over_counting(self) -> None:
        """The number of workers changes: what was counted belongs to another one."""
        self._part = None
        self._blocks.clear()
        self._settling = self._wanted

    def _take_as_held(self) -> None:
        """What was measured just now is what the held number brings."""
        newest = self._blocks[-1]
        known = self._held_blocks
        if known and abs(newest.cost / total(list(known)).cost - 1) > max(CHANGE, 2 * CERTAINTY * self._noise()):
            known.clear()  # it is not what it was
            self._best = math.inf
        known.append(newest)
        self._note_best()

    def _note_best(self) -> None:
        """Only what is well known: the best of many guesses would be too good."""
        if len(self._held_blocks) >= FINE:
            self._best = min(self._best, total(list(self._held_blocks)).cost)

    # -- trying ---------------------------------------------------------------------------------------------

    def _go_on(self, now: float, may_try: bool) -> Step | None:
        """Begin the next trial, or hold if there is none that is worth it."""
        held = total(list(self._held_blocks))
        if self._is_vague():
            self.state = "measuring"
            return None
        if not self._may_grow:  # there would be no way back from a trial of fewer
            self.state = "measuring"
            return None
        self._next = self._next or self._seed_for(held)
        if self._next is not None:
            if not may_try:
                self.state, self.wants = "measuring", True
                return None
            (workers, predicted, why), self._next = self._next, None
            return self._try(workers, predicted, held, why)
        candidate, why = self._search.above() if self._may_gain(held) else None, f"training waits {held.waits:.0%}"
        if candidate is None:
            candidate, why = self._search.below(), "fewer may do"
        if self._replays[1] and self._noise() >= UNSURE and (candidate is None or held.waits < UNSURE):
            candidate = None  # nobody could tell; replay has said what it says
        measured = len(self._held_blocks) >= (FINE if candidate is None or candidate < held.workers else 2)
        if not measured:
            self.state = "measuring"
            return None
        if candidate is not None and not may_try:
            self.state, self.wants = "measuring", True
            return None
        if candidate is None:
            return self._settle(now, held)
        return self._try(candidate, self._rate(held, candidate), held, why)

    def _is_vague(self) -> bool:
        """Whether what is held is not known well enough to compare anything with it, and will be soon."""
        blocks = len(self._held_blocks)
        return blocks < 2 or (blocks < MOST_BLOCKS and self._noise() > VAGUE * math.sqrt(blocks))

    def _may_gain(self, held: Block) -> bool:
        return held.waits > self._tolerance and not self._is_full(held)

    def _is_full(self, block: Block) -> bool:
        if block.processor is None or not block.processors:
            return False
        return block.processor / block.seconds > FULL * block.processors

    def _try(self, workers: int, predicted: float | None, held: Block, why: str) -> Step:
        self.state, self.wants = "trying", False
        self._predicted, self._by_replay = predicted, why == REPLAY
        before, self._wanted = self._wanted, workers
        self._start_over_counting()
        return Step("try", workers, before, why, predicted, 1 / held.cost)

    def _judge_trial(self) -> Step | None:
        held, tried = total(list(self._held_blocks)), total(list(self._blocks))
        noise = self._noise()
        margin = CERTAINTY * noise * math.sqrt(1 / len(self._held_blocks) + 1 / len(self._blocks))
        last = len(self._blocks) >= (MOST_BLOCKS if noise < UNSURE else 3 * MOST_BLOCKS)
        trusted = self._by_replay and noise >= UNSURE and len(self._blocks) >= MOST_BLOCKS
        if self._wanted > held.workers:
            gain = 1 - tried.cost / held.cost
            if trusted and gain + margin > 0:
                return self._keep(tried, "too noisy to tell, but replay says so")
            if gain - margin > self._tolerance or (last and gain > max(self._tolerance, margin / 2)):
                return self._keep(tried, f"{gain:.0%} less time a batch")
            hopeless = gain + margin < self._tolerance and len(self._blocks) > (MOST_BLOCKS if self._by_replay else 1)
            if last or hopeless:
                return self._back(tried, "no measurable gain" if gain > -self._tolerance else f"{-gain:.0%} slower")
            return None
        loss, allowed = tried.cost / min(held.cost, self._best) - 1, self._tolerance * 2 / 3
        if loss + margin < allowed or (last and loss < allowed and noise < UNSURE):
            return self._keep(tried, "no measurable loss with fewer")
        if loss - margin > allowed or last:
            return self._back(tried, f"{loss:.0%} more time a batch" if loss > allowed else "too noisy to tell")
        return None

    def _noise(self) -> float:
        """How much blocks differ from each other by chance, as a share of their cost: in this trial and before it."""
        weight, spread = self._seen_noise
        for blocks in (self._held_blocks, self._blocks):
            more = _spread(blocks)
            weight, spread = weight + more[0], spread + more[1]
        return math.sqrt(spread / weight)

    def _remember_noise(self) -> None:
        weight, spread = _spread(self._blocks)
        self._seen_noise = (self._seen_noise[0] + weight, self._seen_noise[1] + spread)
        if self._seen_noise[0] > 40:  # what was long ago counts less
            self._seen_noise = (self._seen_noise[0] / 2, self._seen_noise[1] / 2)

    def _keep(self, tried: Block, why: str) -> Step:
        before = self._search.held
        self._remember_noise()
        self._search.keep(self._wanted)
        self._held_blocks = deque(self._blocks, maxlen=3 * MOST_BLOCKS)
        self._note_best()
        self.state = "measuring"
        return Step("keep", self._wanted, before, why, self._predicted, 1 / tried.cost)

    def _back(self, tried: Block, why: str) -> Step:
        if self._search.held > self._wanted and not self._may_grow:
            return self._keep(tried, "memory is short")
        self._remember_noise()
        rejected, self._wanted = self._wanted, self._search.held
        self._search.reject(rejected)
        self.state = "returning"
        self._start_over_counting()
        return Step("back", self._wanted, rejected, why, self._predicted, 1 / tried.cost)

    # -- seeding --------------------------------------------------------------------------------------------

    def _seed_for(self, held: Block) -> tuple[int, float | None, str] | None:
        """A number that is worth a trial before all others, what it should bring, and who says so; None: there is none.
        The costs of a batch are asked once; replay as soon as it has seen enough, and again when it has seen more.
        """
        found = self._replay()
        if found is not None:
            self._seeded = True
            workers, predicted, why = found[0], found[1], REPLAY
        elif not self._seeded:
            self._seeded = True
            workers = self._needed(held)
            predicted, why = self._rate(held, workers), "the costs of a batch say so"
        else:
            return None
        workers = min(max(workers, self._least), self.most)
        if abs(workers - held.workers) <= RESOLUTION * held.workers:
            return None
        if workers > held.workers and not self._may_gain(held):
            return None
        return workers, predicted, why

    def _replay(self) -> tuple[int, float] | None:
        began, due = self._replays
        if self._seed is None or self._last is None or self._last.batches < due:
            return None
        found = self._seed(self._since)
        if found is not None:
            now = self._last.batches
            self._replays = began, now + max(now - began, AGAIN)
        return found

    def _needed(self, held: Block) -> int:
        """As many workers as batches take time, without the time in which they only waited for a processor; and no more
        than keep all processors busy.
        """
        service = held.service * (1 - held.queues)
        needed = HEADROOM * service / max(held.gap, 1e-6)
        if held.processor and held.processors:
            needed = min(needed, held.processors * service * held.made / held.processor)
        else:
            needed = min(needed, 4.0 * held.workers)  # how much of a processor they need is not known
        return math.ceil(min(needed, 1e6))

    def _rate(self, held: Block, workers: int) -> float:
        """Batches a second that so many workers should bring, if only their number changes."""
        service = held.service * (1 - held.queues)
        rate = min(1 / max(held.gap, 1e-6), workers / service)
        if held.processor and held.processors:
            rate = min(rate, held.processors * held.made / held.processor)
        return rate

    # -- holding --------------------------------------------------------------------------------------------

    def _settle(self, now: float, held: Block) -> Step:
        before, self.state, self.wants = self.state, "holding", False
        self._hold_until = now + self._hold
        self._quiet_until = now + ONE_CHANGE / 2
        self._hold = min(2 * self._hold, LAST_HOLD)
        self._part = None
        self._changed = ("", 0)
        minutes = (self._hold_until - now) / 60
        why = "settled" if before != "holding" else "still the best"
        return Step(
            "hold", self._wanted, self._wanted, f"{why}; the next trial is in {minutes:.0f} min", None, 1 / held.cost
        )

    def _watch(self, reading: Reading, may_try: bool) -> Step | None:
        """One look while it holds."""
        held, newest = total(list(self._held_blocks)), self._blocks[-1]
        change, times = self._change(held, newest), 1
        if change == self._changed[0]:
            times += self._changed[1]
        self._changed = (change, times)
        if change and times >= LASTING:
            why = f"{change}: {_ms(self._measure(held, change))} before, {_ms(self._measure(newest, change))} now"
            self._restart(self._wanted)
            return Step("wake", self._wanted, self._wanted, why, None, 1 / newest.cost)
        if not change:
            self._held_blocks.append(newest)
            self._best = total(list(self._held_blocks)).cost
        if self._hold_until is None or reading.at < self._hold_until:
            return self._ask_again(reading.at, held) if may_try else None
        self.wants = not may_try
        if may_try:
            self._search.reopen(upwards=self._may_gain(held) and not self._upwards)
            self._upwards = not self._upwards
            return self._go_on(reading.at, may_try)
        return None

    def _ask_again(self, now: float, held: Block) -> Step | None:
        """Where nobody could tell numbers apart, replay may know better by now, from more of the rare slow batches."""
        if now < self._quiet_until or not self._may_grow or self._noise() < UNSURE:
            return None
        found = self._seed_for(held)
        if found is None:
            return None
        self._quiet_until = now + ONE_CHANGE
        return self._try(found[0], found[1], held, found[2])

    def _change(self, held: Block, newest: Block) -> str:
        """What is not as it was; empty: all is."""
        spread = CERTAINTY * self._noise()
        for name in ("training's own time", "a worker's time", "time"):
            was, is_ = self._measure(held, name), self._measure(newest, name)
            if abs(is_ - was) > max(CHANGE, spread) * was and abs(is_ - was) > self._tolerance * held.cost:
                return name
        return ""

    @staticmethod
    def _measure(block: Block, name: str) -> float:
        if name == "training's own time":
            return block.gap
        return block.service if name == "a worker's time" else block.cost

    # -- beginning anew -------------------------------------------------------------------------------------

    def _restart(self, workers: int) -> None:
        self.state, self.wants = "measuring", False
        self._search = Search(workers, self._least, self.most)
        self._wanted = workers
        self._start_over_counting()
        self._settling = 0
        self._held_blocks.clear()
        self._best = math.inf
        self._seeded = False
        if self._last is not None:
            self._since, self._replays = self._last.at, (self._last.batches, 0)
        self._next = None
        self._hold = FIRST_HOLD

    def _halve(self, reading: Reading) -> Step:
        before = reading.workers
        self._restart(max(self._least, before // 2))
        self._settling = self._wanted
        self._seeded = True
        return Step("halve", self._wanted, before, "memory is nearly used up")


def _spread(blocks: deque[Block]) -> tuple[float, float]:
    """How many differences there are among these blocks, and the sum of their squares as shares of the mean cost."""
    if len(blocks) < 2:
        return 0.0, 0.0
    costs = [block.cost for block in blocks]
    return len(costs) - 1.0, (len(costs) - 1) * statistics.variance(costs) / statistics.fmean(costs) ** 2


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms a batch"
