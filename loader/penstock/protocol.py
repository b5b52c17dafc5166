"""Every message between loader, backend and browser, and the one definition of every number in them.

Loader and backend speak MessagePack over `/ws/publish`; backend and browser speak JSON over `/ws/live` and HTTP.
The structs are the same, so a snapshot that a loader sends is what a browser shows.

Versions are (major, minor). Within a major version fields are only ever added, each with a default, and unknown
fields and unknown event kinds are ignored: either side may be the newer one.

Durations are integers in microseconds (`_us`), sizes are integers in bytes, moments are Unix seconds as floats. Where
there is one for every worker and nobody needs more, they are in milliseconds (`_ms`) and KiB (`_kib`): a snapshot of 16
workers, here or on other machines, stays below 2 KB, though they be a week old. What has its default is not sent.
What cannot be known of a loader is named in `unknown`: an older reader must still find a number in the field itself.
Counters only grow during one incarnation of a loader; rates are differences of counters and are worked out in one
place, `penstock/insight/rates.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

PROTOCOL = (2, 4)
"""This description's version: (major, minor)."""

MAX_MESSAGE = 1 << 20
"""The largest message either side may send, in bytes."""

MAX_WORKERS = 1024
"""The most workers one loader may report."""

# Structs of which a dashboard has very many are not looked at by the garbage collector (`gc=False`): they are frozen,
# so no cycle can be made of them, and looking at them took most of the time that decoding a message takes.

_UNNAMEABLE = re.compile(r"[^A-Za-z0-9._-]+")

Label = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
"""A run or loader name: it appears in addresses and in Prometheus labels, so its alphabet is small."""

Text = Annotated[str, Meta(max_length=256)]
LongText = Annotated[str, Meta(max_length=16384)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
"""A number of things, or of bytes or microseconds: never negative."""
Moment = Annotated[float, Meta(ge=0, le=1e11)]
"""Unix time, s."""
Unknown = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)]
"""Names of fields whose value is not known: what stands there means nothing. A field within another is written with a
dot; a name stands for all that is within it: `queues`, `queues.data`, `workers.fetch_us` (of every worker)."""


def label(text: str) -> str:
    """Turn any text into a Label."""
    return _UNNAMEABLE.sub("-", text).strip("-")[:64] or "unnamed"


def loader_id(run: str, rank: int, name: str) -> str:
    """How one loader is addressed everywhere: `run:rank:name`."""
    return f"{run}:{rank}:{name}"


LoaderState = Literal["idle", "running", "paused", "finished", "failed", "closed"]
"""What the loader says of itself. idle: no epoch has begun. running: one is under way. paused: held by a command.
finished: the last epoch ended, or was left early. failed: it ended with an error. closed: `close()` was called."""

Presence = Literal["connected", "stale", "lost", "finished"]
"""What the backend says of the connection. stale: silent for 3 intervals. lost: silent for long, no goodbye."""

Place = Literal["shown", "pinned", "hidden"]
"""Where a run stands in the overview. pinned: above the others, and kept longer than they are. hidden: left out, unless
hidden runs are asked for."""

WorkerState = Literal["starting", "idle", "fetching", "collating", "sending", "paused", "retiring", "dead"]

PinMode = Literal["off", "accelerator", "mlock", "none"]
"""off: not asked for. accelerator: copied by `tensor.pin_memory()`. mlock: slots page-locked in place.
none: asked for, but neither was possible."""


WindowReason = Literal["", "start", "grown", "most", "memory", "given"]
"""Why the window is as large as it is. start: as many tasks as torch has; nothing showed that more would help. grown:
training waited although workers could have made more. most: grown as far as it ever does. memory: it would have grown
further, but for the memory budget. given: by `prefetch_factor`. Empty: there is none, or the loader does not tell."""


# ---------------------------------------------------------------------------------------------- snapshots


class Queues(Struct, frozen=True, array_like=True, gc=False):
    """How full every stage of the pipeline is at one moment."""

    index: Count = 0
    """Tasks handed to workers and not started, summed over workers."""
    in_flight: Count = 0
    """Tasks dispatched and not yet yielded."""
    window: Count = 0
    """The most tasks that may be in flight now."""
    reorder: Count = 0
    """Finished batches that wait because an earlier one is not finished."""
    reorder_bytes: Count = 0
    """Size of the finished batches in the reorder buffer."""
    pin: Count = 0
    """Batches handed to the pin stage and not through it."""
    data: Count = 0
    """Batches ready to be yielded."""
    slots_used: Count = 0
    """Slots that carry a batch, in the pipeline or held by training."""
    slots_free: Count = 0
    """Slots that wait for a batch."""
    slots_bytes: Count = 0
    """Shared memory in all slots."""
    finished_bytes: Count = 0
    """Size of all finished batches in the pipeline (reorder buffer, pin stage, data queue)."""
    memory_budget: Count = 0
    """Byte limit for finished batches that training has not taken."""
    window_reason: WindowReason = ""
    """Why the window is as large as it is. Since 2.4."""


class Times(Struct, frozen=True, array_like=True, gc=False):
    """Where the training thread's time went: all of it since the first `next()`, and samplers in `iter()` before."""

    compute_us: Count = 0
    """Between two calls of `next()`: the time is training's own."""
    starvation_us: Count = 0
    """In `next()`, and no batch at all was finished; and what `next()` takes itself."""
    reorder_stall_us: Count = 0
    """In `next()`, and a later batch was finished but the next one was not."""
    pin_wait_us: Count = 0
    """In `next()`, and the next batch was finished but not through the pin stage."""
    paused_us: Count = 0
    """In `next()`, and nothing was ready because the pool is paused."""
    startup_us: Count = 0
    """In `next()`, before the epoch's first batch was finished."""
    sampler_us: Count = 0
    """In `next()` or `iter()`, while the sampler was drawn from."""


class Worker(Struct, frozen=True, array_like=True, gc=False):
    """One worker process. Times are sums since its birth, the state under way included."""

    id: Count
    """Its number in the pool, from 0."""
    pid: Count
    """Its process id; 0: it is still to be born."""
    state: WorkerState
    """What it is doing now."""
    state_ms: Count = 0
    """Time in this state."""
    batch: int = -1
    """Batch index it works at, or worked at last; -1: none yet. For an iterable-style dataset, the number within the
    shard."""
    index_queue: Count = 0
    """Tasks handed to it and not started."""
    batches: Count = 0
    """Batches it made since its birth, failed ones included."""
    samples: Count = 0
    """Samples in the batches that it made."""
    sent_kib: Count = 0
    """Size of the tensors and arrays in the batches that it made."""
    fetch_us: Count = 0
    """Time in the dataset."""
    collate_us: Count = 0
    """Time in collate_fn."""
    send_us: Count = 0
    """Time to place the batch into its slot or message and to send it."""
    idle_ms: Count = 0
    """Time without a task, paused time included."""
    rss: Count = 0
    """Resident memory; 0: not known."""
    cpu_ms: Count = 0
    """Processor time used, user and system."""
    queued_ms: Count = 0
    """Time in which it was ready to run and waited for a processor. Since 2.2."""


class Machine(Struct, frozen=True, array_like=True, gc=False):
    """Another machine with workers of this loader. Sums are since the workers' pool was made. Since 2.3."""

    name: Text
    """Its host name; where several agents run on one, with the port."""
    workers: Annotated[list[Count], Meta(max_length=MAX_WORKERS)] = field(default_factory=list)
    """Numbers of the workers that run there."""
    processors: Count = 0
    """Processors that its agent may use; 0: it cannot be reached now, and is dialed."""
    received_kib: Count = 0
    """Bytes that came from there: batches, and what is said about workers."""
    full_ms: Count = 0
    """Time in which finished batches waited there because the network took no more."""
    way_us: Count = 0
    """Time from a batch's last step there to its arrival here, as a mean over the last ones."""
    lost: Count = 0
    """Tasks that had to be given to others because the machine, or the way there, was lost."""


class Processors(Struct, frozen=True, array_like=True, gc=False):
    """What this process and its workers may run on. Sums are since the loader was first looked at. Since 2.2."""

    allowed: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Processors that this process may use, by its affinity and its control group's quota; 0: not known."""
    others_ms: Count = 0
    """Time on the processors of the affinity that was neither this process's nor its workers'."""
    training_ms: Count = 0
    """Processor time of the training process itself, all threads."""


