"""A scenario with many ranks: one process each, on this machine.

They are forked rather than started anew, once torch is imported and the images are drawn: six fresh processes would
take ten seconds for that. Nothing has been computed by then, so no thread is lost in a fork.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import NoReturn

import torch._dynamo  # noqa: F401  DDP does that, in every rank unless it was done before
import torch.distributed as dist

from .distributed import Plan, Rank
from .drawing import files
from .ending import Ending, leave
from .scenarios import Scenario

PATIENCE = 1.5
"""Seconds that the ranks have to end together; a rank that waits for a paused one cannot."""
ENDINGS = {signal.SIGINT, signal.SIGTERM}


def train(scenario: Scenario, link: str, seconds: float | None, ending: Ending) -> int:
    files()
    plan = Plan(scenario, link, seconds, launcher=os.getpid())
    meeting = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    ranks: list[int] = []
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # until somebody would end what has been started
    for rank in range(scenario.ranks):
        pid = os.fork()
        if not pid:
            _be(rank, plan, meeting / "store")
        ranks.append(pid)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        return _watch(ranks, ending)
    finally:
        _end(ranks)
        shutil.rmtree(meeting, ignore_errors=True)


def _be(rank: int, plan: Plan, store: Path) -> NoReturn:
    """The child. It never returns to what its parent was about to do."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the launcher alone heeds it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        os.environ["LOCAL_RANK"] = str(rank)
        ranks = plan.scenario.ranks
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        Rank(plan).train()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave(status)


def _watch(ranks: list[int], ending: Ending) -> int:
    """Until all have ended, or one has failed."""
    while ranks and not ending.asked:
        for pid in list(ranks):
            if (status := _status(pid)) is not None:
                ranks.remove(pid)
                if status:
                    return 1
        time.sleep(0.1)
    return 0


def _end(ranks: list[int]) -> None:
    for pid in ranks:
        os.kill(pid, signal.SIGTERM)
    by = time.monotonic() + PATIENCE
    while ranks and time.monotonic() < by:
        ranks[:] = [pid for pid in ranks if _status(pid) is None]
        time.sleep(0.02)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _status(pid: int) -> int | None:
    """How the process ended; None: it has not."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None
