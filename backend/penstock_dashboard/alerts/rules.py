"""What is worth an alert, by what is known of one loader at one moment. No IO and no clock here."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import pairwise
from typing import get_args

from msgspec import Struct
from penstock.protocol import AlertRule, Limit, LoaderState, Presence

RULES: tuple[AlertRule, ...] = get_args(AlertRule)

DATA_BOUND: frozenset[Limit] = frozenset(
    ("workers", "processors", "neighbours", "shared", "samples", "pin", "sampler", "memory")
)
"""Limits that mean that training waits for data, for as long as they are what is named."""
ACTIVE: frozenset[LoaderState] = frozenset(("running", "paused"))
DRAWN_OUT: frozenset[AlertRule] = frozenset(("data-bound", "stalled", "memory"))
"""What must be seen for a while."""
LOOKS = 10
"""Into so many parts the time is cut over which memory must grow: in each, the workers must have more than in the one
before."""


class Rules(Struct, frozen=True):
    """Which rules hold, and from when on."""

    on: frozenset[AlertRule] = frozenset(RULES)
    data_bound: float = 300.0
    """Seconds for which training must have waited for data."""
    stalled: float = 60.0
    """Seconds without a batch, while training waits for one."""
    memory: float = 600.0
    """Seconds over which the workers' memory must have grown without pause."""
    growth: float = 0.25
    """By so much, as a share of what they had."""


class Seen(Struct, frozen=True):
    """What the rules look at."""

    lived: bool
    """It was well since somebody looks: that it is gone or failed is news."""
    presence: Presence
    state: LoaderState
    limit: Limit
    """What the verdict names."""
    sentence: str
    """What the verdict says."""
    progress: tuple[int, int]
    """Epoch and batch."""
    waiting: bool
    """Training waits for data at this moment."""
    rss: float
    """Resident memory of all workers, bytes; 0: not known."""
    largest: float
    """That of the worker that has most."""
    workers: int
    quarantined: int
    error: str
    """The last error that nobody caught; empty: none."""


class Watched:
    """One loader over time, as the rules see it."""

    def __init__(self, rules: Rules, seen: Seen, now: float, held: Collection[AlertRule] = ()) -> None:
        """`held`: what holds already, because another replica saw it before this one began to look."""
        self._rules = rules
        self._since = now
        self._unsure = bool(held)
        """Nothing is known here yet of what limits it, so what was seen elsewhere is taken to hold."""
        self._progress = seen.progress
        self._moved = now - rules.stalled if "stalled" in held else now
        self._bound_since: float | None = now - rules.data_bound if "data-bound" in held else None
        self._memory: deque[tuple[float, float, float]] = deque(maxlen=LOOKS + 1)
        """When, and what all workers had then, and the one that had most."""
        self._memory_workers = seen.workers

    def look(self, seen: Seen, now: float) -> dict[AlertRule, str]:
        """What holds now, each with a sentence."""
        self._follow(seen, now)
        found: dict[AlertRule, str] = {}
        if seen.lived:
            if seen.presence == "lost" and seen.state in ACTIVE:
                found["lost"] = "It is silent, and did not say goodbye."
            if seen.state == "failed" or seen.error:
                found["failed"] = f"Training ended with an error: {seen.error or 'see its events'}"
        if seen.presence == "connected" and seen.state == "running":
            found |= self._running(seen, now)
        if seen.quarantined and seen.state in ACTIVE and seen.presence == "connected":
            many = "a sample is" if seen.quarantined == 1 else f"{seen.quarantined:,} samples are"
            found["quarantine"] = f"{many[0].upper()}{many[1:]} in quarantine."
        return {rule: text for rule, text in found.items() if rule in self._rules.on}

    def undecided(self, seen: Seen, now: float) -> frozenset[AlertRule]:
        """What goes on if it held before: too little was seen here to say that it does not."""
        if seen.presence not in ("connected", "stale") or seen.state not in ACTIVE:
            return frozenset()
        if self._unsure:
            return DRAWN_OUT
        return frozenset(("memory",)) if now - self._since < self._rules.memory else frozenset()

    def _running(self, seen: Seen, now: float) -> dict[AlertRule, str]:
        found: dict[AlertRule, str] = {}
        rules = self._rules
        if self._bound_since is not None and now - self._bound_since >= rules.data_bound:
            found["data-bound"] = seen.sentence or "Training waits for data."
        if seen.waiting and now - self._moved >= rules.stalled:
            found["stalled"] = f"No batch has come for {now - self._moved:.0f} s, and training waits for one."
        if grown := self._grown():
            found["memory"] = f"{grown} over {rules.memory / 60:.0f} minutes."
        return found

    def _follow(self, seen: Seen, now: float) -> None:
        running = seen.presence == "connected" and seen.state == "running"
        self._unsure = self._unsure and not (running and seen.limit != "none")
        if seen.progress != self._progress or not (self._unsure or (running and seen.waiting)):
            self._progress, self._moved = seen.progress, now
        bound = running and seen.limit in DATA_BOUND
        if bound or not self._unsure:
            self._bound_since = (self._bound_since if self._bound_since is not None else now) if bound else None
        if not running or seen.workers != self._memory_workers or not seen.rss:
            self._memory.clear()
            self._memory_workers = seen.workers
        elif not self._memory or now - self._memory[-1][0] >= self._rules.memory / LOOKS:
            self._memory.append((now, seen.rss, seen.largest))

    def _grown(self) -> str:
        """What has grown, and by how much, if it never stopped growing over the whole time; else empty."""
        for whose, place in (("The workers'", 1), ("One worker's", 2)):
            values = [look[place] for look in self._memory]
            if len(values) > LOOKS and values[0] > 0 and all(later > earlier for earlier, later in pairwise(values)):
                grown = values[-1] / values[0] - 1
                if grown >= self._rules.growth:
                    return f"{whose} memory has grown by {grown:.0%}"
        return ""