class CacheUse(Struct, frozen=True, array_like=True, gc=False):
    """The cache that the dataset is (`penstock.cached`). Counts are those of all who have it from this process: its
    workers, and other loaders of the same dataset. Since 2.2."""

    samples: Count = 0
    """Samples kept, by all processes that share it."""
    bytes: Count = 0
    """Bytes that they take."""
    budget: Count = 0
    """Bytes that they may take."""
    hits: Count = 0
    """Samples that were read from it."""
    misses: Count = 0
    """Samples that had to be made."""
    saved_us: Count = 0
    """Time that the samples read took when they were made, less what it took to read them."""
    failed: Text = ""
    """Why the training process keeps nothing more, though there is room; empty: nothing is wrong."""


class PinStage(Struct, frozen=True, array_like=True, gc=False):
    """What passed the pin stage since the loader was made."""

    mode: PinMode = "off"
    """How batches are page-locked, if they are."""
    batches: Count = 0
    """Batches that passed the stage."""
    bytes: Count = 0
    """Bytes of tensors that were pinned; in mode mlock, of what lies in slots that are page-locked."""
    us: Count = 0
    """Time spent in the stage."""


class SampleCost(Struct, frozen=True, array_like=True, gc=False):
    """How long single samples took to fetch, this epoch. Quantiles are right to within 6 %.

    Samples below 5 µs are timed in one batch of 16. Those of a dataset with `__getitems__` come together: each counts
    with the mean of its batch. What persistent workers make ahead for the next epoch counts in the one in which it is
    made.
    """

    count: Count = 0
    """Samples that were timed."""
    p50_us: Count = 0
    """Half of the samples took no longer than this."""
    p95_us: Count = 0
    """19 of 20 samples took no longer than this."""
    p99_us: Count = 0
    """99 of 100 samples took no longer than this."""
    max_us: Count = 0
    """Time of the slowest sample."""
    max_index: Text = ""
    """Index of the slowest sample, as the sampler gave it, or its number in its shard; empty where only a batch's mean
    is known."""


class SlowSample(Struct, frozen=True, array_like=True, gc=False):
    """One of the slowest samples of an epoch."""

    index: Text
    """As the sampler gave it, or its number in its shard."""
    us: Count
    """Time that it took to fetch."""
    batch: int = -1
    """The batch that it is in; for an iterable-style dataset with workers, its number within its shard. Since 2.3."""
    worker: int = -1
    """The worker that fetched it; 0 if training did. Since 2.3."""
    fetch_us: Count = 0
    """Time that all samples of its batch took to fetch. Since 2.3."""
    collate_us: Count = 0
    """Time that its batch took to collate. Since 2.3."""
    send_us: Count = 0
    """Time that its batch took to be sent. Since 2.3."""
    stack: LongText = ""
    """The Python stack at which most of its time was seen, innermost call first; empty if no profile was taken
    meanwhile, or the sample was too short to be seen. In what is published only of the slowest few, and only the user's
    own functions. Since 2.3."""


class HotLine(Struct, frozen=True, array_like=True, gc=False):
    """The function of the user's own that costs most, by the last profile. Since 2.3."""

    clock: Literal["wall", "processor"]
    """By time that passed, or by time on a processor."""
    function: Text
    """Its qualified name."""
    file: Text
    """Where it is defined."""
    line: Count
    """Its most costly line."""
    share: Annotated[float, Meta(ge=0, le=1)]
    """Its part of the time in which workers make batches, with the libraries that it calls."""
    at: Moment = 0.0
    """When that was last seen."""


class Stalls(Struct, frozen=True, array_like=True, gc=False):
    """Reorder stalls since the loader was made."""

    count: Count = 0
    """Reorder stalls that ended so far."""
    us: Count = 0
    """Total length of the reorder stalls that ended so far."""


class Quarantined(Struct, frozen=True):
    """A sample, or a batch, that failed and was left out or replaced. Since 2.2."""

    index: Text = ""
    """The sample's index; empty: of a stream, or a whole batch."""
    where: Literal["dataset", "collate_fn"] = "dataset"
    """The user's function that raised."""
    error: LongText = ""
    """Type and message of the exception."""
    traceback: LongText = ""
    """Where it was raised; left out in what is published."""
    times: Count = 0
    """How often it was tried."""
    epoch: Count = 0
    """The epoch in which it failed last."""
    batch: Count = 0
    """The batch in which it failed last."""
    number: bool = True
    """The index is a number; else a text, or what something else looks like."""


TunerState = Literal["measuring", "trying", "returning", "holding", "pinned"]
"""What a tuner is at."""


class Tuned(Struct, frozen=True):
    """What the tuner is at, of a loader that has one at work. Since 2.2."""

    state: TunerState = "measuring"
    """measuring: how it stands. trying: another number of workers. returning: back from one that was no better.
    holding: settled. pinned: a person has chosen the number."""
    workers: Count = 0
    """The number of workers that is held when nothing is tried."""
    ranks: Count = 1
    """Loaders of this host, this one included, that are tuned together."""
    label: Text = ""
    """How it stands, in a word, as on a switch: on, pinned. Since 2.3."""
    text: Text = ""
    """What it is at, in a few words: "settled at 6, together with 3 more on this host". Since 2.3."""


class Errors(Struct, frozen=True, array_like=True, gc=False):
    """Errors that training met, in dataset, collate_fn, sampler, worker_init_fn, in loading, or in its own loop."""

    count: Count
    """How many so far, those included that training caught."""
    at: Moment
    """When the last one came."""
    text: Text
    """Type and message of the last one."""
    where: Text = ""
    """As in `ErrorEvent`."""
    fatal: bool = False
    """Nobody caught it: the process ends with it, or the `with` block of the loader did."""


class Hang(Struct, frozen=True, array_like=True, gc=False):
    """A wait of training for one batch that lasts unusually long, and still does. Since 2.2."""

    us: Count
    """How long it has lasted."""
    cause: Text
    """Why nothing is ready, named like the kind of time in `Times`: `reorder_stall`, `starvation`, …"""
    batch: Count
    """The batch that is waited for."""
    worker: int = -1
    """The worker that had it when that was looked at last; -1: none, or training makes it itself."""


class Glances(Struct, frozen=True, array_like=True, gc=False):
    """What workers with a batch in hand were seen to wait for, looked at now and then, since the loader was made."""

    times: Count = 0
    """How often somebody was looked at; 0: the system does not say."""
    crowded: Count = 0
    """How often somebody waited for a lock that another process had."""
    workers: Count = 0
    """Workers that were looked at, all times together."""
    locked: Count = 0
    """How many of the workers that were looked at waited for a lock."""
    asleep: Count = 0
    """How many of the workers that were looked at slept."""
    other: Count = 0
    """How many of the workers that were looked at waited for something else, as storage or the network; the rest
    ran, or were ready to."""


class Between(Struct, frozen=True, array_like=True, gc=False):
    """What the loader saw between two snapshots, so that spikes survive a slow pace. Since 2.3."""

    looks: Annotated[int, Meta(ge=1, le=1 << 20)]
    """How often it looked, the snapshot included."""
    low: Rates
    """The least of each rate from one look to the next."""
    high: Rates
    """The greatest of each."""


