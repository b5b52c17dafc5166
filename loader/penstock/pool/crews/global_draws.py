"""Whether batches are made with global random numbers, which the threads of a process share."""

from __future__ import annotations

import random
import sys
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch

LOOKS = 2
"""Batches of a worker that are looked at. NumPy's functions cannot be seen to be called: it must have been drawn from
its generator in all of them, so that what training itself draws meanwhile is not taken for the dataset's."""

_TORCH = frozenset((
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "dropout", "rand_like",
    "randn_like", "randint_like", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_",
    "cauchy_", "log_normal_",
))  # fmt: skip
"""Names of torch's functions and methods that draw, from the global generator if they are given no other."""


class GlobalDraws:
    """While it is entered, this thread's calls are looked at; that takes its time."""

    def __init__(self) -> None:
        self.left = LOOKS
        """Batches that are still to be looked at."""
        self.found = ""
        """The module from whose global generator was drawn; empty: from none."""
        self._before: torch.Tensor | None = None
        self._numpy: Any = None
        self._numpy_drawn = 0

    def __enter__(self) -> None:
        self.left -= 1
        self._numpy = _numpy_state()
        if sys.getprofile() is None:  # else somebody else looks
            sys.setprofile(self._see)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if sys.getprofile() == self._see:
            sys.setprofile(None)
        self._numpy_drawn += self._numpy != _numpy_state()
        if self._numpy_drawn == LOOKS:
            self.found = self.found or "numpy.random"
        if self.found:
            self.left = 0

    def _see(self, frame: FrameType, event: str, function: Any) -> None:  # noqa: ARG002
        if event == "c_call":
            if getattr(function, "__self__", None) is random._inst:
                self.found = "random"
            elif getattr(function, "__name__", "") in _TORCH:
                self._before = torch.default_generator.get_state()
        elif self._before is not None and event in ("c_return", "c_exception"):
            if not torch.equal(self._before, torch.default_generator.get_state()):
                self.found = "torch"
            self._before = None


def _numpy_state() -> tuple[int, bytes]:
    state: Any = np.random.get_state()
    return state[2], state[1].tobytes()
