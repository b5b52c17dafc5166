"""Datasets whose samples take their time, or wait until they are let through; and a clock that only they move."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch.multiprocessing
from torch.utils.data import Dataset

from tests.loader.support import Samples
from tests.patience import PATIENCE


class Clock:
    """Time that passes when a dataset says so, and only then: what a sample costs does not depend on the machine.

    In place of `fetching._clock`, in this process and in workers that are forked from it.
    """

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def pass_ms(self, milliseconds: float) -> None:
        self.now += int(milliseconds * 1_000_000)


CLOCK = Clock()


class Unhurried(Samples):
    """Every sample takes so many seconds."""

    seconds = 0.01

    def __getitem__(self, key: Any) -> Any:
        time.sleep(self.seconds)
        return super().__getitem__(key)


class Gated(Dataset[Any]):
    """Some samples wait until they are let through; each has a gate of its own."""

    def __init__(self, length: int, gated: Iterable[int] = (), seconds: float = 0.0) -> None:
        """By `CLOCK`, a gated sample takes a second and any other a ms, too long to be left untimed."""
        self.length, self.seconds = length, seconds
        context = torch.multiprocessing.get_context("fork")
        self.gates = {index: context.Event() for index in gated}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.gates:
            return self.dawdle(index)
        CLOCK.pass_ms(1)
        time.sleep(self.seconds)
        return index

    def dawdle(self, index: int) -> int:
        self.gates[index].wait(PATIENCE)
        CLOCK.pass_ms(1000)
        return index

    def open(self) -> None:
        """Let all through."""
        for gate in self.gates.values():
            gate.set()