class Snapshot(Struct, frozen=True, tag="snapshot", gc=False):
    """One loader at one moment."""

    seq: Count
    """Number of this message among all sequenced messages (snapshots, events, goodbye) of the incarnation."""
    at: Moment
    """When it was taken, by the loader's clock."""
    state: LoaderState
    """What the loader says of itself."""
    epoch: Count = 0
    """Number of the epoch under way or last ended, from 0."""
    batch: Count = 0
    """Batches yielded in this epoch."""
    length: Count | None = None
    """Batches in an epoch, where known."""
    batches: Count = 0
    """Batches yielded since the loader was made."""
    samples: Count = 0
    """Samples yielded since the loader was made."""
    bytes: Count = 0
    """Bytes of the tensors and arrays yielded since the loader was made."""
    target: Count = 0
    """Workers asked for."""
    pending: Count | None = None
    """Workers asked for from the next epoch on, while that is still to come."""
    queues: Queues = field(default_factory=Queues)
    """How full every stage is."""
    times: Times = field(default_factory=Times)
    """The training thread's time since the loader was made."""
    epoch_times: Times = field(default_factory=Times)
    """The training thread's time in this epoch."""
    stalls: Stalls = field(default_factory=Stalls)
    """Reorder stalls so far."""
    pin: PinStage = field(default_factory=PinStage)
    """What passed the pin stage."""
    cost: SampleCost = field(default_factory=SampleCost)
    """How long samples take."""
    workers: Annotated[list[Worker], Meta(max_length=MAX_WORKERS)] = field(default_factory=list)
    """All workers that exist, or are being made, by id."""
    digest: Text = ""
    """Rolling digest over (epoch, batch index, sample indices, seed) of everything yielded."""
    recoveries: Count = 0
    """Dead workers replaced so far."""
    dropped: Count = 0
    """Sequenced messages and events lost to full buffers so far."""
    slowest: Annotated[list[SlowSample], Meta(max_length=1000)] = field(default_factory=list)
    """The slowest samples of the epoch, the slowest first, if `record_samples` asked for them."""
    unknown: Unknown | UnsetType = UNSET
    """What cannot be seen of it, because it is only watched or the system does not tell. Left out where all is known.
    Since 2.1."""
    processors: Processors = field(default_factory=Processors)
    """What this process and its workers may run on. Since 2.2."""
    bad: Count = 0
    """Samples, and batches, that are in quarantine. Since 2.2."""
    quarantined: Annotated[list[Quarantined], Meta(max_length=100_000)] = field(default_factory=list)
    """Which they are, the oldest first; in what is published the newest few. Since 2.2."""
    tuned: Tuned | None = None
    """None: the tuner is off. Since 2.2."""
    errors: Errors | UnsetType = UNSET
    """Left out where there was none. Since 2.2."""
    cache: CacheUse | UnsetType | None = UNSET
    """Left out where the dataset is no cache. Since 2.2."""
    hang: Hang | UnsetType = UNSET
    """Left out where training does not wait, or not for long. Since 2.2."""
    glances: Glances | UnsetType = UNSET
    """Left out where nothing was seen. Since 2.2."""
    between: Between | UnsetType = UNSET
    """What was seen since the snapshot before, if the loader looked more often than it publishes. Since 2.3."""
    hottest: Annotated[list[HotLine], Meta(max_length=2)] | UnsetType = UNSET
    """By each clock. Left out where no profile was taken, or it saw none of the user's own functions. Since 2.3."""
    machines: Annotated[list[Machine], Meta(max_length=MAX_WORKERS)] | UnsetType = UNSET
    """Other machines that make batches, or should. Left out where all workers run here. Since 2.3."""

    def knows(self, name: str) -> bool:
        """Whether a field, named as in `Unknown`, says anything."""
        if self.unknown is UNSET:
            return True
        return not any(name == each or name.startswith(f"{each}.") for each in self.unknown)

    def elsewhere(self) -> dict[int, Machine]:
        """Number of each worker that runs on another machine → that machine."""
        if self.machines is UNSET:
            return {}
        return {number: machine for machine in self.machines for number in machine.workers}

    def __str__(self) -> str:
        """A small table for a person."""
        from .telemetry.report import report

        return report(self)


class Published(Snapshot, frozen=True, tag="snapshot", gc=False, omit_defaults=True):
    """A snapshot as a loader sends it: what has its default is left out, and is the default again where it is read."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Published:
        return cls(*msgspec.structs.astuple(snapshot))


# ------------------------------------------------------------------------------------------------ verdict

Limit = Literal[
    "none",
    "training",
    "workers",
    "processors",
    "neighbours",
    "shared",
    "samples",
    "pin",
    "sampler",
    "memory",
    "network",
    "startup",
    "failure",
]
"""What keeps training from being faster.
none: nothing can be named, because nothing runs, too little was seen, or it cannot be seen from outside.
training: its own steps; data is ready before it is asked for.
workers: there are too few of them for what a sample takes.
processors: this process has no more of them to give; the workers use all of them.
neighbours: other processes take the processors that the workers need.
shared: something of which there is one for all workers, as a lock; more workers do not make more batches.
samples: single slow batches, behind which finished ones wait.
pin: the pin stage.
sampler: the sampler, which runs in the training thread.
memory: the memory budget, because of which no more batches may be made ahead.
network: batches are larger than what comes from other machines carries.
startup: the time until an epoch's first batch.
failure: an error, or workers that keep dying."""

Stage = Literal["sampler", "index", "workers", "reorder", "pin", "data", "training"]
"""A stage on the way of a batch."""


class Verdict(Struct, frozen=True):
    """What limits training now, in words, and what to do about it. Since 2.2."""

    tone: Literal["good", "warn", "bad", "plain"] = "plain"
    """How bad that is; plain: neither good nor bad."""
    verdict: Text = ""
    """In a word or two."""
    sentence: LongText = ""
    """What was seen, and what follows from it."""
    advice: LongText = ""
    """What to do about it; empty: nothing."""
    limit: Limit = "none"
    """What keeps training from being faster."""
    stage: Stage | None = None
    """The stage of the pipeline that limits; None: there is none to name."""
    waiting: float | None = None
    """Share of the time, 0 to 1, in which training waited for data, of what was looked at; None: not known."""
    workers: Count | None = None
    """The number of workers that is advised; None: none is."""
    offer: Text = ""
    """What that would bring, as on a button: "Apply 16: 48 → about 185 batches/s"; empty: nothing is promised."""
    brings: float | None = None
    """Batches a second that are predicted of it; None: nothing is."""
    brings_low: float | None = None
    """Lower end of the interval in which that is nine times out of ten."""
    brings_high: float | None = None
    """Upper end of it."""
    line: HotLine | None = None
    """The line that costs most of what limits; None: there is no profile that says so. Since 2.3."""


class MachineRates(Struct, frozen=True, array_like=True):
    """What came from another machine over the last seconds. None: that is not known yet. Since 2.3."""

    bytes: float | None = None
    """Bytes per second that came from there."""
    full: float | None = None
    """Share of the time, 0 to 1, in which finished batches waited there because the network took no more."""
    text: Text = ""
    """How it stands with the machine, in a line."""


class Stats(Snapshot, frozen=True, tag="stats"):
    """What `DataLoader.stats()` returns: a snapshot, and the verdict on it."""

    verdict: Verdict = Verdict()
    """What limits training, as of this snapshot and those before it."""
    network: list[MachineRates] = field(default_factory=list)
    """What came from each of `machines` over the last seconds, in their order. Since 2.3."""


# ------------------------------------------------------------------------------------------------- events


class Span(Struct, frozen=True, array_like=True):
    """The life of one batch. Moments are microseconds after `Spans.base`; -1: it did not happen (yet)."""

    worker: Count
    """The worker that made it; 0 if training did."""
    epoch: Count
    """Number of the epoch, from 0."""
    batch: Count
    """Batch index; for an iterable-style dataset with workers, its number within its shard."""
    start_us: int
    """The worker took the task up."""
    fetched_us: int
    """All samples were there."""
    collated_us: int
    """The samples were made into a batch."""
    sent_us: int
    """It was in its slot or message, or had failed."""
    yielded_us: int
    """Training got it."""


class Spans(Struct, frozen=True, tag="spans", tag_field="kind"):
    """Batch spans for the timeline: every batch at low rates, every `stride`-th at high ones."""

    at: Moment
    """When it was told."""
    base: Moment
    """Unix time of 0 µs."""
    spans: Annotated[list[Span], Meta(max_length=4096)]
    """Batches that are told for the first time."""
    stride: Count = 1
    """Of the batches, by their number, one of so many is told."""
    late: Annotated[list[Span], Meta(max_length=4096)] = field(default_factory=list)
    """Batches that were told before they were yielded, once more, now that they are."""


class Stall(Struct, frozen=True, tag="stall", tag_field="kind"):
    """Training waited for one batch while later ones were finished, or unusually long.

    One that lasts is told while it does, and again when something of it has changed: of those with the same epoch and
    batch, the last one holds."""

    at: Moment
    """When it began."""
    us: Count
    """How long it lasted, or has lasted so far."""
    held_back: Count
    """Finished batches that had to wait."""
    epoch: Count
    """Number of the epoch, from 0."""
    batch: Count
    """The batch that was waited for."""
    worker: int = -1
    """The worker that had it; -1: none had it yet."""
    slowest_index: Text = ""
    """The slowest sample of that batch; empty where that is not known."""
    slowest_us: Count = 0
    """Time of the slowest sample, or of a sample on average."""
    stack: LongText = ""
    """The Python stack of the worker, or of training if it makes the batch itself, innermost call first, taken while
    the stall lasted; empty if it was short."""
    brief: LongText = ""
    """Of the stack, the user's own functions; empty if there are none. Since 2.2."""
    silence: Text = ""
    """Why there is no stack; empty: there is one, or the stall was short. Since 2.2."""
    ongoing: bool = False
    """It lasted when this was told. Since 2.2."""
    cause: Text = "reorder_stall"
    """Why nothing was ready, as in `Hang`. Since 2.2."""


