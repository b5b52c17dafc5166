"""One rank of a distributed training: `torchrun --nproc-per-node 2 -m penstock.demo.distributed`.

All ranks are loaders of one run. They work in step (DDP), so a rank with slow data holds up the others: it waits for
data, while they wait for it in the collective, which is compute time to a loader. That makes it stand out.

The ranks end together. What each wants (to end, because of a signal, the time, or a launcher that is gone) and how much
it waits for data is reduced after every step, so all leave the loop behind the same step and nobody waits for a rank
that is gone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import time
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .. import DataLoader, DistributedSampler
from .dataset import Sample, Shapes
from .progress import Pace, ProgressLine
from .scenarios import SCENARIOS, STRAGGLING, Scenario
from .training import Training, small_model


@dataclass(frozen=True)
class Plan:
    """What every rank of a demo is told."""

    scenario: Scenario
    """Its number of ranks does not count: those are what was launched."""
    monitor: str | bool | None
    """As for `DataLoader`."""
    seconds: float | None
    epochs: int | None = None
    """None, for both: without end."""
    launcher: int = field(default_factory=os.getppid)
    """The process without which the ranks end."""


class Rank:
    """This process's part. The process group is there already."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._asked = False
        self._waits = [0.0] * self._ranks
        """Share of the time that each rank waits for data."""
        self._sampler, self._loader = self._make_loader()
        self._pace = Pace(self._loader.stats)
        self._line = ProgressLine() if self._rank == 0 else None

    def train(self) -> None:
        training = Training(DistributedDataParallel(small_model()), self._plan.scenario.step)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        try:
            self._run(training)
        except RuntimeError:
            if not self._asked:  # else a peer has left before the step that all had agreed upon
                raise
        finally:
            if self._line is not None:
                self._line.end()

    def _run(self, training: Training) -> None:
        plan = self._plan
        end = float("inf") if plan.seconds is None else time.monotonic() + plan.seconds
        for epoch in itertools.count() if plan.epochs is None else range(plan.epochs):
            self._sampler.set_epoch(epoch)
            for images, labels in self._loader:
                training.learn(images, labels)
                ended = self._agree(time.monotonic() > end)
                if self._line is not None:
                    self._line.show(self._text)
                if ended:
                    return

    def _make_loader(self) -> tuple[DistributedSampler, DataLoader[Sample]]:
        scenario = self._plan.scenario
        slowness = STRAGGLING if self._rank == scenario.straggler else 1
        shapes = Shapes(scenario.samples, scenario.side, scenario.wait * slowness)
        sampler = DistributedSampler(shapes)
        loader: DataLoader[Sample] = DataLoader(
            shapes,
            scenario.batch_size,
            sampler=sampler,
            num_workers=scenario.workers,
            persistent_workers=True,
            drop_last=True,
            name="train",
            monitor=self._plan.monitor,
        )
        return sampler, loader

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _agree(self, late: bool) -> bool:
        """Tell the others, and hear from them, who wants to end and who waits how much."""
        self._pace.look()
        mine: Tensor = torch.zeros(self._ranks + 1)
        mine[self._rank] = self._pace.waiting
        mine[-1] = float(late or self._asked or os.getppid() != self._plan.launcher)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        *self._waits, end = mine.tolist()
        return bool(end)

    def _text(self) -> str:
        most = max(range(self._ranks), key=self._waits.__getitem__)
        return f"{self._pace} (rank 0 of {self._ranks}; rank {most} waits the most: {self._waits[most]:.0%})"


def main() -> int:
    options = _parse()
    if "RANK" not in os.environ:
        print("Start it with torchrun --nproc-per-node 2 -m penstock.demo.distributed", file=sys.stderr)
        return 2
    scenario = replace(SCENARIOS["many-ranks"], workers=options.workers, straggler=options.straggler)
    monitor = None if os.environ.get("PENSTOCK_URL") else True
    plan = Plan(scenario, monitor, options.seconds, options.epochs)
    dist.init_process_group("gloo")
    try:
        Rank(plan).train()
    finally:
        dist.destroy_process_group()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node 2 -m penstock.demo.distributed",
        description="Train with DDP. Reports to $PENSTOCK_URL (with $PENSTOCK_TOKEN), else to the local dashboard.",
    )
    add = parser.add_argument
    add("--straggler", type=int, default=None, metavar="RANK", help="this rank has slow data")
    add("--workers", type=int, default=2, help="worker processes of each rank (default 2)")
    add("--seconds", type=float, default=None, help="end after so long")
    add("--epochs", type=int, default=None, help="end after so many")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
