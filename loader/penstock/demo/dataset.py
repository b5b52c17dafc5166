"""Images to train on: fetched from a storage that is slow on purpose, decoded anew for every sample."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from .drawing import SHAPES, decode, files

Sample = tuple[Tensor, int]
"""An image, and the place of its shape in SHAPES."""


class Shapes(Dataset[Sample]):
    """JPEG images of simple shapes.

    Decoding is real work for a processor. The waiting is not: the worker sleeps, as one does that reads from a slow
    disk or over the network. So, as with such a storage, more workers help even on a machine with few cores; had the
    decoding been what is slow, they would help only as far as there are cores for them.

    length: samples in an epoch.
    side: pixels along each side of an image.
    wait: seconds that every sample waits for its storage.
    slow_share: the share of samples, 0 to 1, that wait longer. Which ones they are is fixed by their index.
    slow_wait: seconds that those wait.
    compute: processor seconds that every sample takes at the least: it is decoded again and again for so long.
    """

    def __init__(
        self,
        length: int,
        side: int = 64,
        wait: float = 0.0,
        slow_share: float = 0.0,
        slow_wait: float = 0.0,
        compute: float = 0.0,
    ) -> None:
        self.length, self.side, self.wait, self.slow_share, self.slow_wait = length, side, wait, slow_share, slow_wait
        self.compute = compute
        self._files = files()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        number = index % len(self._files)
        wait = self.slow_wait if self.is_slow(index) else self.wait
        if wait:
            time.sleep(wait)
        until = time.thread_time() + self.compute
        while time.thread_time() < until:
            decode(self._files[number], self.side)
        pixels = torch.from_numpy(np.array(decode(self._files[number], self.side))).permute(2, 0, 1)
        return pixels.to(torch.float32).div_(255), number % len(SHAPES)

    def is_slow(self, index: int) -> bool:
        # Multiplying by an odd constant scatters neighbours over the whole range of 32 bits.
        return (index * 2654435761 + 1) % 2**32 < self.slow_share * 2**32


class ShapeStream(IterableDataset[Sample]):
    """The same images one after the other. Each worker reads its own part, so their number is fixed for the epoch."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, apart = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, len(self._shapes), apart):
            yield self._shapes[index]