class StackEvent(Struct, frozen=True, tag="stack", tag_field="kind"):
    """What a worker, or training, was doing when somebody asked. Since 2.2."""

    at: Moment
    """When it was looked at."""
    worker: int
    """The worker; -1: the thread of training that iterates."""
    pid: Count = 0
    """Process id of the worker or of training; 0: it is still to be born."""
    stack: LongText = ""
    """Its Python stack, innermost call first; empty if it did not answer."""
    brief: LongText = ""
    """Of the stack, the user's own functions; empty if there are none."""
    silence: Text = ""
    """Why there is no stack; empty: there is one."""
    state: Text = ""
    """What the worker was at, as in `Worker`; empty for training."""
    batch: int = -1
    """The batch, as in `Worker`."""
    by: Text = ""
    """Who asked, as in `CommandEvent`."""
    command: Text = ""
    """The command's id; empty for a local call."""
    place: Count = 0
    """Its number, from 0, among those that were asked for at once."""
    among: Count = 1
    """How many were."""


class WorkerEvent(Struct, frozen=True, tag="worker", tag_field="kind"):
    """A worker was born, retired as it was told to, or died."""

    at: Moment
    """When it was noticed."""
    what: Literal["born", "retired", "died"]
    """What happened to it."""
    worker: Count
    """Its number in the pool, from 0."""
    pid: Count
    """Its process id."""
    exitcode: int = 0
    """As in `multiprocessing`: negative for a signal."""
    signal: Text = ""
    """The signal's name, if one ended it."""
    batch: int = -1
    """The batch it was working at, as in `Worker.batch`; -1: none."""
    retried: bool = False
    """The worker's unfinished tasks went to others."""
    others: Annotated[list[tuple[Count, Count]], Meta(max_length=MAX_WORKERS)] = field(default_factory=list)
    """(worker, pid) of those that were born, or retired, with it, if there were many. Since 2.2."""


class EpochEvent(Struct, frozen=True, tag="epoch", tag_field="kind"):
    """An epoch began, or ended in one way or another."""

    at: Moment
    """When it happened."""
    what: Literal["started", "ended", "abandoned", "failed"]
    """abandoned: training left it early. failed: it ended with an error."""
    epoch: Count
    """Number of the epoch, from 0."""
    batches: Count = 0
    """Batches yielded in the epoch."""
    reason: LongText = ""
    """Of a failed one: type and message of the error; else empty."""


class CommandEvent(Struct, frozen=True, tag="command", tag_field="kind"):
    """A pause, resume or resize and what came of it, wherever it came from."""

    at: Moment
    """When it got there."""
    action: Text
    """As in `Order`."""
    state: CommandState
    """How far it is."""
    by: Text = ""
    """The token's name; "local" for a call in the training process; "timer" for the end of a pause with a limit."""
    command: Text = ""
    """The command's id; empty for a local call."""
    asked: int | None = None
    """Workers asked for."""
    before: int | None = None
    """Workers before."""
    actual: int | None = None
    """Workers after."""
    at_batch: int | None = None
    """Batch index from which it holds."""
    took_us: Count = 0
    """From the call to its effect."""
    reason: Text = ""
    """Why it was rejected, superseded, or has to wait; else empty."""


class ErrorEvent(Struct, frozen=True, tag="error", tag_field="kind"):
    """An exception that training met, whether or not it caught it. Since 2.2."""

    at: Moment
    """When it was raised in training."""
    where: Text
    """dataset, collate_fn, sampler, worker_init_fn: the user's function that raised. worker: one was lost. loading:
    anything else in the loader. training: the process ended with an exception of its own."""
    type: Text
    """The exception's type."""
    message: Annotated[str, Meta(max_length=1024)] = ""
    """The exception's message, of a long one the beginning."""
    epoch: Count = 0
    """Number of the epoch, from 0."""
    batch: int = -1
    """The batch that failed; -1: it is not about a batch."""
    worker: int = -1
    """The worker in which it was raised; -1: in training itself."""
    sample: Text = ""
    """Index of the sample at which it was raised, or its number in the batch; empty where that is not known."""
    traceback: LongText = ""
    """Where it was raised, in the worker if it was there; empty where that is not known."""
    fatal: bool = False
    """Nobody caught it, as in `Errors`."""
    more: Count = 0
    """Errors like it that were counted and not told since the last one that was."""
    tolerated: bool = False
    """Training did not see it: the sample or batch was left out or replaced (`on_error`)."""


class QuarantineEvent(Struct, frozen=True, tag="quarantine", tag_field="kind"):
    """Samples that were found to be bad, each once, with what was known of them then. Since 2.2."""

    at: Moment
    """When it was told."""
    found: Annotated[list[Quarantined], Meta(max_length=1024)] = field(default_factory=list)
    """Without tracebacks; of long errors the beginning."""


class ProfileFunction(Struct, frozen=True, array_like=True):
    """A function that was seen by a profile."""

    name: Text
    """Its qualified name."""
    file: Text
    """Of a long path, its end."""
    line: Count
    """The first one of its definition."""
    user: bool
    """It is the user's own code, and not a library's."""


class ProfileWeights(Struct, frozen=True, array_like=True):
    """The time that was seen at nodes of a profile's call tree, of one worker in one phase. Columns are parallel."""

    worker: Count
    """The worker's number in the pool, from 0; 0 if training makes batches itself."""
    phase: Literal["fetch", "collate", "send"]
    """What the worker did: asked the dataset, collated, or sent."""
    nodes: Annotated[list[Count], Meta(max_length=65536)]
    """Numbers as `ProfilePart.nodes` gives them."""
    wall_ms: Annotated[list[Count], Meta(max_length=65536)]
    """Time that passed."""
    processor_ms: Annotated[list[Count], Meta(max_length=65536)]
    """Time of it on a processor."""


class ProfilePart(Struct, frozen=True, tag="profile", tag_field="kind"):
    """What a profile has seen since its part before. Parts add up: `penstock.profiling` puts them together.
    Since 2.2."""

    at: Moment
    """When it was told."""
    profile: Text
    """The profile's name: that of the command that asked for it, if one did."""
    part: Count
    """Its number in the profile, from 0."""
    began: Moment = 0.0
    """When the profile began."""
    seconds: float = 0.0
    """For how long it has lasted."""
    rate: float = 50.0
    """Looks a second at each worker."""
    ended: bool = False
    """It is the last one."""
    functions: Annotated[list[ProfileFunction], Meta(max_length=65536)] = field(default_factory=list)
    """Those that are new. They are numbered from 0 over all parts."""
    nodes: Annotated[list[Count], Meta(max_length=65536)] = field(default_factory=list)
    """Nodes of the call tree that are new, three numbers each: caller, function, and the line at which it was seen.
    They are numbered from 1 over all parts; 0 is the root, below which batches are made."""
    weights: Annotated[list[ProfileWeights], Meta(max_length=4096)] = field(default_factory=list)
    """The time that was seen since the part before."""
    idle_ms: Annotated[list[tuple[Count, Count]], Meta(max_length=1024)] = field(default_factory=list)
    """(worker, time in which it had nothing to do)."""


class TuningEvent(Struct, frozen=True, tag="tuning", tag_field="kind"):
    """A step of the tuner. Since 2.2."""

    at: Moment
    """When the tuner decided it."""
    what: Literal["on", "off", "pinned", "try", "keep", "back", "hold", "wake", "halve"]
    """on, off: somebody switched it. pinned: somebody chose a number, which holds until it is switched on again. try: a
    number is tried. keep, back: what came of that. hold: it is settled. wake: the load is another one. halve: memory is
    nearly used up."""
    workers: Count
    """Workers that there shall be from now on."""
    before: Count
    """Workers that there were."""
    why: Text = ""
    """Why, in words."""
    predicted: float | None = None
    """Batches a second that were expected of the number that is, or was, tried."""
    measured: float | None = None
    """Batches a second that were measured: with `before` when a trial begins, with the tried number when it ends."""


Brought = Literal["better", "same", "worse", "unknown"]
"""What a change brought: more batches a second, as many as far as can be said, fewer, or that is not known."""


