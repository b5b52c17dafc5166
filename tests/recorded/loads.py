"""What replay starts from, recorded from real loaders, with what other numbers of workers then brought.

`python -m tests.recorded.loads` records them again (four minutes; it needs a machine of its own). Each is a training of
the benchmark `predictions`: its recording and all that else goes into a `Load` while it had its first number of
workers, the same after it was resized to others, and what was measured with each.
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from penstock.insight.recording import Glance, Made, Recording, Turn

FOLDER = Path(__file__).parent / "loads"
UNFITTED = Path(__file__).parent / "unfitted"
"""Of loads of which no constant of the replay was fitted on a recording. Keep it so."""
KEPT = 1500
"""Batches that are kept of each."""


class Taped(msgspec.Struct):
    """A recording and what goes with it into `insight.load.summarize`."""

    made: list[Made]
    turns: list[Turn]
    glances: list[Glance]
    more: dict[str, Any]

    def recording(self) -> Recording:
        recording = Recording()
        recording.made.extend(self.made)
        recording.turns.extend(self.turns)
        recording.glances.extend(self.glances)
        return recording


class RecordedLoad(msgspec.Struct):
    """One training."""

    workers: int
    before: Taped
    after: Taped
    measured: dict[int, float]
    """Number of workers → batches a second."""


def recorded_loads(folder: Path = FOLDER) -> dict[str, RecordedLoad]:
    """By name."""
    decoder = msgspec.msgpack.Decoder(RecordedLoad)
    return {
        path.name.removesuffix(".gz"): decoder.decode(gzip.decompress(path.read_bytes()))
        for path in sorted(folder.glob("*.gz"))
    }


def _tape(loader: Any, kept: int) -> Taped:
    from penstock.insight import load

    seen: dict[str, Any] = {}
    engine, summarize = loader._penstock, load.summarize
    module = sys.modules[type(engine).__module__]

    def look(recording: Recording, **more: Any) -> Any:
        seen.update(more)
        return summarize(recording, **more)

    module.summarize = look  # type: ignore[attr-defined]
    try:
        engine.load()
    finally:
        module.summarize = summarize  # type: ignore[attr-defined]
    recording = engine.ledger.recording
    return Taped(
        [_rounded(made) for made in list(recording.made)][-kept:],
        [Turn(*(round(each, 6) for each in turn)) for turn in list(recording.turns)][-kept:],
        [glance._replace(at=round(glance.at, 4)) for glance in list(recording.glances)],
        seen,
    )


def _rounded(made: Made) -> Made:
    values: list[Any] = [round(each, 6) if isinstance(each, float) else each for each in made]
    return Made(*values)


def record(seconds: float = 4.0) -> None:
    from penstock import DataLoader
    from penstock.insight.receipts import Count

    from tests.benchmarks.measures.prediction_loads import cases
    from tests.benchmarks.measures.predictions import STEPS, rate

    only = sys.argv[1:]
    for name, case in cases().items():
        if only and name not in only:
            continue
        folder = FOLDER if case.fitted else UNFITTED
        folder.mkdir(exist_ok=True)
        loader: DataLoader[Any] = DataLoader(
            case.dataset,
            4,
            num_workers=case.workers,
            multiprocessing_context="fork",
            memory_budget=case.budget,
            monitor=False,
        )
        with loader:
            batches, count = iter(loader), Count()
            rate(loader, count, batches, case, 1.0)
            rate(loader, count, batches, case, seconds)
            before, measured = _tape(loader, KEPT), {}
            for number in sorted({max(1, int(case.workers * step)) for step in STEPS}):
                loader.resize(number)
                rate(loader, count, batches, case, seconds / 2)
                measured[number] = rate(loader, count, batches, case, seconds)
            recorded = RecordedLoad(case.workers, before, _tape(loader, KEPT), measured)
            (folder / f"{name}.gz").write_bytes(gzip.compress(msgspec.msgpack.encode(recorded), 9, mtime=0))
            del batches
        print(name, measured, f"others {before.more['others']:.2f}", time.strftime("%X"), flush=True)


if __name__ == "__main__":
    record()
