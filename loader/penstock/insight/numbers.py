"""The numbers that are followed over time, in one table: what each is read from, where it is drawn, what it is called.

A number that is new has a field in `protocol.Rates` and a line here. Rates, history, exports, the terminal and the page
go by this table; the page's copy of it is generated (`frontend/scripts/generate_types.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..protocol import Snapshot, WindowReason, Worker


class Kind(NamedTuple):
    """A kind of time of the training thread. Its name is a field of `Rates`, and with `_us` of `Times`."""

    name: str
    word: str
    about: str
    waiting: bool = False
    """Whether training waits for data in it."""
    active: bool = True
    """Whether it counts at all where the question is how much of the time training waits."""


KINDS = (
    Kind("compute", "compute", "training's own time between two batches"),
    Kind("starvation", "starvation", "waiting, and no batch at all is finished", waiting=True),
    Kind("reorder_stall", "reorder stall", "waiting for one batch while later ones are finished", waiting=True),
    Kind("pin_wait", "pin wait", "waiting for the pin stage", waiting=True),
    Kind("paused", "paused", "waiting because the pool is paused", active=False),
    Kind("startup", "startup", "before an epoch's first batch is finished", waiting=True),
    Kind("sampler", "sampler", "drawing from the sampler, which runs in the training thread", waiting=True),
)
"""Every moment of the training thread is of one of these kinds. They are always shown in this order."""


WINDOWS: dict[WindowReason, str] = {
    "": "",
    "start": "as small as torch's",
    "grown": "grown: training waited",
    "most": "grown to the most",
    "memory": "as the budget allows",
    "given": "by prefetch_factor",
}
"""Why the window is as large as it is, in a few words."""


@dataclass(frozen=True)
class Number:
    """Where a field of `Rates` comes from."""

    name: str
    """The field of `Rates`."""
    field: str
    """What it is read from, named as in `protocol.Unknown`."""
    total: Callable[[Snapshot], float] | None = None
    """A counter of the loader's: the number is what it grows by in a second."""
    of_worker: Callable[[Worker], int] | None = None
    """A counter of each worker's: the number is what all of them together grow by in a second."""
    depth: Callable[[Snapshot], float] | None = None
    """How much of it there is at one moment."""
    scale: float = 1.0
    """What the growth of a counter is multiplied by."""


def alive(snapshot: Snapshot) -> int:
    """Workers that are not dead."""
    return len([True for worker in snapshot.workers if worker.state != "dead"])


def busy_us(worker: Worker) -> int:
    """Time that a worker has spent with a task in hand."""
    return worker.fetch_us + worker.collate_us + worker.send_us


def _resident(snapshot: Snapshot) -> int:
    return sum([worker.rss for worker in snapshot.workers if worker.state != "dead"])


NUMBERS = (
    Number("batches", "batches", total=lambda s: s.batches),
    Number("samples", "samples", total=lambda s: s.samples),
    Number("bytes", "bytes", total=lambda s: s.bytes),
    *(Number(kind.name, f"times.{kind.name}_us") for kind in KINDS),
    Number("pin_bytes", "pin.bytes", total=lambda s: s.pin.bytes),
    Number("busy", "workers.fetch_us", of_worker=busy_us, scale=1e-6),
    Number("rss", "workers.rss", depth=_resident),
    Number("index", "queues.index", depth=lambda s: s.queues.index),
    Number("in_flight", "queues.in_flight", depth=lambda s: s.queues.in_flight),
    Number("reorder", "queues.reorder", depth=lambda s: s.queues.reorder),
    Number("data", "queues.data", depth=lambda s: s.queues.data),
    Number("slots_bytes", "queues.slots_bytes", depth=lambda s: s.queues.slots_bytes),
    Number("finished_bytes", "queues.finished_bytes", depth=lambda s: s.queues.finished_bytes),
    Number("workers", "workers", depth=alive),
    Number("processor", "workers.cpu_ms"),
    Number("queued", "workers.queued_ms"),
    Number("blocked", "workers.queued_ms"),
    Number("others", "processors.others_ms"),
    Number("allowed", "processors.allowed", depth=lambda s: s.processors.allowed),
)
"""Shares of time come from `Times`; what `occupation` tells of workers and processors has ways of its own."""


class Line(NamedTuple):
    """A line of a chart."""

    number: str
    label: str
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Choice:
    """One way to fill a chart."""

    label: str
    lines: tuple[Line, ...]
    format: Literal["rate", "bytes", "bytes/s", "depth", "ms/s"]
    """How its figures are written."""
    least: float
    """The axis reaches at least this far."""


@dataclass(frozen=True)
class Chart:
    """A chart of the page: the numbers that it can show."""

    id: str
    title: str
    about: str
    choices: tuple[Choice, ...]


CHARTS = (
    Chart(
        "throughput",
        "Throughput",
        "what training was given",
        (
            Choice("batches", (Line("batches", "batches/s", "accent"),), "rate", 1),
            Choice("samples", (Line("samples", "samples/s", "accent"),), "rate", 1),
            Choice("bytes", (Line("bytes", "bytes/s", "accent"),), "bytes/s", 1000),
        ),
    ),
    Chart(
        "queues",
        "Queue depths",
        "batches and tasks that wait",
        (
            Choice(
                "queues",
                (
                    Line("index", "index", "accent"),
                    Line("reorder", "reorder", "reorder_stall"),
                    Line("data", "data", "pin_wait"),
                ),
                "depth",
                4,
            ),
        ),
    ),
    Chart(
        "stalls",
        "Reorder stalls",
        "time training waited for one batch while later ones were finished",
        (Choice("stalls", (Line("reorder_stall", "ms/s", "reorder_stall"),), "ms/s", 100),),
    ),
    Chart(
        "pin",
        "Pin-memory throughput",
        "bytes through the pin stage",
        (Choice("pin", (Line("pin_bytes", "bytes/s", "pin_wait"),), "bytes/s", 1000),),
    ),
    Chart(
        "busy",
        "Workers busy",
        "workers with a task in hand, of those alive; why they are; and the processors they share",
        (
            Choice("busy", (Line("busy", "busy", "compute"), Line("workers", "alive", "dim", True)), "depth", 1),
            Choice(
                "why",
                (
                    Line("processor", "on a processor", "compute"),
                    Line("queued", "waiting for one", "starvation"),
                    Line("blocked", "blocked", "pin_wait"),
                ),
                "depth",
                1,
            ),
            Choice(
                "processors",
                (
                    Line("processor", "workers", "compute"),
                    Line("others", "others", "starvation"),
                    Line("allowed", "to be had", "dim", True),
                ),
                "depth",
                1,
            ),
        ),
    ),
    Chart(
        "memory",
        "Memory and slots",
        "finished batches in the pipeline, shared memory in slots, resident memory of all workers",
        (
            Choice(
                "slots",
                (Line("finished_bytes", "finished", "compute"), Line("slots_bytes", "slots", "dim", True)),
                "bytes",
                1e6,
            ),
            Choice("worker RSS", (Line("rss", "RSS", "startup"),), "bytes", 1e6),
        ),
    ),
)
"""The charts of a loader's page, in reading order."""
