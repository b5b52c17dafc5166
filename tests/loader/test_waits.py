"""What processes are seen to wait for."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import UNSET
from penstock import DataLoader
from penstock.usage import Waits, waits_for
from torch.utils.data import Dataset

from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(not os.access("/proc/self/wchan", os.R_OK), reason="the system does not say")
FORK = multiprocessing.get_context("fork")


def _read() -> None:
    reading, _writing = os.pipe()
    os.read(reading, 1)


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (lambda: time.sleep(600), Waits.SLEEP if sys.version_info >= (3, 11) else Waits.OTHER),
        (lambda: FORK.Semaphore(0).acquire(), Waits.LOCK),
        (lambda: threading.Event().wait(600), Waits.OTHER),
        (_read, Waits.OTHER),
    ],
    ids=["sleep", "semaphore", "own threads", "pipe"],
)
def test_what_a_process_waits_for_is_told(at: Callable[[], Any], what: Waits) -> None:
    process = FORK.Process(target=at, daemon=True)
    process.start()
    try:
        assert process.pid is not None
        end = time.monotonic() + PATIENCE
        while waits_for(process.pid) is not what and time.monotonic() < end:
            time.sleep(0.01)
        assert waits_for(process.pid) is what
    finally:
        process.kill()
        process.join()
    assert waits_for(os.getpid()) is Waits.RUNS


class Locked(Dataset[int]):
    def __init__(self) -> None:
        self.lock = FORK.Lock()

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        with self.lock:
            time.sleep(0.005)
        return index


def test_workers_that_wait_for_each_other_are_seen_to_and_named() -> None:
    loader: DataLoader[Any] = DataLoader(Locked(), 1, num_workers=4, multiprocessing_context="fork", monitor=False)
    end = time.monotonic() + PATIENCE
    with loader:
        for _ in loader:
            stats = loader.stats()
            if stats.verdict.limit == "shared" or time.monotonic() > end:
                break
        assert stats.glances is not UNSET
        assert stats.glances.locked > stats.glances.other
        assert stats.verdict.limit == "shared"
        assert "wait for each other" in stats.verdict.sentence
