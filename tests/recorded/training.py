"""A training with a real loader, whose samples take time and no processor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import torch
from penstock import DataLoader
from torch.utils.data import Dataset, IterableDataset

from .shapes import Shape


class Images(Dataset[torch.Tensor]):
    """Samples that take as long as the shape says."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def __len__(self) -> int:
        return self._shape.batches * self._shape.batch_size

    def __getitem__(self, index: int) -> torch.Tensor:
        shape = self._shape
        time.sleep(shape.fetch / shape.batch_size)
        if shape.slow_every and index % (shape.slow_every * shape.batch_size) == shape.batch_size // 2:
            time.sleep(shape.slow)
        return torch.full((3, 32, 32), float(index))


class ImageStream(IterableDataset[torch.Tensor]):
    """The same samples, one after the other, shared out among the workers."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(self._images.__getitem__, range(first, len(self._images), step))


def train(shape: Shape, name: str) -> None:
    """Train until SIGTERM comes, and end in an orderly way then. Where to publish is in the environment."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    images = Images(shape)
    loader: DataLoader[torch.Tensor] = DataLoader(
        ImageStream(images) if shape.stream else images,
        shape.batch_size,
        num_workers=shape.workers,
        max_workers=shape.max_workers,
        name=name,
        monitor=os.environ["PENSTOCK_URL"],
    )
    with loader:
        while not asked:
            for _ in loader:
                time.sleep(shape.step)
                if asked:
                    break
