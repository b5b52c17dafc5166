"""A training loop that says where its time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .dataset import SHAPES

Batch = tuple[Tensor, Tensor]
"""Images and labels."""


@dataclass
class Progress:
    seconds: float = 0.0
    """Since the first batch came."""
    waiting: float = 0.0
    """Seconds of them in `next()`."""
    images: int = 0
    """Trained on in that time."""
    loss: float = 0.0
    """Of late: an average that forgets."""
    accuracy: float = 0.0
    """Share of images named rightly, of late."""

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        return self.waiting / self.seconds if self.seconds else 0.0

    def learn(self, loss: float, accuracy: float) -> None:
        weight = 0.05 if self.images else 1.0
        self.loss += weight * (loss - self.loss)
        self.accuracy += weight * (accuracy - self.accuracy)


def small_model() -> nn.Module:
    """The same weights every time, so that runs can be compared."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(len(SHAPES)),
    )


def train(loader: Iterable[Batch], seconds: float, report: Callable[[Progress], None]) -> Progress:
    """Train for so long after the first batch; `report` is called after every step."""
    # Training stands in for an accelerator's: it must not fight with the workers for every core.
    torch.set_num_threads(1)
    model = small_model()
    progress = Progress()
    batches = endless(loader)
    batch = next(batches)
    model(batch[0])  # makes the lazy layer's weights, which the optimiser must find
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    start = time.perf_counter()
    while progress.seconds < seconds:
        images, labels = batch
        answers = model(images)
        loss = nn.functional.cross_entropy(answers, labels)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        progress.learn(loss.item(), (answers.argmax(1) == labels).float().mean().item())
        progress.images += len(labels)
        asked = time.perf_counter()
        batch = next(batches)
        now = time.perf_counter()
        progress.waiting += now - asked
        progress.seconds = now - start
        report(progress)
    return progress


def endless(loader: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        yield from loader