class Receipt(Struct, frozen=True, tag="receipt", tag_field="kind"):
    """What a change of the number of workers was predicted to bring, and what it brought. Since 2.2."""

    at: Moment
    """When enough was seen."""
    before: Count
    """Workers before."""
    after: Count
    """Workers after."""
    measured: float
    """Batches a second that workers made, or that training took if that is less."""
    error: float
    """Nine times out of ten that is right within so much, relative to it."""
    batches: Count
    """Batches of which it was measured."""
    measured_before: float | None = None
    """The same before the change; None: that is not known."""
    predicted: float | None = None
    """Batches a second, as predicted; None: not enough was seen then."""
    low: float = 0.0
    """Lower end of the interval that was predicted."""
    high: float = 0.0
    """Upper end of it."""
    brought: Brought = "unknown"
    """Whether that is more than before."""
    text: Text = ""
    """All this in a sentence."""
    by: Text = ""
    """Who asked for it, as in `CommandEvent`."""
    command: Text = ""
    """The command's id; empty for a local call."""


class Note(Struct, frozen=True, tag="note", tag_field="kind"):
    """A word from the training script about what it does: `train.note("lr drop")`. Since 2.3."""

    at: Moment
    """When it was said."""
    text: Text
    """What was said."""
    epoch: Count = 0
    """The epoch under way, or last ended."""
    batch: Count = 0
    """Batches yielded in it."""


Event = (
    Spans
    | Stall
    | StackEvent
    | WorkerEvent
    | EpochEvent
    | CommandEvent
    | ErrorEvent
    | QuarantineEvent
    | ProfilePart
    | TuningEvent
    | Receipt
    | Note
)


class Events(Struct, frozen=True, tag="events"):
    """What happened since the last message."""

    seq: Count
    """Number of this message, as in `Snapshot`."""
    events: Annotated[list[Event], Meta(max_length=1024)]
    """The oldest first."""


# ----------------------------------------------------------------------------------------------- commands

CommandState = Literal["accepted", "delivered", "pending", "applied", "rejected", "timed_out", "superseded"]
"""accepted → delivered → (pending →) applied | rejected | timed_out | superseded.
pending: the loader will apply it at the next epoch."""


class Resize(Struct, frozen=True, tag="resize", tag_field="action"):
    """Bring about a number of workers."""

    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
    """The number of workers there shall be."""

    since: ClassVar = (2, 0)
    concern: ClassVar = "size"


class Pause(Struct, frozen=True, tag="pause", tag_field="action"):
    """Hold the workers after the batch they are at."""

    resume_after: Annotated[float, Meta(gt=0, le=86400)] | None = None
    """Resume by itself after so many seconds."""

    since: ClassVar = (2, 0)
    concern: ClassVar = "pause"


class Resume(Struct, frozen=True, tag="resume", tag_field="action"):
    """End a pause."""

    since: ClassVar = (2, 0)
    concern: ClassVar = "pause"


class TakeProfile(Struct, frozen=True, tag="profile", tag_field="action"):
    """Look at which lines the workers spend their time.

    What they see comes as events of the kind `profile`. One that is under way ends."""

    seconds: Annotated[float, Meta(ge=0, le=3600)] | None = 10.0
    """For how long; None: until another one, or 0 seconds, is asked for; 0: only end the one under way."""
    rate: Annotated[float, Meta(ge=1, le=200)] = 50.0
    """Looks a second at each worker."""

    since: ClassVar = (2, 2)
    concern: ClassVar = "profile"


class Auto(Struct, frozen=True, tag="auto", tag_field="action"):
    """Let the tuner choose the number of workers, or not."""

    on: bool
    """True: the tuner chooses from now on, whatever was pinned. False: the number stays as it is."""

    since: ClassVar = (2, 2)
    concern: ClassVar = "auto"


class ShowStack(Struct, frozen=True, tag="stack", tag_field="action"):
    """Look at what a worker is doing now: its Python stack.

    It comes as an event of the kind `stack`, one for each worker that was asked for."""

    worker: Annotated[int, Meta(ge=-1, lt=2 * MAX_WORKERS)] | None = None
    """Which; None: all of them, or training if there are none; -1: the thread of training that iterates."""

    since: ClassVar = (2, 2)
    concern: ClassVar = ""


Order: TypeAlias = Resize | Pause | Resume | TakeProfile | Auto | ShowStack
"""What can be asked of a loader: a target to bring about, so that twice is the same as once; or something to look at.

Each says the first version of the protocol that has it (`since`: older loaders are not asked), and what it is about
(`concern`: a newer order takes the place of an older one with the same concern; "": it takes nobody's)."""

ORDERS: dict[str, type[Order]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Order)}
"""Action → the type of order."""


def action_of(order: Order) -> str:
    """What an order is called on the wire, in the API and in the terminal."""
    return str(order.__struct_config__.tag)


class Command(Struct, frozen=True):
    """Backend to loader: an order to follow. On the wire the fields of the order stand beside `id` and `by`, and the
    message's `type` is `command`."""

    id: Text
    """Name of the command, by which its outcome is told."""
    order: Order
    """What is to be done."""
    by: Text = ""
    """Name of the token that asked."""

    def flat(self) -> dict[str, object]:
        """As it is sent."""
        return {"type": "command", "id": self.id, **msgspec.to_builtins(self.order), "by": self.by}

    @staticmethod
    def decode(data: bytes) -> Command:
        """Read what `flat` gave, in MessagePack.

        Raises:
            msgspec.DecodeError: It is not a command, or one of a kind that only a newer backend has.
        """
        envelope = msgspec.msgpack.decode(data, type=_Envelope)
        return Command(envelope.id, msgspec.msgpack.decode(data, type=Order), envelope.by)


class _Envelope(Struct, frozen=True, tag="command"):
    """The part of a flat command that does not depend on the order."""

    id: Text
    by: Text = ""


class Outcome(Struct, frozen=True, tag="outcome"):
    """Loader to backend: what became of a command."""

    command: Text
    """The command's id."""
    state: Literal["delivered", "pending", "applied", "rejected", "superseded"]
    """How far it is."""
    at: Moment
    """When it got there, by the loader's clock."""
    actual: int | None = None
    """Workers there are now."""
    at_batch: int | None = None
    """Batch index from which it holds."""
    took_us: Count = 0
    """From receipt to effect."""
    reason: Text = ""
    """Why it was rejected, superseded, or has to wait; else empty."""


# ---------------------------------------------------------------------------------------- loader ↔ backend


class Identity(Struct, frozen=True):
    """Which loader of which process of which run it is."""

    run: Label
    """Name of the training job."""
    name: Label
    """Name of the loader in its process."""
    rank: Annotated[int, Meta(ge=0, lt=1_000_000)] = 0
    """Number of the process in the job, from 0."""
    world_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Processes in the job."""
    host: Text = ""
    """Name of the machine."""
    pid: Count = 0
    """Process id of training."""
    incarnation: Text = ""
    """New for every publisher: a restarted training is the same loader in a new incarnation."""


class Config(Struct, frozen=True):
    """How the loader was made."""

    dataset: Text = ""
    """The dataset's type."""
    style: Literal["map", "iterable"] = "map"
    """Whether the dataset has indices, or is a stream."""
    dataset_length: Count | None = None
    """Samples in it; None: it does not say."""
    batch_size: Count | None = None
    """Samples in a batch; None: the batch sampler decides, or there are no batches."""
    sampler: Text = ""
    """The type of the sampler, or of the batch sampler if one was given."""
    num_workers: Count = 0
    """Workers that it was made with; 0: training makes batches itself."""
    max_workers: Count = 0
    """The most workers that a resize may ask for; 0: not told."""
    start_method: Text = ""
    """How worker processes are started: fork, spawn or forkserver; or thread; on other machines: agents or ray."""
    pin_memory: bool = False
    """Whether batches are to be page-locked."""
    persistent_workers: bool = False
    """Whether workers live on after an epoch."""
    in_order: bool = True
    """Whether batches come in the sampler's order."""
    prefetch_factor: Count | None = None
    """Tasks in flight per worker, as torch's loader has it; None: it has none."""
    timeout: float = 0.0
    """Seconds; 0: none."""
    memory_budget: Count = 0
    """Byte limit for finished batches that training has not taken; 0: not told."""
    control: bool = True
    """False: this loader takes no commands."""
    engine: Literal["penstock", "torch"] = "penstock"
    """torch: not ours: whatever it is, it is under `loader.watch`. (The name is from when only torch's could be.)"""
    kind: Text = ""
    """What is watched: `torch DataLoader`, or the name of its type. Empty for a loader of ours. Since 2.1."""
    unknown: Unknown = field(default_factory=list)
    """Of a loader that is only watched: which of these fields are not known. Since 2.1."""
    local: Count | None = None
    """Workers whose number is below it run here, all others on other machines; None: all run here. Since 2.3."""


