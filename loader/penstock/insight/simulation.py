"""A small simulation of a pool: workers that share processors, a window, delivery in order, training.

Pure, and quick: a few µs a batch. Every batch needs something that is no processor for a while (blocked time) and a
processor for a while (processor time). Those who need a processor at one moment share them evenly; so do those who are
blocked, where what they wait for has been seen to have a limit. Time passes from event to event; in between everybody
goes on at an even pace, so the work that one has had of a shared thing is the same for all who had it for as long
("virtual time"), and a heap for each of the two has who is through next.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
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


class Outcome(NamedTuple):
    batches: float
    """Batches a second that training gets."""
    waiting: float
    """Share of the time, 0 to 1, in which training waits."""


def simulate(pool: Pool, work: Sequence[Work], training: Sequence[Work], batches: int) -> Outcome:
    """Give training so many batches and say how that went. `work` and `training` are gone through again and again.

    The first batches do not count: nothing was in flight then.
    """
    n, tasks = pool.workers, max(1, min(pool.tasks, int(min(pool.bytes, 1e9))))
    processors, others, channels = pool.processors, pool.others, pool.channels
    warm = min(2 * n, batches // 2)
    blocked: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = []
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

    while True:
        # Training takes what it may, workers begin what they may.
        if asks and (taken in finished if pool.in_order or pool.sharded else made > taken):
            finished.discard(taken)
            asks = False
            waited += now - asked_at
            taken += 1
            if taken == warm:
                began_at, waited_before = now, waited
            elif taken >= batches:
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
            heapq.heappush(blocked, (blocked_at + need.blocked * part, batch))
        # What happens next?
        slow_blocked = max(1.0, len(blocked) / channels)
        slow_running = max(1.0, (len(running) + others) / processors) if running else 1.0
        to_blocked = (blocked[0][0] - blocked_at) * slow_blocked if blocked else math.inf
        to_running = (running[0][0] - running_at) * slow_running if running else math.inf
        step = min(to_blocked, to_running, wakes - now)
        if step == math.inf:  # nothing is under way: only of a window that is too small for what was asked
            return Outcome(0.0, 1.0)
        step = max(step, 0.0)
        now += step
        blocked_at += step / slow_blocked
        running_at += step / slow_running
        if step == to_blocked or (blocked and blocked[0][0] <= blocked_at):
            batch = heapq.heappop(blocked)[1]
            heapq.heappush(running, (running_at + work[batch % of_work].processor, batch))
        elif step == to_running or (running and running[0][0] <= running_at):
            batch = heapq.heappop(running)[1]
            if batch == TRAINING:
                asks, asked_at = True, now
            else:
                idle.append(worker_of.pop(batch))
                made += 1
                finished.add(batch)
        else:
            wakes = math.inf
            heapq.heappush(running, (running_at + own, TRAINING))
    took = now - began_at
    if took <= 0:
        return Outcome(math.inf, 0.0)
    return Outcome((batches - warm) / took, min(max((waited - waited_before) / took, 0.0), 1.0))
