"""Many resizes, kills and pauses on one pool: nothing grows. Ten thousand of them with PENSTOCK_SOAK set."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
from collections.abc import Iterator
from operator import le
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock import DataLoader
from penstock.pool.pool import wait_for_pools
from penstock.protocol import Resize

from tests.loader.scenarios import Loaders, kill, worker_pids
from tests.loader.support import Full, descendants, open_descriptors, wait_until
from tests.patience import PATIENCE

FULL = "PENSTOCK_SOAK" in os.environ
RESIZES = 10_000 if FULL else 200
WARMING = RESIZES // 4

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.timeout(3600 if FULL else 300),
    pytest.mark.filterwarnings("ignore:.*(exited unexpectedly|zygote):UserWarning"),
]


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


def zygotes(loader: DataLoader[Any]) -> set[int]:
    """The processes that are parents of workers. Under forkserver they are not children of this one."""
    return {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in worker_pids(loader)}


def memory_of(pid: int) -> int:
    """Memory that belongs to a process alone, in bytes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in rollup if line.startswith(("Private_Dirty", "Shared_Dirty"))) * 1024


def footprint(loader: DataLoader[Any]) -> dict[str, int]:
    """What must not grow, once the pool is at rest with two workers."""
    loader.resize(2)

    def at_rest() -> bool:
        snapshot = loader.stats()
        return len(snapshot.workers) == 2 and {worker.state for worker in snapshot.workers} <= {"idle", "paused"}

    wait_until(at_rest, "two idle workers")
    gc.collect()
    (zygote,) = wait_until(lambda: zygotes(loader), "the zygote")
    return {
        "descriptors": open_descriptors(),
        "zygote's descriptors": len(list(Path(f"/proc/{zygote}/fd").iterdir())),
        "processes": len(descendants(os.getpid())),
        "threads": threading.active_count(),
        "memory": memory_of(os.getpid()),
        "zygote's memory": memory_of(zygote),
    }


def soak(loader: DataLoader[Any], disturb: Any) -> None:
    iterator = iter(loader)

    def after(count: int) -> dict[str, int]:
        for number in range(count):
            disturb(number)
            value = next(iterator)
            assert value[0, 0].item() == value[0, -1].item() == after.batch  # type: ignore[attr-defined]
            after.batch += 1  # type: ignore[attr-defined]
        return footprint(loader)

    after.batch = 0  # type: ignore[attr-defined]
    before = after(WARMING)
    later = after(RESIZES - WARMING)

    def grown() -> list[str]:
        return [what for what in before if later[what] > before[what] + (16_000_000 if "memory" in what else 0)]

    def is_small() -> bool:
        """Processes that have been told to go may take their time."""
        nonlocal later
        if grown():
            later = footprint(loader)
        return not grown()

    wait_until(is_small, f"as little as before: {before} became {later}")


def test_resizes_leave_nothing_behind(loaders: Loaders) -> None:
    loader = loaders(Full(RESIZES + 100, 10_000), num_workers=2, max_workers=4, prefetch_factor=2)
    choose = random.Random(1)
    soak(loader, lambda _: loader._penstock.request(Resize(choose.randint(1, 4))).wait(PATIENCE))
    assert loader.stats().recoveries == 0


def test_kills_and_pauses_leave_nothing_behind(loaders: Loaders) -> None:
    loader = loaders(Full(RESIZES + 100, 10_000), num_workers=2, max_workers=4, prefetch_factor=2, max_retries=10**6)
    choose = random.Random(2)

    def disturb(number: int) -> None:
        if number % 10 == 0:
            pids = wait_until(lambda: worker_pids(loader), "a worker")
            with contextlib.suppress(ProcessLookupError):  # it was killed before, and is not missed yet
                kill(choose.choice(pids))
        elif number % 3 == 0:
            loader.pause()
            loader.resume()

    soak(loader, disturb)


def test_epochs_checkpoints_and_resizes_leave_nothing_behind(loaders: Loaders) -> None:
    epochs = RESIZES // 20
    generator = torch.Generator().manual_seed(1)
    loader = loaders(Full(6, 10_000), shuffle=True, num_workers=1, generator=generator)

    def left() -> tuple[int, int, int]:
        gc.collect()
        return open_descriptors(), threading.active_count(), len(descendants(os.getpid()))

    most = (0, 0, 0)
    for epoch in range(epochs):
        for batch in loader:
            if epoch % 3 == 0:
                loader.resize(1 + epoch % 2)
            assert batch[0, 0] == batch[0, -1]
        loader.load_state_dict(loader.state_dict())
        wait_for_pools(loader._penstock.ledger)  # training does not, at the end of an epoch
        if epoch < epochs // 2:
            here = left()
            most = max(most[0], here[0]), max(most[1], here[1]), max(most[2], here[2])
    wait_until(lambda: all(map(le, left(), most)), f"as little as in the first half: {left()} is more than {most}")