class Hello(Struct, frozen=True, tag="hello"):
    """A loader's first message on a connection: who it is and how it was made."""

    protocol: tuple[int, int]
    """The loader's version of this description."""
    identity: Identity
    """Which loader it is."""
    config: Config = field(default_factory=Config)
    """How it was made."""
    interval_us: Annotated[int, Meta(ge=10_000, le=60_000_000)] = 200_000
    """Time between two snapshots."""
    started: Moment = 0.0
    """When the loader was made."""
    versions: dict[str, Text] = field(default_factory=dict)
    """Versions of penstock, torch and python, by name."""


class Goodbye(Struct, frozen=True, tag="goodbye"):
    """The loader was closed or its process ends in an orderly way."""

    seq: Count
    """Number of this message, as in `Snapshot`."""
    reason: Text = ""
    """Why it goes; empty: that is not said."""


class Welcome(Struct, frozen=True, tag="welcome"):
    """The backend's answer to a hello."""

    protocol: tuple[int, int]
    """The backend's version of this description."""
    loader: Text
    """The id under which the backend knows it."""
    last_seq: int = -1
    """The last message of this incarnation that the backend has; the loader goes on with the next one."""
    at: Moment = 0.0
    """The moment of the answer by the backend's clock."""
    interval_us: Count = 0
    """As in `Pace`. Since 2.3."""


class Pace(Struct, frozen=True, tag="pace"):
    """How often the loader shall publish snapshots from now on; what happens is told at once all the same. Since 2.3.

    A loader looks as often as it was told to by `publish_interval`, and never publishes more often than it looks.
    """

    interval_us: Count
    """Time between two snapshots; 0: as often as the loader looks."""


class Ack(Struct, frozen=True, tag="ack"):
    """Everything up to this message is stored; the loader may forget it."""

    seq: Count
    """Number of the last message that is stored."""


class Refused(Struct, frozen=True, tag="refused"):
    """A message was not understood or not allowed."""

    reason: Text
    """Why, as a sentence."""


class Load(Struct, frozen=True, tag="load"):
    """What replay needs to know of a loader, said every few seconds while it is watched. Since 2.2.

    It has no number: if it is lost, the next one says the same.
    """

    at: Moment
    """When it was worked out, by the loader's clock."""
    workers: Count = 0
    """Workers there are."""
    seen: Count = 0
    """Batches that were measured, of those made last."""
    rows: Annotated[list[tuple[Count, Count, Count]], Meta(max_length=256)] = field(default_factory=list)
    """What batches need, µs, in groups of as many by the time they take, with their means: blocked, on a processor, and
    what would be saved if their slowest sample were ordinary."""
    turns: Annotated[list[Count], Meta(max_length=256)] = field(default_factory=list)
    """Training's own time with a batch, µs, in groups as above."""
    inside_us: Count = 0
    """What `next()` takes when nothing is waited for."""
    channels: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Workers that may be blocked at once without being in each other's way; 0: no limit was seen."""
    company: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """The most workers that were blocked at once."""
    most: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Batches a second that locks among workers let through; 0: none was seen. `rows` are without the wait for them."""
    crowded: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the moments at which somebody waited for a lock: 1, it is never free."""
    unsure: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the blocked time in `rows` that may be longer beside more workers: not known, or storage or network."""
    measured: Annotated[list[tuple[Count, float, float]], Meta(max_length=64)] = field(default_factory=list)
    """Numbers of workers that there were, the batches a second that they brought, and a standard deviation of that,
    relative to it. The newest is last."""
    allowed: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Processors, as in `Processors`."""
    others: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Processors that others took."""
    width: Annotated[float, Meta(ge=1, le=1e6)] = 1.0
    """Processors that a batch uses at a time."""
    training_us: Count = 0
    """Processor time of the training process per batch."""
    batch_bytes: Count = 0
    """Mean size of a batch."""
    largest: Count = 0
    """Size of the largest."""
    prefetch_factor: Count = 0
    """Tasks in flight per worker; 0: as many as the memory budget allows."""
    memory_budget: Count = 0
    """Byte limit for finished batches that training has not taken."""
    memory_ceiling: Count = 0
    """What the budget may stretch to for two batches a worker."""
    in_order: bool = True
    """Whether batches come in the sampler's order."""
    sharded: bool = False
    """Iterable-style: every worker has its own shard."""
    local: Count | None = None
    """As in `Config`. Since 2.3."""
    elsewhere: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Processors of other machines; 0: there is none, or how many more may be had is not known. Since 2.3."""
    carried: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Batches a second that came from other machines while the network took no more; 0: it was never full. Since 2.3.
    """
    even: bool = False
    """Whether batches take so evenly long that workers may have fallen into step: a lock that they share is then taken
    by one after the other, and nobody is seen to wait for it. Since 2.3."""


ToBackend = Hello | Snapshot | Events | Outcome | Goodbye | Load
ToLoader = Welcome | Ack | Refused | Pace
"""What the backend says, besides `Command`."""


# --------------------------------------------------------------------------------------- backend ↔ browser


class Rates(Struct, frozen=True, array_like=True, gc=False):
    """Differences between two snapshots, as stored in history and drawn in charts."""

    batches: float = 0.0
    """Batches yielded per second."""
    samples: float = 0.0
    """Samples yielded per second."""
    bytes: float = 0.0
    """Bytes of tensors and arrays yielded per second."""
    compute: float = 0.0
    """Share of the time, 0 to 1, that was training's own; the shares add up to 1 while an epoch is under way."""
    starvation: float = 0.0
    """Share of the time, 0 to 1, in which training waited and no batch was finished."""
    reorder_stall: float = 0.0
    """Share of the time, 0 to 1, in which training waited and only later batches were finished."""
    pin_wait: float = 0.0
    """Share of the time, 0 to 1, in which training waited for the pin stage."""
    paused: float = 0.0
    """Share of the time, 0 to 1, in which training waited because the pool was paused."""
    startup: float = 0.0
    """Share of the time, 0 to 1, in which training waited for an epoch's first batch."""
    pin_bytes: float = 0.0
    """Bytes per second through the pin stage, of wall-clock time."""
    busy: float = 0.0
    """Workers busy on average: their fetch, collate and send time per second."""
    rss: float = 0.0
    """Resident memory of all workers, bytes."""
    index: float = 0.0
    """Tasks handed to workers and not started, at the snapshot."""
    in_flight: float = 0.0
    """Tasks dispatched and not yet yielded, at the snapshot."""
    reorder: float = 0.0
    """Batches in the reorder buffer, at the snapshot."""
    data: float = 0.0
    """Batches ready to be yielded, at the snapshot."""
    slots_bytes: float = 0.0
    """Shared memory in all slots, bytes, at the snapshot."""
    finished_bytes: float = 0.0
    """Size of all finished batches in the pipeline, bytes, at the snapshot."""
    workers: float = 0.0
    """Workers alive."""
    sampler: float = 0.0
    """Share of the time, 0 to 1, in which the training thread drew from the sampler."""
    processor: float = 0.0
    """Workers on a processor, on average; with `queued` and `blocked` they add up to `busy`. Since 2.2."""
    queued: float = 0.0
    """Workers that were ready to run and waited for a processor."""
    blocked: float = 0.0
    """Workers at a batch that waited for something else: storage, network, a lock, a sleep."""
    others: float = 0.0
    """Processors, of those that this process may use, that others took."""
    allowed: float = 0.0
    """Processors that this process may use; 0: not known."""


WaitingKind = Literal["starvation", "reorder_stall", "pin_wait", "startup", "sampler"]
"""A kind of time in which training waits for data."""


