"""What a worker's state, as it stands on the board, means to a profile."""

from __future__ import annotations

from typing import get_args

from ..protocol import WorkerState
from .tree import PHASES

_STATES = get_args(WorkerState)
IDLE, FETCHING, COLLATING, SENDING = (_STATES.index(state) for state in ("idle", "fetching", "collating", "sending"))

PHASE_OF = {
    FETCHING: PHASES.index("fetch"),
    COLLATING: PHASES.index("collate"),
    SENDING: PHASES.index("send"),
}
"""State → phase; in all other states a worker has nothing to do."""


def is_idle(state: int) -> bool:
    return state not in PHASE_OF
