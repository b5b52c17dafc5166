"""A small world in which tuners are tried: ranks with workers, processors that they share, and training that waits.

Time is simulated, so an hour takes seconds and nothing depends on the machine. A batch passes through stations one
after the other: a processor, a lock, a storage, each shared evenly by those who are there, or plain waiting. Workers
take batches freely, batches are delivered in order within a window, and ranks that train in step wait for each other.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.insight.recording import Glance, Made, Recording, Turn
from penstock.tuning.reading import Reading

STARTING = 0.1
"""Seconds until a new worker takes its first batch."""

Stages = Sequence[tuple[str, float]]
"""The stations that a batch passes, and the seconds that it needs there when it is alone."""


@dataclass
class Station:
    """Something that several batches share."""

    places: float = math.inf
    """So many can be there without slowing each other down."""
    crowding: float = 0.0
    """By how much each one beyond that slows down the whole, as a share."""
    foreign: float = 0.0
    """Others that are always there."""
    now: float = 0.0
    progress: float = 0.0
    """Seconds that one who was there all the time would have got."""
    there: list[tuple[float, int, _Worker]] = field(default_factory=list)

    def rate(self) -> float:
        crowd = len(self.there) + self.foreign
        if crowd <= self.places:
            return 1.0
        return self.places / crowd / (1 + self.crowding * (crowd - self.places))

    def advance(self, now: float) -> None:
        self.progress += (now - self.now) * self.rate()
        self.now = now

    def next_end(self) -> float:
        if not self.there:
            return math.inf
        return self.now + max(self.there[0][0] - self.progress, 0.0) / self.rate()


@dataclass(eq=False)
class _Worker:
    rank: Rank
    batch: int = -1
    began: float = 0.0
    stages: list[tuple[str, float]] = field(default_factory=list)
    arrived: float = 0.0
    processor: float = 0.0
    queued: float = 0.0
    leaving: bool = False


class Rank:
    """One loader and its training."""

    def __init__(
        self,
        workers: int,
        stages: Callable[[float, random.Random], Stages],
        gap: Callable[[float], float],
        seed: int = 0,
        depth: int = 2,
    ) -> None:
        self.stages, self.gap = stages, gap
        self.depth = depth
        """Tasks in flight for each worker."""
        self.random = random.Random(seed)
        self.target = workers
        self.workers: list[_Worker] = []
        self.starting = 0
        self.idle: list[_Worker] = []
        self.finished: set[int] = set()
        self.next_task = 0
        self.batches = 0
        self.made = 0
        self.compute = self.waiting = self.processor = self.queued = self._busy = 0.0
        self.asked_at: float | None = 0.0
        """Since when training waits for the next batch; None: it computes."""
        self.ready = False
        """It has its batch and waits for the other ranks."""
        self.computing_since = 0.0
        self.recording = Recording()
        """What replay would be told of it."""
        self.inside = 0.0
        """How long training waited for the batch that it has."""

    def busy(self, now: float) -> float:
        return self._busy + sum(now - worker.began for worker in self.workers if worker.batch >= 0)

    def present(self) -> int:
        return sum(not worker.leaving for worker in self.workers)


class World:
    """Ranks on one machine; `in_step`: they train as one, each step when all have a batch."""

    def __init__(self, ranks: list[Rank], stations: dict[str, Station], in_step: bool = False) -> None:
        self.now = 0.0
        self.ranks = ranks
        self.stations = {"sleep": Station(), **stations}
        self._in_step = in_step
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        for rank in ranks:
            self.resize(rank, rank.target)

    # -- from outside ---------------------------------------------------------------------------------------

    def at(self, moment: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (moment, self._count, action))

    def resize(self, rank: Rank, workers: int) -> None:
        rank.target = workers
        present = [worker for worker in rank.workers if not worker.leaving]
        for worker in present[workers:]:
            worker.leaving = True
            if worker in rank.idle:
                self._leave(worker)
        for _ in range(workers - len(present) - rank.starting):
            rank.starting += 1
            self.at(self.now + STARTING, functools.partial(self._start, rank))

    def run(self, until: float) -> None:
        while True:
            name = min(self.stations, key=lambda each: self.stations[each].next_end())
            end = self.stations[name].next_end()
            timer = self._timers[0][0] if self._timers else math.inf
            if min(end, timer) > until:
                break
            self.now = max(self.now, min(end, timer))
            if timer <= end:
                heapq.heappop(self._timers)[2]()
            else:
                self._pass_on(self.stations[name])
        self.now = until

    def glance(self, rank: Rank) -> None:
        """Look at what the workers of a rank wait for, as the conductor does: for a lock, asleep, for storage."""
        waits = {"lock": 0, "sleep": 0, "disk": 0}
        for name in waits.keys() & self.stations.keys():
            waits[name] = sum(worker.rank is rank for _, _, worker in self.stations[name].there)
        lock = self.stations.get("lock")
        locked = 0 if lock is None else max(waits["lock"] - int(lock.places), 0)
        ours = sum(worker.batch >= 0 for worker in rank.workers)
        seen = (ours, locked, waits["sleep"], waits["disk"])
        rank.recording.glance(Glance(self.now, rank.present(), True, rank.made, rank.batches, *seen))

    def reading(self, rank: Rank, others: float = 0.0) -> Reading:
        now = self.now
        waiting, compute = rank.waiting, rank.compute
        if rank.asked_at is not None and not rank.ready:
            waiting += now - rank.asked_at
        else:
            compute += now - rank.computing_since
        cpu = self.stations.get("cpu")
        free = 0.0 if cpu is None else max(cpu.places - others, 0.1)
        ours = rank.present() + rank.starting
        return Reading(
            now,
            ours if rank.starting == 0 else -1,
            0,
            rank.batches,
            rank.made,
            compute,
            waiting,
            rank.busy(now),
            None if cpu is None else rank.processor,
            None if cpu is None else rank.queued,
            free,
        )

    # -- workers --------------------------------------------------------------------------------------------

    def _start(self, rank: Rank) -> None:
        rank.starting -= 1
        worker = _Worker(rank)
        rank.workers.append(worker)
        worker.leaving = rank.present() > rank.target
        self._hand_out(worker)

    def _leave(self, worker: _Worker) -> None:
        worker.rank.workers.remove(worker)
        if worker in worker.rank.idle:
            worker.rank.idle.remove(worker)

    def _hand_out(self, worker: _Worker) -> None:
        rank = worker.rank
        if worker.leaving:
            self._leave(worker)
        elif rank.next_task - rank.batches < max(rank.depth * rank.target, 2):
            worker.batch, rank.next_task = rank.next_task, rank.next_task + 1
            worker.began = self.now
            worker.stages = list(rank.stages(self.now, rank.random))
            self._enter(worker)
        elif worker not in rank.idle:
            rank.idle.append(worker)

    def _enter(self, worker: _Worker) -> None:
        name, seconds = worker.stages[0]
        station = self.stations[name]
        station.advance(self.now)
        worker.arrived = self.now
        self._count += 1
        heapq.heappush(station.there, (station.progress + seconds, self._count, worker))

    def _pass_on(self, station: Station) -> None:
        station.advance(self.now)
        worker = heapq.heappop(station.there)[2]
        name, seconds = worker.stages.pop(0)
        rank = worker.rank
        if name.startswith("cpu"):
            rank.processor += seconds
            rank.queued += self.now - worker.arrived - seconds
            worker.processor += seconds
            worker.queued += self.now - worker.arrived - seconds
        if worker.stages:
            self._enter(worker)
            return
        rank._busy += self.now - worker.began
        rank.made += 1
        wall = self.now - worker.began
        rank.recording.made.append(Made(worker.began, wall, worker.processor, worker.queued, 1, id(worker)))
        worker.processor = worker.queued = 0.0
        rank.finished.add(worker.batch)
        worker.batch = -1
        self._serve(rank)
        self._hand_out(worker)

    # -- training -------------------------------------------------------------------------------------------

    def _serve(self, rank: Rank) -> None:
        if rank.asked_at is None or rank.ready or rank.batches not in rank.finished:
            return
        rank.finished.remove(rank.batches)
        rank.waiting += self.now - rank.asked_at
        rank.inside = self.now - rank.asked_at
        rank.batches += 1
        rank.ready = True
        rank.computing_since = self.now
        for worker in list(rank.idle):
            rank.idle.remove(worker)
            self._hand_out(worker)
        for each in self.ranks if self._in_step else [rank]:
            if not each.ready:
                return
        for each in self.ranks if self._in_step else [rank]:
            each.ready, each.asked_at = False, None
            self.at(self.now + each.gap(self.now), functools.partial(self._ask, each))

    def _ask(self, rank: Rank) -> None:
        rank.compute += self.now - rank.computing_since
        rank.recording.turns.append(Turn(rank.inside, self.now - rank.computing_since))
        rank.asked_at = self.now
        self._serve(rank)
