"""How far a profile is from what py-spy sees of the same workers at the same time.

py-spy looks from outside, at any instruction. Compared are the shares of the time spent in the dataset's
`__getitem__`, for the ten functions of which py-spy saw most: their own time, and their time with all they call.

Both only look now and then. `chance` is what the function that could differ most would differ by, in points, in one
round of twenty, if both looked at the same thing without any fault.
"""

from __future__ import annotations

import importlib.util
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from penstock import DataLoader
from penstock.profiling.profile import Profile
from penstock.profiling.tree import ROOT

from tests.benchmarks.case import Measures
from tests.benchmarks.measures import spied_datasets

HOTTEST = 10
"""Functions that are compared."""
RATE = 100
"""Looks a second of py-spy's; ours are as many as by default."""
FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+?)(?::\d+)?\)")

Name = tuple[str, str]
"""A function's name and the last part of its file's."""
Stack = tuple[Name, ...]


def measure(variant: str, quick: bool, *, dataset: str) -> Measures:  # noqa: ARG001
    if importlib.util.find_spec("py_spy") is None and not (Path(sys.executable).parent / "py-spy").exists():
        raise RuntimeError("not available: py-spy is not installed")
    made: Callable[[], Any] = getattr(spied_datasets, dataset)
    loader: DataLoader[Any] = DataLoader(made(), 4, num_workers=2, monitor=False)
    batches = iter(loader)
    next(batches)
    seconds = 5.0 if quick else 60.0
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(worker.id) for worker in batches.pool.conductor.roster]  # type: ignore[attr-defined]
        pids = [worker.pid for worker in batches.pool.conductor.roster]  # type: ignore[attr-defined]
        spies = [_spy(pid, file, seconds) for pid, file in zip(pids, files, strict=True)]
        try:
            profiling = loader.profiling()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                next(batches)
            profiling.stop()
            for spy in spies:
                while spy.poll() is None:
                    next(batches)
        finally:
            for spy in spies:
                spy.kill()
                spy.wait()
        loader.close()
        spied = sum((_read(file) for file in files), Counter[Stack]())
    profile = profiling.result()
    seen = _stacks(profile)
    theirs, looks = shares(spied), inside(spied)
    worst = compared(theirs, shares(seen))
    return {**worst, "chance": chance(theirs, looks, inside(seen) / 1e9 * profile.rate)}


def _spy(pid: int, file: Path, seconds: float) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).parent / "py-spy"), "record", "--pid", str(pid), "--output", str(file)]
    more = ["--duration", str(int(seconds)), "--rate", str(RATE), "--format", "raw", "--idle", "--full-filenames"]
    return subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _read(file: Path) -> Counter[Stack]:
    """What py-spy wrote: stack → looks."""
    stacks: Counter[Stack] = Counter()
    for line in file.read_text().splitlines():
        frames, _, count = line.rpartition(" ")
        found = [FRAME.fullmatch(frame) for frame in frames.split(";")]
        stacks[tuple((each["function"], PurePath(each["file"]).name) for each in found if each)] += int(count)
    return stacks


def _stacks(profile: Profile) -> Counter[Stack]:
    """The same of a profile of ours: stack → ns."""
    tree, stacks = profile.tree, Counter[Stack]()
    for leaf, weight in tree.own(phase="fetch").items():
        if leaf != ROOT:
            functions = [tree.functions[node.function] for node in tree.path(leaf)]
            # py-spy 0.4 names functions without their classes where the interpreter does not tell.
            stacks[tuple((each.name.rpartition(".")[2], PurePath(each.file).name) for each in functions)] += weight
    return stacks


def shares(stacks: Counter[Stack]) -> dict[tuple[str, Name], float]:
    """("own" or "total", function) → its share of the time in `__getitem__`, in percent."""
    found: Counter[tuple[str, Name]] = Counter()
    for stack, weight in stacks.items():
        part = _from_getitem(stack)
        if part:
            found["own", part[-1]] += weight
            for each in {*part}:
                found["total", each] += weight
    whole = inside(stacks)
    if not whole:
        raise RuntimeError("nothing was seen of the dataset")
    return {key: 100 * weight / whole for key, weight in found.items()}


def inside(stacks: Counter[Stack]) -> int:
    """The weight of all stacks in `__getitem__`."""
    return sum(weight for stack, weight in stacks.items() if _from_getitem(stack))


def _from_getitem(stack: Stack) -> list[Name]:
    names = [(name.rpartition(".")[2], file) for name, file in stack]
    begins = [place for place, (name, _) in enumerate(names) if name == "__getitem__"]
    return names[begins[0] :] if begins else []


def chance(theirs: dict[tuple[str, Name], float], looks: float, our_looks: float) -> float:
    """See above. Looks are taken to be independent of each other: they are many samples apart."""
    varied = max(share * (100 - share) for share in theirs.values())
    return 1.96 * math.sqrt(varied * (1 / looks + 1 / our_looks))


def compared(theirs: dict[tuple[str, Name], float], ours: dict[tuple[str, Name], float]) -> Measures:
    """The largest difference in points, for own and for total time."""
    worst = {}
    for kind in ("own", "total"):
        mine = {key: share for key, share in theirs.items() if key[0] == kind}
        hottest = sorted(mine, key=mine.__getitem__, reverse=True)[:HOTTEST]
        worst[kind] = max(abs(mine[key] - ours.get(key, 0.0)) for key in hottest)
    return worst
