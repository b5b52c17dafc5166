"""The loads of the benchmark `predictions`: what their batches wait for and compute, each for a reason of its own."""

from __future__ import annotations

import math
import multiprocessing.connection
import random
import tempfile
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.multiprocessing
from torch.utils.data import Dataset


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Loaded(Dataset[Any]):
    """Samples that sleep, compute, wait for a lock or for one of a few channels, and some of which are slow."""

    def __init__(
        self,
        sleep: float = 0.0,
        compute: float = 0.0,
        slow: float = 0.0,
        held: float = 0.0,
        channels: int = 0,
        size: int = 1,
        spread: float = 0.0,
    ) -> None:
        self.sleep, self.compute, self.slow, self.held, self.size = sleep, compute, slow, held, size
        self.spread = spread
        """Standard deviation of the logarithm of its times. Without it, workers fall into step and never meet."""
        self.channels = torch.multiprocessing.get_context("fork").Semaphore(channels) if channels else None

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int) -> Any:
        more = math.exp(random.Random(index).gauss(-(self.spread**2) / 2, self.spread)) if self.spread else 1.0
        if self.channels is not None:
            with self.channels:
                time.sleep(self.held * more)
        sleep = (self.sleep + (self.slow if index % 200 == 77 else 0.0)) * more
        if sleep:
            time.sleep(sleep)
        spin(self.compute)
        return np.zeros(self.size, dtype=np.uint8)


class Unpacked(Dataset[Any]):
    """Samples that are decompressed: processor and memory, nothing else."""

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        self._packed = zlib.compress(chance.integers(0, 16, 400_000, dtype=np.uint8).tobytes(), 1)

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, _index: int) -> Any:
        return np.frombuffer(zlib.decompress(self._packed), dtype=np.uint8).reshape(1000, 400)[::2, ::2].copy()


class Served(Dataset[Any]):
    """Samples that another process has, which serves so many at once: nobody sees its limit before it is met."""

    def __init__(self, channels: int, seconds: float) -> None:
        self._address = str(Path(tempfile.mkdtemp(prefix="penstock-")) / "server")
        self._connection: Any = None
        ready = torch.multiprocessing.get_context("fork").Event()
        # A daemon: it ends with the benchmark's process.
        self._server = torch.multiprocessing.get_context("fork").Process(
            target=_serve, args=(self._address, channels, seconds, ready), daemon=True
        )
        self._server.start()
        ready.wait()

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int) -> Any:
        if self._connection is None:
            self._connection = multiprocessing.connection.Client(self._address)
        self._connection.send_bytes(b"?")
        return np.frombuffer(self._connection.recv_bytes(), dtype=np.uint8)


def _serve(address: str, channels: int, seconds: float, ready: Any) -> None:
    limit = threading.Semaphore(channels)

    def answer(connection: Any) -> None:
        try:
            while connection.recv_bytes():
                with limit:
                    time.sleep(seconds)
                connection.send_bytes(b"sample")
        except (EOFError, OSError):
            pass

    with multiprocessing.connection.Listener(address, backlog=64) as listener:
        ready.set()
        while True:
            threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()


@dataclass(frozen=True)
class LoadCase:
    dataset: Dataset[Any]
    workers: int = 2
    own: float = 0.0
    """Training's own time with a batch, s."""
    computes: float = 0.0
    """Processor time that training needs for a batch besides, s."""
    budget: int | None = None
    fitted: bool = True
    """Whether constants of the replay were chosen with its recording at hand; those of which they were not say how good
    predictions are of a load that nobody has seen before."""


class Archived(Dataset[Any]):
    """Samples in one file on disk, compressed: read and unpacked, each of another length, a few twice as long."""

    def __init__(self, samples: int = 2000) -> None:
        chance = np.random.default_rng(1)
        self._path = Path(tempfile.mkdtemp(prefix="penstock-")) / "archive"
        self._places: list[tuple[int, int]] = []
        with self._path.open("wb") as file:
            for number in range(samples):
                size = int(40_000 * chance.uniform(0.5, 2.0)) * (2 if number % 50 == 0 else 1)
                packed = zlib.compress(chance.integers(0, 16, size, dtype=np.uint8).tobytes(), 1)
                self._places.append((file.tell(), len(packed)))
                file.write(packed)

    def __len__(self) -> int:
        return 10**8

    def __getitem__(self, index: int) -> Any:
        start, length = self._places[index % len(self._places)]
        with self._path.open("rb") as file:
            file.seek(start)
            return np.frombuffer(zlib.decompress(file.read(length)), dtype=np.uint8)[:10_000].copy()


def cases() -> dict[str, LoadCase]:
    return {
        "sleep": LoadCase(Loaded(sleep=0.005), 4),
        "processor": LoadCase(Loaded(compute=0.004), 2),
        "mixed": LoadCase(Loaded(sleep=0.004, compute=0.001), 2),
        "skewed": LoadCase(Loaded(sleep=0.003, slow=0.3), 4),
        "lock": LoadCase(Loaded(sleep=0.001, held=0.002, channels=1), 4),
        "storage": LoadCase(Loaded(held=0.004, channels=3), 4),
        "consumer": LoadCase(Loaded(sleep=0.004), 2, own=0.012),
        "window": LoadCase(Loaded(sleep=0.003, slow=0.2, size=1 << 18), 4, budget=16 << 20),
        "half": LoadCase(Loaded(sleep=0.003, compute=0.002), 2),
        "light lock": LoadCase(Loaded(sleep=0.006, held=0.001, channels=1, spread=0.4), 4),
        "varied": LoadCase(Loaded(sleep=0.004, spread=1.0), 4),
        "computing": LoadCase(Loaded(compute=0.001, sleep=0.002), 2, computes=0.006),
        "unpacked": LoadCase(Unpacked(), 2),
        "big": LoadCase(Loaded(sleep=0.002, size=1 << 20), 4),
        "tiny": LoadCase(Loaded(), 2),
        "served": LoadCase(Served(6, 0.004), 4),
        "in step": LoadCase(Loaded(sleep=0.006, held=0.001, channels=1), 4, fitted=False),
        "uneven": LoadCase(Loaded(sleep=0.002, compute=0.0015, spread=0.6), 3, own=0.006, fitted=False),
        "archived": LoadCase(Archived(), 2, computes=0.001, fitted=False),
        "bursts": LoadCase(Loaded(sleep=0.004, slow=0.08, spread=0.3), 3, own=0.004, computes=0.002, fitted=False),
    }
