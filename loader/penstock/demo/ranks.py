"""A scenario with many ranks: one process each, on this machine.

They are forked rather than started anew, once torch is imported and the images are drawn: six fresh processes would
take ten seconds for that. Nothing has been computed by then, so no thread is lost in a fork.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
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
    ranks: list[int] = []
    meeting = socket.create_server(("127.0.0.1", 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)  # until somebody would end what has been started
    for rank in range(scenario.ranks):
        pid = os.fork()
        if not pid:
            _be(rank, plan, meeting)
        ranks.append(pid)
    meeting.close()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        return _watch(ranks, ending)
    finally:
        _end(ranks)


def _be(rank: int, plan: Plan, meeting: socket.socket) -> NoReturn:
    """The child. It never returns to what its parent was about to do.

    meeting: where rank 0 listens and the others find it.
    """
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the launcher alone heeds it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        os.environ["LOCAL_RANK"] = str(rank)
        host, port = meeting.getsockname()
        ranks, first = plan.scenario.ranks, rank == 0
        descriptor = meeting.detach() if first else None
        store = dist.TCPStore(host, port, ranks, first, master_listen_fd=descriptor)  # type: ignore[attr-defined]
        meeting.close()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
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
