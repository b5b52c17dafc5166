"""The scenario `remote` on a Ray cluster: `python -m penstock.demo.cluster`, on a machine that belongs to one.

The first worker runs here, where there are few processors; those that are added run wherever the cluster has room.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from contextlib import suppress

from ..agent.options import RayWorkers
from .ending import Ending, leave
from .scenarios import SCENARIOS
from .single import make_loader, run_training


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.demo.cluster",
        description="Train with workers that Ray places. Reports to $PENSTOCK_URL (with $PENSTOCK_TOKEN), else to the "
        "local dashboard.",
    )
    parser.add_argument("--address", default="auto", help="of the Ray cluster (default: the one of this machine)")
    parser.add_argument("--seconds", type=float, default=None, help="end after so long")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # that a cluster is too small is on the page
    scenario, ending = SCENARIOS["remote"], Ending()
    monitor = None if os.environ.get("PENSTOCK_URL") else True
    loader = make_loader(scenario, monitor, RayWorkers(options.address, local=scenario.local or 0))
    with suppress(KeyboardInterrupt):  # what it was told to wait for
        run_training(scenario, loader, options.seconds, ending)
    return leave(0)


if __name__ == "__main__":
    sys.exit(main())
