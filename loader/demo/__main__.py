"""`python -m loader.demo`: train the same model with torch's DataLoader and with Penstock's."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training import Progress

NO_PILLOW = "The demo draws and decodes its images with Pillow, which is not installed: pip install pillow"


def main() -> int:
    options = parse()
    if importlib.util.find_spec("PIL") is None:
        print(NO_PILLOW, file=sys.stderr)
        return 1
    try:
        compare(options.seconds, options.workers, options.batch_size)
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loader.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to train with each (default 10)")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="workers for each")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch (default 32)")
    return parser.parse_args()


def compare(seconds: float, workers: int, batch_size: int) -> None:
    import torch.utils.data

    from loader import DataLoader

    from . import dataset, training

    images = dataset.Shapes()
    kinds = {"torch": torch.utils.data.DataLoader, "penstock": DataLoader}
    print(f"{seconds:g} s each, {workers} workers, batches of {batch_size} JPEG images\n")
    reached = {}
    for name, kind in kinds.items():
        loader = kind(
            images,
            batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            drop_last=True,
        )
        line = ProgressLine(name)
        reached[name] = training.train(loader, seconds, line.show)
        line.end(reached[name])
    ratio = reached["penstock"].images_per_second / reached["torch"].images_per_second
    print(f"\npenstock: {ratio:.2f} times torch's throughput")


class ProgressLine:
    """One line that is written over while it lasts; in a file or a pipe, only its last state."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shown = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if sys.stdout.isatty() and now - self._shown > 0.1:
            self._shown = now
            print("\r" + self._text(progress), end="", flush=True)

    def end(self, progress: Progress) -> None:
        print(("\r" if sys.stdout.isatty() else "") + self._text(progress), flush=True)

    def _text(self, progress: Progress) -> str:
        return (
            f"{self._name:<9}{progress.seconds:6.1f} s  {progress.images_per_second:7.0f} images/s  "
            f"waiting {progress.waiting_share:4.0%}  "
            f"loss {progress.loss:.3f}  accuracy {progress.accuracy:4.0%}"
        )


if __name__ == "__main__":
    sys.exit(main())
