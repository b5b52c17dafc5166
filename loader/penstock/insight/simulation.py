"""A small simulation of a pool: workers that share processors, a window, delivery in order, training.

Pure, and quick: a few µs a batch. Every batch needs something that is no processor for a while (blocked time) and a
processor for a while (processor time). Those who need a processor at one moment share them evenly; so do those who are
blocked, where what they wait for has been seen to have a limit. Time passes from event to event; in between everybody
goes on at an even pace, so the work that one has had of a shared thing is the same for all who had it for as long
("virtual time"), and a heap for each of the two has who is through next. Workers on other machines are in nobody's way
here: a third heap has when each of their batches is through.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

TRAINING = -1
"""In place of a batch's number: training itself is on a processor."""


class Work(NamedTuple):
    """What one batch needs, s."""

    blocked: float
    processor: float


@dataclass(frozen=True, slots=True)
class Pool:
    """What is simulated."""

    workers: int
    processors: float = math.inf
    """Processors that workers and training share,"""
    others: float = 0.0
    """with so many processes of others that always need one."""
    channels: float = math.inf
    """Workers that may be blocked at once without being in each other's way."""
    tasks: int = 512
    """Tasks that may be in flight."""
    bytes: float = math.inf
    """Batches that fit into the memory budget, in batches: at least 1."""
    in_order: bool = True
    sharded: bool = False
    """Every worker has its own shard, and batches come from them in turn."""
    local: int | None = None
    """Workers from this one on run on other machines; None: none does."""
    elsewhere: float = math.inf
    """Processors that those share."""


class Outcome(NamedTuple):
    """What a simulated pool came to."""

    batches: float
    """Batches a second that training gets."""
    noise: float
    """Standard deviation of that, relative to it, for a single batch: for n of them, 1 / √n of that."""
    waiting: float
    """Share of the time, 0 to 1, in which training waits."""


SLOWEST = 1.5
"""How many times as long as the slowest batch nothing counts at first."""
STUCK = 0.5
"""How much of what would be lost if the system never moved a process to another processor is lost."""
PARTS = 8
"""Parts of a simulation whose differences say how much chance there is in it."""


