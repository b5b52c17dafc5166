"""A small model and its training steps."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from .drawing import SHAPES


def small_model() -> nn.Module:
    """The same weights every time, so that runs can be compared."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, len(SHAPES)),
    )


class Training:
    """Teaches a model. A step that is over early waits: it stands in for a large model on an accelerator, for which the
    processor waits too, and which leaves the cores to the workers.
    """

    RATE = 0.05

    def __init__(self, model: nn.Module, step: float) -> None:
        torch.set_num_threads(1)
        self._model = model
        self._step = step

    def learn(self, images: Tensor, labels: Tensor) -> None:
        begun = time.monotonic()
        loss = nn.functional.cross_entropy(self._model(images), labels)
        self._model.zero_grad()
        torch.autograd.backward(loss)
        with torch.no_grad():  # torch.optim would do the same, but first import a compiler for some seconds
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=self.RATE)
        time.sleep(max(begun + self._step - time.monotonic(), 0.0))