class LoaderRow(Struct, frozen=True):
    """One line of the overview."""

    id: Text
    """How it is addressed: `run:rank:name`."""
    identity: Identity
    """Which loader it is."""
    presence: Presence
    """Whether the backend hears of it."""
    state: LoaderState
    """What it said of itself last."""
    seen: Moment
    """When the backend last heard of it, by the backend's clock."""
    started: Moment
    """When it was made, by its own clock."""
    epoch: Count = 0
    """Number of the epoch under way or last ended, from 0."""
    batch: Count = 0
    """Batches yielded in this epoch."""
    length: Count | None = None
    """Batches in an epoch, where known."""
    workers: Count = 0
    """Workers alive."""
    target: Count = 0
    """Workers asked for."""
    rates: Rates = field(default_factory=Rates)
    """Over the last 10 s."""
    control: bool = True
    """False: it takes no commands."""
    engine: Literal["penstock", "torch"] = "penstock"
    """As in `Config`."""
    refuses: Text = ""
    """Why it takes no commands, as a sentence; empty: it takes them. Since 2.2."""
    verdict: Verdict = Verdict()
    """What limits it. Since 2.2."""
    errors: Count = 0
    """Errors that training met. Since 2.2."""
    error: Text = ""
    """The last one, type and message. Since 2.2."""
    hang_us: Count = 0
    """How long training has waited for one batch, if that is unusually long and lasts. Since 2.2."""
    unknown: Unknown = field(default_factory=list)
    """Which of these fields are not known, of a loader that is only watched: `workers`, `target`, `rates.busy`. Since
    2.2."""
    waiting: float | None = None
    """Share of the last 10 s, 0 to 1, in which training waited for data; None: it does not run. Since 2.2."""
    place: Place = "shown"
    """Where its run stands in the overview. Since 2.3."""
    waits_for: WaitingKind | None = None
    """What it waited for most in the last 10 s; None: for nothing that matters, or it does not run. Since 2.3."""


class RunSummary(Struct, frozen=True):
    """A run as a whole. Since 2.3."""

    run: Text
    """Its name."""
    loaders: Count = 0
    """Loaders that are known of it, for training and for validation."""
    running: Count = 0
    """Those of them that are at work now."""
    ranks: Count = 0
    """Ranks that they belong to."""
    batches: float = 0.0
    """Batches a second over the last 10 s, all loaders together."""
    samples: float = 0.0
    """Samples a second over the last 10 s, all loaders together."""
    bytes: float = 0.0
    """Bytes a second over the last 10 s, all loaders together."""
    waiting: float | None = None
    """Share of the time, 0 to 1, in which ranks wait for data, on average; None: nothing runs."""
    holding: Text = ""
    """The loader that holds back the others; empty: none stands out."""
    verdict: Verdict = Verdict()
    """Which rank holds back the others, and why; without words: none does."""


class RunChange(Struct, frozen=True):
    """What somebody did to a run's place in the overview, or that they deleted it. Since 2.3."""

    at: Moment
    """When, by the backend's clock."""
    run: Text
    """Name of the run."""
    change: Place | Literal["deleted"]
    """What became of it."""
    by: Text
    """Name of the token that asked for it."""
    origin: Text
    """Network address that it came from."""
    loaders: Count = 0
    """Loaders that the run had then."""
    text: Text = ""
    """The same as a sentence, without the moment."""


class KnownRun(Struct, frozen=True):
    """A run that is remembered, by its loaders. Since 2.3."""

    run: Text
    """Its name."""
    place: Place
    """Where it stands in the overview."""
    loaders: Count
    """Loaders that are known of it."""
    connected: Count
    """Those of them that are connected: while there are any, it cannot be deleted."""
    started: Moment
    """When the newest of its loaders was made, by that loader's clock."""
    seen: Moment
    """When the backend last heard of it."""


class LoaderDetail(Struct, frozen=True):
    """Everything that is known of one loader now."""

    row: LoaderRow
    """What the overview shows of it."""
    config: Config
    """How it was made."""
    versions: dict[str, Text]
    """Versions of penstock, torch and python, by name."""
    interval_us: int
    """Time between two snapshots."""
    snapshot: Snapshot | None = None
    """The last one; None: there is none, or no room to keep it."""
    verdict: Verdict = Verdict()
    """The same as in `row`. Since 2.2."""
    last_epoch: Rates | None = None
    """Rates over the whole last epoch, of a loader that is gone; None: it is there. Since 2.2."""
    machines: list[MachineRates] = field(default_factory=list)
    """As in `Frame`. Since 2.3."""


class Transition(Struct, frozen=True):
    """A step of a command's life."""

    state: CommandState
    """What the command came to."""
    at: Moment
    """By the backend's clock."""


Phase = Literal["asked", "under way", "done", "failed"]
"""How far a command is. asked: on its way. under way: the loader has it. done: the loader has said so."""


class CommandRecord(Struct, frozen=True):
    """A command and all that became of it."""

    id: Text
    """Name of the command."""
    loader: Text
    """Id of the loader that it is for."""
    action: Text
    """As in `Order`; the fields below that an order of this kind has say the rest of it."""
    by: Text
    """Name of the token."""
    origin: Text
    """Address it came from."""
    state: CommandState
    """How far it is."""
    transitions: list[Transition]
    """All its steps, the oldest first."""
    group: Text = ""
    """The same for all commands of one run-wide command."""
    workers: int | None = None
    """resize: the workers asked for."""
    resume_after: float | None = None
    """pause: the seconds after which it ends by itself."""
    seconds: float | None = None
    """profile: for how long."""
    rate: float | None = None
    """profile: looks a second at each worker."""
    on: bool | None = None
    """auto: whether the tuner is to be on. Since 2.2."""
    worker: int | None = None
    """stack: which worker. Since 2.2."""
    before: int | None = None
    """Workers when it was accepted."""
    actual: int | None = None
    """Workers after it; None: not known yet."""
    at_batch: int | None = None
    """Batch index from which it holds; None: not known yet."""
    took_us: Count = 0
    """From acceptance to the last transition, by the backend's clock."""
    reason: Text = ""
    """Why it was rejected, superseded, timed out, or has to wait; else empty."""
    phase: Phase = "asked"
    """How far it is. Since 2.2."""
    head: Text = ""
    """The same in a word or two. Since 2.2."""
    text: LongText = ""
    """What was asked for and what came of it, in words. Since 2.2."""

    @property
    def order(self) -> Order:
        """What was asked for."""
        kind = ORDERS[self.action]
        return kind(**{name: getattr(self, name) for name in kind.__struct_fields__})


class StoredEvent(Struct, frozen=True):
    """An event as the backend remembers it, and in words."""

    id: Count
    """Grows over all loaders of one backend: what has come after N has a higher id."""
    loader: Text
    """Id of the loader whose it is."""
    event: Event
    """What happened."""
    text: LongText = ""
    """What happened, in a sentence; empty for spans and profiles, which are drawn. Since 2.2."""
    tone: Literal["bad", "good", "plain"] = "plain"
    """How bad that is. Since 2.2."""
    fold: Text = ""
    """What several of them that follow each other are called, after their number: `short stalls`, `workers started`;
    empty: each is told for itself. Since 2.2."""
    same: Text = ""
    """Of events with the same here, each says anew, and better, what those before it said; empty: nothing is repeated.
    Since 2.2."""


class Subscribe(Struct, frozen=True, tag="subscribe"):
    """What this viewer wants from now on; replaces what it wanted before."""

    overview: bool = False
    """Whether it wants the overview."""
    loaders: Annotated[list[Text], Meta(max_length=64)] = field(default_factory=list)
    """Ids of the loaders whose frames and events it wants."""
    after: dict[str, Count] = field(default_factory=dict)
    """Loader id → the last StoredEvent.id it has; the backend sends what came after."""


class Ping(Struct, frozen=True, tag="ping"):
    """A viewer asks whether the backend is still there."""

    at: float = 0.0
    """Any number: the answer has the same."""


class Pong(Struct, frozen=True, tag="pong"):
    """The answer to a ping, with its number."""

    at: float = 0.0
    """The number of the ping."""


class Session(Struct, frozen=True, tag="session"):
    """The backend's first message to a viewer."""

    backend: Text
    """New for every start of the backend."""
    version: Text
    """The backend's version of Penstock."""
    at: Moment
    """The moment by the backend's clock."""
    scopes: list[Literal["publish", "view", "control"]]
    """What this viewer may do."""
    read_only: bool
    """True: this viewer cannot send commands."""
    warning: Text = ""
    """For example that the store fell back to memory."""


class Overview(Struct, frozen=True, tag="overview"):
    """The rows that changed; the first one after a subscription has all."""

    rows: list[LoaderRow]
    """Those that are new or have changed."""
    removed: list[Text] = field(default_factory=list)
    """Ids of loaders that are forgotten."""
    complete: bool = False
    """True: rows that are not in it no longer exist."""
    runs: list[RunSummary] = field(default_factory=list)
    """Summaries of the runs of several loaders whose rows changed. Since 2.3."""


