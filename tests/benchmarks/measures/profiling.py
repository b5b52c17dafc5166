"""What being profiled costs, at 50 looks a second on all workers.

A look costs a worker a fraction of a millisecond, on machines that differ by a tenth from one second to the next:
comparing seconds with a profile to seconds without says nothing. So it is measured around each look, as `monitoring`
does it around snapshots:

1. Workers note when they load a sample (of small ones, the first of each batch). Samples loaded by all workers by then
   are the progress.
2. Looks are due at moments that nothing in a worker decides. Five times fewer of them are taken than the promise is
   about, so that there is time between them without any. The progress of the 20 ms around the moment at which one is
   due is set against that of the 20 ms before and the 20 ms after: what drifts cancels. 50 looks a second is one every
   20 ms, on every worker: what all workers' looks cost of such a window is the share that is lost.
3. Whatever a look costs others, because they share processors, is in it, since all workers' progress is counted. What a
   look hands over, every half second, is in it five times too often.
4. What the training process does with looks comes at other times: its thread's processor time is added to the loss.

`null` is the same arithmetic over the same run, at moments that lie halfway between two looks: how far it is from 1
says how much the other can be believed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from penstock import DataLoader
from penstock.profiling.sampler import Chunk, Look, Schedule

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.throughput import warm_up
from tests.benchmarks.workloads import WORKLOADS, Samples

MS = 1_000_000
WINDOW = 20 * MS
"""ns: one look each is 50 a second."""
LEAD = 1 * MS
"""ns of a window before its look is due."""
MOST_NOTES = 8_000_000
"""Notes of a worker for which there is room."""
Moments = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


class Noted(Samples):
    """A dataset whose workers note when they load every so many-th sample, in a file each."""

    def __init__(self, inner: Samples, every: int, folder: str) -> None:
        super().__init__(inner.length)
        self.inner = inner
        self.every = every
        self.folder = folder
        self.notes: memoryview | None = None
        self.count = 0

    def __getitem__(self, index: int) -> Any:
        if not index % self.every:
            self.note()
        return self.inner[index]

    def note(self) -> None:
        if self.notes is None:
            with (Path(self.folder) / str(os.getpid())).open("w+b") as file:
                file.truncate(8 * MOST_NOTES)
                self.notes = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self.notes[self.count] = time.monotonic_ns()
        self.count += 1

    def mark(self, index: int) -> int:
        return self.inner.mark(index)


def measure(
    variant: str,  # noqa: ARG001
    quick: bool,
    *,
    workload: str,
    workers: int,
    seconds: float,
    rate: float,
    every: int,
) -> Measures:
    """`rate`: looks a second. `every`: samples from one note to the next."""
    spec = WORKLOADS[workload]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        dataset = Noted(spec.dataset(spec.batch_size * 4 * workers), every, folder)
        loader: DataLoader[Any] = DataLoader(
            dataset, spec.batch_size, num_workers=workers, persistent_workers=True, monitor=False, refresh="never"
        )
        warm_up(loader, spec, dataset)
        dataset.length = spec.batch_size * 10**7  # one epoch, never read to its end
        looks, share = _watched(loader, seconds / 10 if quick else seconds, rate)
        loader.close()
        notes = [np.fromfile(file, np.int64) for file in Path(folder).iterdir()]
    notes = [each[: np.count_nonzero(each)] for each in notes]
    due = [_due(rows, rate) for rows in looks.values()]
    if len(due) != workers:
        raise RuntimeError(f"not available: {len(due)} of {workers} workers were looked at")
    halfway = [(each[:-1] + each[1:]) // 2 for each in due]
    loss, error = _loss(notes, due, due)
    nothing, _ = _loss(notes, halfway, halfway, apart_from=due)
    return {
        "ratio": 1.0 - loss - share,
        "error": error,
        "null": 1.0 - nothing,
        "training_percent": 100 * share,
        "looks": float(sum(map(len, due))),
    }


def _watched(loader: DataLoader[Any], seconds: float, rate: float) -> tuple[dict[Hashable, list[Look]], float]:
    """What was seen of each worker, and the share of a processor that the profile's thread in this process took."""
    batches = iter(loader)
    next(batches)
    looks: dict[Hashable, list[Look]] = defaultdict(list)
    profiling = loader.profiling(rate=rate)
    take = profiling.sampled

    def note(source: Hashable, chunk: Chunk) -> None:
        looks[source] += chunk.rows()
        take(source, chunk)

    profiling.sampled = note  # type: ignore[method-assign]
    [thread] = [each for each in threading.enumerate() if each.name == "loader-profile"]
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    began, used = time.monotonic(), time.clock_gettime(clock)
    while time.monotonic() - began < seconds:
        next(batches)
    share = (time.clock_gettime(clock) - used) / (time.monotonic() - began)
    profiling.stop()
    profiling.result()
    return looks, share


def _due(rows: list[Look], rate: float) -> Moments:
    """When looks were due that were taken later, by as little or much as it took.

    Of their schedule all is known but its beginning, which is found from the look that was taken soonest.
    """
    schedule, done, offsets = Schedule(0, rate), 0, []
    for row in rows:
        done += round(row.wall / schedule.period)
        offsets.append(schedule.moment(done - 1))
    moments = np.array([row.moment for row in rows], np.int64)
    planned = np.array(offsets, np.int64)
    due: Moments = planned + np.min(moments - planned)
    return due


def _loss(
    notes: list[Moments], at: list[Moments], looks: list[Moments], apart_from: list[Moments] | None = None
) -> tuple[float, float]:
    """The share of progress that a look on every worker costs the window it is in; and its error, 95 %.

    `at`: where windows are. `apart_from`: moments that must be in none of them.
    """
    first, last = max(each[0] for each in notes), min(each[-1] for each in notes)
    everywhere = np.concatenate(at)
    begins = everywhere - LEAD
    begins = begins[(begins - WINDOW > first) & (begins + 2 * WINDOW < last)]
    for each in apart_from or ():
        begins = begins[_between(each, begins - WINDOW, 3 * WINDOW) == 0]
    before, around, after = (_progress(notes, begins + step * WINDOW) for step in (-1, 0, 1))
    lost = (before + after) / 2 - around
    counts = [sum(_between(each + LEAD // 2, begins + step * WINDOW, WINDOW) for each in looks) for step in (-1, 0, 1)]
    more = np.asarray(counts[1] - (counts[0] + counts[2]) / 2, np.float64)
    slope = float((lost * more).sum() / (more * more).sum())
    # Workers' looks may come together, and windows then overlap: what belongs to one second counts as one.
    seconds = (begins - begins.min()) // (1000 * MS)
    error = float(np.sqrt((np.bincount(seconds, (lost - slope * more) * more) ** 2).sum()) / (more * more).sum())
    scale = len(notes) / float((before + after).mean() / 2)
    return slope * scale, 1.96 * error * scale


def _progress(notes: list[Moments], begins: Moments) -> Numbers:
    """Notes made by all workers in the window that begins there, and parts of the one under way."""
    made = np.zeros(len(begins))
    for each in notes:
        numbers = np.arange(len(each))
        made += np.interp(begins + WINDOW, each, numbers) - np.interp(begins, each, numbers)
    return made


def _between(moments: Moments, begins: Moments, length: int) -> npt.NDArray[np.int64]:
    """How many of the moments are in each window."""
    return np.searchsorted(moments, begins + length) - np.searchsorted(moments, begins)
