"""Datasets whose samples take their time, or wait until they are let through."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch.multiprocessing
from torch.utils.data import Dataset

from tests.loader.support import Samples


class Unhurried(Samples):
    """Every sample takes so many seconds."""

    seconds = 0.01

    def __getitem__(self, key: Any) -> Any:
        time.sleep(self.seconds)
        return super().__getitem__(key)


class Gated(Dataset[Any]):
    """Some samples wait until they are let through; each has a gate of its own."""

    def __init__(self, length: int, gated: Iterable[int] = (), seconds: float = 0.0) -> None:
        self.length, self.seconds = length, seconds
        context = torch.multiprocessing.get_context("fork")
        self.gates = {index: context.Event() for index in gated}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.gates:
            return self.dawdle(index)
        time.sleep(self.seconds)
        return index

    def dawdle(self, index: int) -> int:
        self.gates[index].wait(30)
        return index

    def open(self) -> None:
        """Let all through."""
        for gate in self.gates.values():
            gate.set()
