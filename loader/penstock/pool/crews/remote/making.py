"""The crew for what a loader was given as `workers`."""

from __future__ import annotations

import secrets

from ....agent.options import Agents, Remote
from ....agent.placer import Settings
from ...inbox import Inbox
from .crew import RemoteCrew
from .placing import Placing


def make_crew(workers: Remote, inbox: Inbox, base_seed: int, rows: int, max_retries: int, wanted: int) -> RemoteCrew:
    """`wanted`: how many workers there are to be at first, without those that run here."""
    begin = (base_seed, rows, max_retries)
    if isinstance(workers, Agents):
        return RemoteCrew(inbox, workers.addresses, workers.secret(), workers.local, begin)
    token = secrets.token_hex(32)
    runtime_env = None if workers.runtime_env is None else dict(workers.runtime_env)
    placing = Placing(Settings(workers.address, token, workers.bundle(), runtime_env))
    return RemoteCrew(inbox, (), token.encode(), workers.local, begin, placing, max(wanted, 0))
