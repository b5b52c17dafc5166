"""Which caches are the same without a key: those that the ranks of one launch make of the same dataset."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from hashlib import blake2b
from typing import Any

_MOST = 16 << 20
"""Bytes of a dataset's pickle that are looked at."""

_LAUNCH = (
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "WORLD_SIZE",
)  # fmt: skip
"""What launchers tell all ranks alike."""

_made: Counter[str] = Counter()
"""How many caches of each identity this process has made."""


class _EnoughError(Exception):
    """As much was hashed as is looked at."""


class _Hashed:
    """A file that is hashed and not kept."""

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=16)
        self._left = _MOST

    def write(self, part: Any) -> int:
        self.hash.update(memoryview(part)[: self._left])
        self._left -= len(part)
        if self._left <= 0:
            raise _EnoughError
        return len(part)


def launch_identity(dataset: object) -> str | None:
    """The same for the same dataset in each rank of a launch; None: there is only one rank, or it cannot be told."""
    if not os.environ.get("MASTER_PORT") or int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return None
    file = _Hashed()
    try:
        pickle.Pickler(file, 5).dump(dataset)
    except _EnoughError:
        pass
    except Exception:  # of the user's own code, or it cannot be pickled: then nothing is shared
        return None
    launch = "/".join(os.environ.get(name, "") for name in _LAUNCH)
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    known = f"launch {launch} dataset {kind} {file.hash.hexdigest()}"
    _made[known] += 1
    return f"{known} number {_made[known]}"
