"""The datasets that are timed. Samples are ready-made where they are not the point: the loader is timed."""

from __future__ import annotations

import functools
import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Samples(Dataset[Any]):
    """A dataset whose length can be set between epochs, so that a short epoch can warm the pool up."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def mark(self, index: int) -> int:
        """What `Workload.marks` must find in the batch at this sample's place."""
        return index


class Integers(Samples):
    """tiny1, tiny64: the sample is its index."""

    def __getitem__(self, index: int) -> int:
        return index


class Dictionaries(Samples):
    """dict20: twenty small tensors a sample."""

    KINDS = 37  # coprime to the batch size, so that neighbouring batches differ

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.samples = [{f"t{k}": torch.full((8,), kind) for k in range(20)} for kind in range(self.KINDS)]

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.samples[index % self.KINDS]

    def mark(self, index: int) -> int:
        return index % self.KINDS


class BigImages(Samples):
    """big: 3×224×224 float32 a sample."""

    KINDS = 17

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.images = [torch.full((3, 224, 224), float(kind)) for kind in range(self.KINDS)]

    def __getitem__(self, index: int) -> Tensor:
        return self.images[index % self.KINDS]

    def mark(self, index: int) -> int:
        return index % self.KINDS


class Skewed(Samples):
    """skew: 2 ms a sample, every 50th 100 ms.

    `time.sleep` wakes up late, by 0.05 to 0.2 ms here. The next sample sleeps so much less, so that the work is what
    it is said to be and the ideal can be reached.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.late = 0.0

    def __getitem__(self, index: int) -> int:
        start, cost = time.perf_counter(), self.cost(index)
        time.sleep(max(cost - self.late, 0.0))
        self.late = max(self.late + time.perf_counter() - start - cost, 0.0)
        return index

    def cost(self, index: int) -> float:
        return 0.1 if index % 50 == 0 else 0.002

    def work(self) -> float:
        """Seconds in one epoch's samples."""
        return sum(map(self.cost, range(self.length)))


class Sleeping(Samples):
    """sleep: 10 ms a sample, in which no processor is needed."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


class Jpegs(Samples):
    """jpeg: Pillow decodes about 500×375 pixels from memory and resizes them to 224×224."""

    KINDS = 29

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.files = [encoded_jpeg(kind) for kind in range(self.KINDS)]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index % self.KINDS])) as file:
            image = file.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.to(torch.float32).div_(255), index


def encoded_jpeg(seed: int) -> bytes:
    """A photo-like JPEG: soft shapes under fine grain, about 500×375."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    size = (int(rng.integers(480, 521)), int(rng.integers(360, 391)))
    blots = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    shapes = blots.resize(size, Image.Resampling.BICUBIC)
    grain = rng.normal(0, 8, (size[1], size[0], 3))
    pixels = np.clip(np.asarray(shapes) + grain, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


class SlowToUnpickle(Integers):
    """spawn_first: a second of processor time to unpickle, as a large index of files would take."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.turns = turns_per_second()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        spin(self.turns)


def spin(turns: int) -> None:
    for _ in range(turns):
        pass


def turns_per_second() -> int:
    """How many turns `spin` makes in a second of an otherwise idle processor."""
    turns = 2_000_000

    def once() -> float:
        start = time.perf_counter()
        spin(turns)
        return time.perf_counter() - start

    return int(turns / min(once() for _ in range(5)))


class ManyObjects(Integers):
    """restart, control: 500 MB of Python objects, as a list of file names and labels would be."""

    RECORD_BYTES = 190  # a list entry, a tuple, a string of 70 characters and an integer

    def __init__(self, length: int, megabytes: int = 500) -> None:
        super().__init__(length)
        count = megabytes * 1_000_000 // self.RECORD_BYTES
        self.records = [(f"/data/train/{number:058d}", number + 1_000_000) for number in range(count)]

    def __getitem__(self, index: int) -> int:
        return self.records[index][1] - 1_000_000


class Timed(Samples):
    """control: says who loaded a sample and when. It takes the same time for every sample."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index: int) -> tuple[int, int, float, float]:
        """(index, process, start and end by the clock that all processes share)"""
        start = time.monotonic()
        time.sleep(self.seconds)
        return index, os.getpid(), start, time.monotonic()


class TimedAmongObjects(Timed):
    """control: the same with 500 MB of Python objects beside it."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length, seconds)
        self.objects = ManyObjects(0)


@dataclass(frozen=True)
class Workload:
    """A dataset, how it is batched, and how to see that the right batches came."""

    dataset: Callable[[int], Samples]
    batch_size: int
    marks: Callable[[Any], Tensor]
    """One number a sample: `Samples.mark` of each, in order."""
    leaf: Callable[[Any], Tensor]
    """A tensor of the batch that is as long as the batch; cheap, for it is looked at in timed loops."""

    def size(self, batch: object) -> int:
        """Samples in the batch."""
        return self.leaf(batch).shape[0]

    def check(self, batch: object, dataset: Samples, first: int) -> None:
        """Raise unless the batch is made of the samples from `first` on."""
        found = self.marks(batch).tolist()
        wanted = [dataset.mark(index) for index in range(first, min(first + self.batch_size, len(dataset)))]
        if found != wanted:
            raise RuntimeError(f"the batch from sample {first} on has marks {found}, not {wanted}")


def itself(batch: Tensor) -> Tensor:
    return batch


def first_entry(batch: dict[str, Tensor]) -> Tensor:
    return batch["t0"]


def first_entry_marks(batch: dict[str, Tensor]) -> Tensor:
    return batch["t19"][:, -1]


def corner_pixels(batch: Tensor) -> Tensor:
    return batch[:, -1, -1, -1].int()


def labels(batch: tuple[Tensor, Tensor]) -> Tensor:
    return batch[1]


_integers = functools.partial(Workload, marks=itself, leaf=itself)

WORKLOADS = {
    "tiny1": _integers(Integers, 1),
    "tiny64": _integers(Integers, 64),
    "dict20": Workload(Dictionaries, 32, first_entry_marks, first_entry),
    "big": Workload(BigImages, 64, corner_pixels, itself),
    "skew": _integers(Skewed, 4),
    "sleep": _integers(Sleeping, 1),
    "jpeg": Workload(Jpegs, 64, labels, labels),
    "spawn_first": _integers(SlowToUnpickle, 4),
    "restart": _integers(ManyObjects, 32),
}
