"""The board: a fixed-size shared table of worker states and counters, and the words by which workers are steered.

Every word is an aligned 64-bit integer with one writer: the worker writes its row, the conductor writes the words
under `CONTROL`. Readers need no lock: a word is read whole, and a row that is read while it changes is at most one
step of one batch out of date. A worker looks at its control words between two batches, so that pausing, retiring and
abandoning an epoch need no message to get past tasks that are already in its index queue.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import get_args

from ...costs import COST_BUCKETS
from ...effort import Effort
from ...protocol import WorkerState
from ...seeding import Bases
from ..memory import Mapping

STATES: tuple[WorkerState, ...] = get_args(WorkerState)
STARTING, IDLE, FETCHING, COLLATING, SENDING, PAUSED, RETIRING, DEAD = range(len(STATES))


class Word:
    """Places in a row."""

    CONTROL = 0
    """An `Order`; written by the conductor."""
    EPOCH = 1
    """Tasks of earlier epochs are to be skipped; written by the conductor."""
    STATE = 2
    SINCE = 3
    """When the state began, ns of the monotonic clock."""
    BATCH = 4
    """Batch under way or done last; -1: none yet."""
    STARTED = 5
    """Tasks taken up, skipped ones included."""
    BATCHES = 6
    SAMPLES = 7
    BYTES = 8
    FETCH = 9
    """Times in ns, without that of the state under way."""
    COLLATE = 10
    SEND = 11
    IDLE = 12
    PID = 13
    RECALLED = 14
    """Tasks handed over before this one, and not started, are to be skipped; written by the conductor."""
    PROFILE = 15
    """How its stacks are to be sampled: `PROFILE_ORDER` times a number that grows with every order, and looks in 1000 s
    (0: none); written by the conductor."""
    BASES = 16
    """Of the row behind all workers' only: 1 when the three words that follow are there, the bases of batches' seeds.
    Written once, by the first worker, after its `worker_init_fn`."""
    SAMPLE = 20
    """Place in the batch of the sample that is being made, from 1, or an `attempted` one; 0: none, or not told."""
    SAMPLE_SINCE = 21
    """When that began, ns of the monotonic clock."""
    COST = 32
    """From here on: counts of sample times."""


PROFILE_ORDER = 1 << 32

ROW = Word.COST + COST_BUCKETS
"""Words a worker."""

TIME_OF = {FETCHING: Word.FETCH, COLLATING: Word.COLLATE, SENDING: Word.SEND}
"""The word that a state's time belongs to; that of all others is idle time."""


def size_of_board(rows: int) -> int:
    return (rows + 1) * ROW * 8


class Board:
    """The table as one process sees it."""

    def __init__(self, descriptor: int, rows: int) -> None:
        self.rows = rows
        self._mapping = Mapping(descriptor, size_of_board(rows))
        self.words = memoryview(self._mapping.export()).cast("B").cast("q")

    def row(self, worker: int) -> memoryview:
        return self.words[worker * ROW : (worker + 1) * ROW]

    def publish_bases(self, bases: Bases) -> None:
        """Said once for all workers; those that are forked in place of the first one find it there."""
        row = self.row(self.rows)
        if not row[Word.BASES]:
            row[Word.BASES + 1 : Word.BASES + 4] = memoryview(array("q", bases))
            row[Word.BASES] = 1

    def bases(self) -> Bases | None:
        """What the first worker has published, if it has."""
        row = self.row(self.rows)
        return Bases._make(row[Word.BASES + 1 : Word.BASES + 4]) if row[Word.BASES] else None

    def clear(self, worker: int) -> None:
        """Make a row ready for a new worker; its control words stay as they are."""
        row = self.row(worker)
        row[Word.STATE : ROW] = memoryview(bytes((ROW - Word.STATE) * 8)).cast("q")
        row[Word.BATCH] = -1
        row[Word.SINCE] = time.monotonic_ns()


def local_row() -> memoryview:
    """A row for a worker of this process, on no board."""
    row = memoryview(bytearray(ROW * 8)).cast("q")
    row[Word.BATCH] = -1
    row[Word.SINCE] = time.monotonic_ns()
    return row


class Recorder:
    """What a worker writes on its row: one call at each seam of a batch's way through it."""

    def __init__(self, row: memoryview, processor_ns: Callable[[], int] = time.process_time_ns) -> None:
        """`processor_ns` tells the processor time of whoever makes the batches."""
        self._row = row
        self._before = -1
        """The batch before the one under way."""
        self.effort = Effort(processor_ns)
        """What the batch made last took of processors."""
        self.costs = row[Word.COST :]
        """Counts of sample times."""
        self._clock = time.monotonic_ns
        self._last = row[Word.SINCE] or self._clock()
        self.started = self.fetched = self.collated = -1
        """Moments of the batch under way, ns of the monotonic clock; -1: not come to yet."""

    def idle(self) -> None:
        """No task is at hand."""
        self._enter(IDLE)

    def paused(self) -> None:
        self._enter(PAUSED)

    def retiring(self) -> None:
        self._enter(RETIRING)

    def skip(self) -> None:
        """A task was taken up that nobody wants any more."""
        self._row[Word.STARTED] += 1

    def moment(self) -> int:
        return self._clock()

    def start(self, batch: int) -> None:
        """A task was taken up."""
        self.started = self._enter(FETCHING)
        if self.started >= self.effort.due:
            self.effort.start()
        self.fetched = self.collated = -1
        row = self._row
        self._before = row[Word.BATCH]
        row[Word.BATCH] = batch
        row[Word.STARTED] += 1

    def sample(self, place: int, now: int) -> None:
        """The sample at this place of the batch is being made; -1: no sample is. Only told where somebody asks."""
        row = self._row
        row[Word.SAMPLE_SINCE] = now
        row[Word.SAMPLE] = place + 1

    def fetch_done(self) -> None:
        self.fetched = self._enter(COLLATING)

    def collate_done(self) -> None:
        self.collated = self._enter(SENDING)

    def encode_done(self, samples: int, nbytes: int) -> int:
        """The batch is in its slot or message, or has failed. Returns the moment."""
        row = self._row
        row[Word.BATCHES] += 1
        row[Word.SAMPLES] += samples
        row[Word.BYTES] += nbytes
        sent = self._sent()
        if self.effort.under_way:
            self.effort.end(sent)
        else:
            self.effort.processor = self.effort.queued = -1
        return sent

    def no_batch(self) -> int:
        """The task was for a batch that does not exist: its shard has ended. Returns the moment."""
        self._row[Word.BATCH] = self._before
        self.effort.processor = self.effort.queued = -1
        return self._sent()

    def _sent(self) -> int:
        row = self._row
        return self._clock() if row[Word.STATE] == SENDING else self._enter(SENDING)

    def _enter(self, state: int) -> int:
        now, row = self._clock(), self._row
        row[TIME_OF.get(row[Word.STATE], Word.IDLE)] += now - self._last
        row[Word.STATE] = state
        row[Word.SINCE] = self._last = now
        return now
