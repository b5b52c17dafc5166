"""`penstock demo`: find or start the dashboard, say where it is, train until Ctrl-C."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..protocol import label, loader_id
from .scenarios import SCENARIOS, STARVED, Scenario

if TYPE_CHECKING:
    from .ending import Ending

    Subparsers = argparse._SubParsersAction[Any]

DESCRIPTION = "Train a small model, watched by the dashboard, until Ctrl-C."
NO_PILLOW = "The demo draws and decodes its images with Pillow, which is not installed: pip install pillow"


def add_parser(subparsers: Subparsers) -> None:
    add_arguments(
        subparsers.add_parser("demo", help="train a small model to try the dashboard", description=DESCRIPTION)
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "scenarios:\n" + "\n".join(f"  {name:<12}{each.summary}" for name, each in SCENARIOS.items())
    add = parser.add_argument
    add("--scenario", choices=SCENARIOS, default=STARVED, metavar="NAME", help=f"see below (default: {STARVED})")
    add("--workers", type=_workers, default=None, help="worker processes at the start (default: the scenario's)")
    add("--seconds", type=float, default=None, help="end after so long (default: at Ctrl-C)")
    add("--port", type=int, default=None, help="of the dashboard (default: 8787, or a free one if that is taken)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("PIL") is None:
        print(NO_PILLOW, file=sys.stderr)
        return 1
    from .dashboard import NoDashboard, find_or_start
    from .ending import Ending, leave

    name: str = options.scenario
    scenario = SCENARIOS[name]
    if options.workers is not None:
        scenario = dataclasses.replace(scenario, workers=options.workers)
    # What scenarios do on purpose (more workers than cores, pinning without an accelerator, workers that die) is
    # warned of, across the line of progress.
    warnings.simplefilter("ignore", UserWarning)
    ending = Ending()
    status = 0
    try:
        monitor, link = find_or_start(options.port)
        # A dashboard that was there may show another demo: then this one has a name of its own.
        ours = "#once=" in link
        run = os.environ.setdefault("PENSTOCK_RUN", "demo" if ours else f"demo-{name}-{time.strftime('%H%M%S')}")
        print(f"Penstock is at {_opening(link, run, scenario)}", flush=True)
        print(f"{name}: {scenario.summary}. Ctrl-C ends it.", flush=True)
        status = _train(scenario, monitor, options.seconds, ending)
    except KeyboardInterrupt:
        pass  # what it was told to wait for
    except NoDashboard:
        status = 1
    return leave(status)


def _opening(link: str, run: str, scenario: Scenario) -> str:
    """The link that signs in and opens the page of the demo's loader; of many ranks, the overview of them."""
    alone = "#once=" in link and scenario.ranks == 1
    return f"{link}&loader={quote(loader_id(label(run), 0, 'train'), safe='')}" if alone else link


def _train(scenario: Scenario, link: str, seconds: float | None, ending: Ending) -> int:
    if scenario.ranks > 1:
        from . import ranks

        return ranks.train(scenario, link, seconds, ending)
    from . import single

    single.train(scenario, link, seconds, ending)
    return 0


def _workers(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number
