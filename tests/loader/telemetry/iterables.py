"""Things that can be iterated, each in a way of its own. All give the tensors [0, 1], [2, 3], [4, 5]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data

BATCHES = [[0, 1], [2, 3], [4, 5]]


def tensors() -> list[torch.Tensor]:
    return [torch.tensor(batch) for batch in BATCHES]


def generator() -> Iterator[torch.Tensor]:
    yield from tensors()


class Iterable:
    """Only what `for` needs. Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.asked += 1
        return iter(tensors())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Indexed:
    """As before there was `__iter__`."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return tensors()[index]


class Restarting:
    """Is its own iterator, and begins anew with each `iter()`, as DALI's do."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Restarting:
        self.place = 0
        return self

    def __next__(self) -> torch.Tensor:
        if self.place == 3:
            raise StopIteration
        self.place += 1
        return tensors()[self.place - 1]


class CallsItself(Restarting):
    """Its iterator calls `next()` of the thing itself."""

    def __iter__(self) -> Any:
        self.place = 0
        return iter(self.__next__, None)


class Slotted:
    """Has no room for anything."""

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given = 7

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(tensors())


class Registry(Iterable):
    """Notices its subclasses."""

    known: list[str] = []  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        cls.known.append(cls.__name__)


class Unsized(Iterable):
    def __len__(self) -> int:
        raise RuntimeError("not to be asked")


class PrefetchLoader:
    """In the shape of timm's: moves batches to a device, one ahead of training."""

    def __init__(self, loader: Any, device: str = "cpu") -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.mixup = True

    def __iter__(self) -> Iterator[Any]:
        first, batch = True, None
        for following in self.loader:
            moved = following.to(self.device, non_blocking=True)
            if not first:
                yield batch
            first, batch = False, moved
        yield batch

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> Any:
        return self.loader.sampler

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def mixup_enabled(self) -> bool:
        return self.mixup

    @mixup_enabled.setter
    def mixup_enabled(self, on: bool) -> None:
        self.mixup = on


def prefetched(workers: int) -> PrefetchLoader:
    return PrefetchLoader(torch.utils.data.DataLoader(range(6), batch_size=2, num_workers=workers))  # type: ignore[arg-type]