def simulate(pool: Pool, work: Sequence[Work], training: Sequence[Work], batches: int) -> Outcome:
    """Give training so many batches and say how that went. `work` and `training` are gone through again and again.

    The first batches do not count: nothing was in flight then.
    """
    n, tasks = pool.workers, max(1, min(pool.tasks, int(min(pool.bytes, 1e9))))
    processors, others, channels = pool.processors, pool.others, pool.channels
    times = list(map(sum, work))
    warm = min(max(2 * n, int(SLOWEST * n * max(times) * len(times) / max(sum(times), 1e-9))), batches // 2)
    slower = _slower(processors, n if pool.local is None else min(n, pool.local), others)
    blocked: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = []
    away: list[tuple[float, int]] = []  # batches on other machines, by the moment at which they are through
    local = n if pool.local is None else pool.local
    slow_away = _slow_away(pool, work, n - local)
    blocked_at = running_at = 0.0  # virtual times
    now = 0.0
    idle = list(range(n - 1, -1, -1))  # the lowest last
    turn = list(range(n))  # the next batch of each shard
    worker_of: dict[int, int] = {}
    finished: set[int] = set()
    begun = made = taken = 0
    asks = True
    wakes = math.inf  # when training's own time without a processor is over
    own = 0.0  # processor time that follows it
    waited = asked_at = began_at = waited_before = 0.0
    of_work, of_training = len(work), len(training)
    ready = 0  # batches that are finished, and so are all before them
    marks: list[tuple[float, int]] = []  # moments, and batches that training had by then, or must wait for its turn

    while True:
        # Training takes what it may, workers begin what they may.
        if asks and (taken in finished if pool.in_order or pool.sharded else made > taken):
            finished.discard(taken)
            asks = False
            waited += now - asked_at
            taken += 1
            if taken == warm:
                began_at, waited_before = now, waited
            if taken >= batches:
                break
            pause, own = training[taken % of_training]
            wakes = now + pause
        while idle and begun - taken < tasks:
            worker = idle.pop()
            if pool.sharded:
                batch = turn[worker]
                turn[worker] += n
            else:
                batch = begun
            begun += 1
            worker_of[batch] = worker
            need = work[batch % of_work]
            # All begin together, but once: each with another part of its first batch behind it.
            part = 1.0 if batch >= n else (batch + 0.5) / n
            if worker < local:
                heapq.heappush(blocked, (blocked_at + need.blocked * part, batch))
            else:
                heapq.heappush(away, (now + part * (need.blocked + need.processor * slow_away), batch))
        # What happens next?
        slow_blocked = max(1.0, len(blocked) / channels)
        slow_running = slower[len(running)]
        to_blocked = (blocked[0][0] - blocked_at) * slow_blocked if blocked else math.inf
        to_running = (running[0][0] - running_at) * slow_running if running else math.inf
        to_away = away[0][0] - now if away else math.inf
        step = min(to_blocked, to_running, wakes - now, to_away)
        if step == math.inf:  # nothing is under way: only of a window that is too small for what was asked
            return Outcome(0.0, 0.0, 1.0)
        step = max(step, 0.0)
        now = away[0][0] if step == to_away else now + step
        blocked_at += step / slow_blocked
        running_at += step / slow_running
        if step == to_blocked or (blocked and blocked[0][0] <= blocked_at):
            batch = heapq.heappop(blocked)[1]
            heapq.heappush(running, (running_at + work[batch % of_work].processor, batch))
        elif (
            (arrived := bool(away) and away[0][0] <= now)
            or step == to_running
            or (running and running[0][0] <= running_at)
        ):
            batch = heapq.heappop(away if arrived else running)[1]
            if batch == TRAINING:
                asks, asked_at = True, now
            else:
                idle.append(worker_of.pop(batch))
                made += 1
                finished.add(batch)
                while ready in finished:
                    ready += 1
                if taken >= warm:
                    marks.append((now, taken + made - ready if pool.in_order and not pool.sharded else taken))
        else:
            wakes = math.inf
            heapq.heappush(running, (running_at + own, TRAINING))
    took = now - began_at
    if took <= 0:
        return Outcome(math.inf, 0.0, 0.0)
    waiting = min(max((waited - waited_before) / took, 0.0), 1.0)
    rate, noise = _rate(marks, (batches - warm) / took)
    needed = sum(map(sum, training)) / of_training
    return Outcome(min(rate, 1.0 / needed) if needed > 0 else rate, noise, waiting)


def _slow_away(pool: Pool, work: Sequence[Work], workers: int) -> float:
    """By how much longer a batch is on a processor of another machine because there are not enough of them."""
    whole = sum(map(sum, work))
    wanted = workers * sum(each.processor for each in work) / whole if whole > 0 else 0.0
    return max(wanted / pool.elsewhere, 1.0) if pool.elsewhere > 0 else 1.0


def _slower(processors: float, workers: int, others: float) -> list[float]:
    """By how much everybody is slower if 0, 1, … of workers and training run beside so many others.

    The system leaves a worker on the processor on which it ran last, for a while: at times one waits although another
    processor is free. Were none ever moved, those who run would be a random choice of those on each processor.
    """
    found, free = [1.0], 1.0  # free: how likely it is that a processor has none of them
    for run in range(1, workers + 2):
        shared = min(processors, run + others)
        if 1 < processors < workers:
            elsewhere = workers * (1.0 - 1.0 / processors)
            free *= max(elsewhere - (run - 1), 0.0) / max(workers - (run - 1), 1)
            shared -= STUCK * max(shared - max(processors * (1.0 - free), 1.0), 0.0)
        found.append(max((run + others) / shared, 1.0))
    return found


def _rate(marks: Sequence[tuple[float, int]], otherwise: float) -> tuple[float, float]:
    """Batches a second, and how much chance is in that.

    Batches that wait behind a slow one count when they are made: training gets hundreds of them in one moment, and
    whether that is the last moment of a simulation says nothing.
    """
    size = len(marks) // PARTS
    took = marks[-1][0] - marks[0][0] if marks else 0.0
    if size < 2 or took <= 0 or marks[-1][1] <= marks[0][1]:
        return otherwise, 0.0
    rate = (marks[-1][1] - marks[0][1]) / took
    ends = marks[::size][: PARTS + 1]
    # By the times that as many batches take: their rates are far apart where a slow one holds up all others at once.
    times = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(ends) if b[1] > a[1]]
    mean = sum(times) / len(times) if times else 0.0
    if len(times) < 2 or mean <= 0:
        return rate, 0.0
    return rate, math.sqrt(sum((each - mean) ** 2 for each in times) / (len(times) - 1) * size) / mean