class WorkerRates(Struct, frozen=True, array_like=True):
    """What a worker did over the last seconds. None: it finished no batch, or that is not seen. Since 2.2."""

    batches: float | None = None
    """Batches per second."""
    fetch_us: float | None = None
    """Time in the dataset, a batch."""
    collate_us: float | None = None
    """Time in collate_fn, a batch."""
    send_us: float | None = None
    """Time to send it, a batch."""
    busy: float | None = None
    """Share of the time, 0 to 1, with a task in hand; the three after it add up to it."""
    processor: float | None = None
    """Share of the time on a processor."""
    queued: float | None = None
    """Share of the time in which it was ready to run and waited for a processor."""
    blocked: float | None = None
    """Share of the time in which it had a task and waited for something else."""
    bytes: float | None = None
    """Bytes of batches per second that it made. Since 2.3."""


class Frame(Struct, frozen=True, tag="frame"):
    """A snapshot, with the rates since the one before."""

    loader: Text
    """Id of the loader."""
    snapshot: Snapshot
    """How it stands."""
    rates: Rates
    """What changed since the snapshot before, per second."""
    presence: Presence
    """Whether the backend hears of it."""
    at: Moment
    """When the backend received it, by its own clock."""
    verdict: Verdict = Verdict()
    """What limits training, as of this snapshot. Since 2.2."""
    recent: Rates = field(default_factory=Rates)
    """Rates over the last 10 s. Since 2.2."""
    workers: list[WorkerRates] = field(default_factory=list)
    """What each of the snapshot's workers did over the last 5 s, in their order. Since 2.2."""
    pin_busy: float = 0.0
    """Share of the last 5 s, 0 to 1, in which the pin stage was at work. Since 2.2."""
    pin_us: float | None = None
    """Time there, a batch; None: no batch passed it. Since 2.2."""
    machines: list[MachineRates] = field(default_factory=list)
    """What came from each of the snapshot's machines over the last 5 s, in their order. Since 2.3."""


class Detail(Struct, frozen=True, tag="detail"):
    """The first message about a loader after a subscription, and whenever its configuration or presence changes."""

    detail: LoaderDetail
    """Everything that is known of it now."""


class Happened(Struct, frozen=True, tag="happened"):
    """Events of loaders that this viewer looks at, in order."""

    events: list[StoredEvent]
    """The oldest first."""


class Gap(Struct, frozen=True, tag="gap"):
    """This viewer was too slow: events up to `until` were dropped for it and can be asked for over HTTP."""

    loader: Text
    """Id of the loader whose events they are."""
    after: Count
    """The last StoredEvent.id that was sent."""
    until: Count
    """The last StoredEvent.id that was dropped."""


class CommandChanged(Struct, frozen=True, tag="command_changed"):
    """A command was given, or got further."""

    command: CommandRecord
    """As it stands now."""


class Gone(Struct, frozen=True, tag="gone"):
    """The loader asked for is not known."""

    loader: Text
    """The id that was asked for."""


AlertRule = Literal["data-bound", "stalled", "lost", "failed", "memory", "quarantine"]
"""What is worth an alert.
data-bound: training has waited for data for minutes.
stalled: no batch has come for long, and training waits for one.
lost: silent, without goodbye.
failed: ended with an error.
memory: the workers' memory grows and grows.
quarantine: samples were set aside."""


class Alert(Struct, frozen=True):
    """Something that somebody should look at. Since 2.2."""

    id: Count
    """Grows from alert to alert; no two have the same, whichever replica saw them."""
    loader: Text
    """Id of the loader that it is about."""
    rule: AlertRule
    """What is wrong."""
    since: Moment
    """When it began to hold, by the backend's clock."""
    text: Text
    """What was seen, as a sentence."""
    ended: Moment | None = None
    """When it ceased to hold; None: it holds."""


class Alerts(Struct, frozen=True, tag="alerts"):
    """All alerts that hold and those that ended lately, the newest first; sent at the start and at each change. Since
    2.2."""

    alerts: list[Alert]
    """The newest first."""
    problems: list[Text] = field(default_factory=list)
    """Why alerts could not be told to somebody who should be."""


ToViewer = Session | Overview | Detail | Frame | Happened | Gap | CommandChanged | Gone | Pong | Alerts
FromViewer = Subscribe | Ping


class History(Struct, frozen=True):
    """Rates over a range, in at most as many buckets as asked for. Columns are parallel."""

    loader: Text
    """Id of the loader."""
    start: Moment
    """Beginning of the range, by the backend's clock."""
    end: Moment
    """End of the range."""
    step: float
    """Seconds a bucket spans; 0: every stored sample is its own bucket."""
    at: list[float]
    """The buckets' middles."""
    mean: dict[str, list[float]]
    """Field of Rates → column."""
    low: dict[str, list[float]] = field(default_factory=dict)
    """Field of Rates → the least in each bucket; left out where every bucket has one sample."""
    high: dict[str, list[float]] = field(default_factory=dict)
    """Field of Rates → the most in each bucket; left out where every bucket has one sample."""


class Prediction(Struct, frozen=True):
    """What another number of workers would bring. Since 2.2."""

    workers: int
    """The number of workers that it is for."""
    batches: float = 0.0
    """Batches a second that training would get."""
    low: float = 0.0
    """Lower end of the interval in which it is nine times out of ten."""
    high: float = 0.0
    """Upper end of it."""
    waiting: float = 1.0
    """Share of the time, 0 to 1, in which training would wait."""
    enough: bool = True
    """False: not enough was seen to predict anything."""
    reason: Text = ""
    """Why not."""


class Measured(Struct, frozen=True):
    """What a number of workers brought."""

    at: Moment
    """When it was measured, by the loader's clock."""
    workers: int
    """The number of workers that there were."""
    batches: float
    """Batches a second."""


class Predictions(Struct, frozen=True):
    """What other numbers of workers would bring, and what those that were tried have brought. Since 2.2."""

    loader: Text
    """Id of the loader."""
    workers: int
    """Workers there are."""
    enough: bool
    """False: not enough was seen; then there are no predictions."""
    reason: Text = ""
    """Why there are none; empty: there are."""
    predictions: list[Prediction] = field(default_factory=list)
    """One for each number of workers, the lowest first."""
    measured: list[Measured] = field(default_factory=list)
    """The oldest first."""


class ComparedNumber(Struct, frozen=True):
    """One number of two stretches of time. Since 2.3."""

    name: Text
    """What it is called in code: a field of Rates, or `waiting`, `load`, `cost`."""
    label: Text
    """What it is called on a page."""
    a: float | None
    """Of the first stretch, its mean; None: not known. Shares of time are 0 to 1, costs are in µs."""
    b: float | None
    """Of the second stretch."""
    a_text: Text
    """The first one with its unit, as it is read."""
    b_text: Text
    """The second one with its unit."""
    difference: Text
    """From the first to the second: "+38 %", "−12 points", "2.4 ×"; "same": none that counts."""
    brought: Brought
    """Whether the second is better; unknown: neither better nor worse, or one of them is not known."""


class ComparedStretch(Struct, frozen=True):
    """One of two stretches of time that are compared. Since 2.3."""

    asked: Text
    """As it was asked for (`insight/stretches.py`)."""
    loader: Text
    """Id of the loader that it is of."""
    title: Text
    """What it is, in a few words: "epoch 3", "before 2 → 6 workers"."""
    start: Moment
    """When it begins, by the loader's clock."""
    end: Moment
    """When it ends."""
    seconds: float
    """Of that, seconds with an epoch under way."""
    verdict: Verdict
    """What limited training then; without advice."""
    history: History
    """Its rates, to be drawn."""


class Comparison(Struct, frozen=True):
    """Two stretches of time side by side. Since 2.3."""

    a: ComparedStretch
    """The first one."""
    b: ComparedStretch
    """The second one."""
    sentence: LongText
    """What comes out of it."""
    numbers: list[ComparedNumber]
    """In reading order."""


class QuarantinePage(Struct, frozen=True):
    """Bad samples of a loader that somebody looks for. Since 2.2."""

    loader: Text
    """Id of the loader."""
    total: Count
    """Bad samples that are known."""
    matching: Count
    """Those that have every word that was searched for."""
    found: list[Quarantined] = field(default_factory=list)
    """The newest of them, the newest first."""


def to_json_schema() -> dict[str, object]:
    """The protocol as JSON Schema; the frontend's types are generated from it."""
    types = (
        ToBackend,
        ToLoader,
        Order,
        ToViewer,
        FromViewer,
        History,
        CommandRecord,
        LoaderDetail,
        Predictions,
        QuarantinePage,
        RunChange,
        KnownRun,
        Comparison,
    )
    _, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "penstock", "$defs": components}
