"""`import penstock.auto`: every DataLoader of torch's is one of ours, in this process and in all that it starts.

The same as `penstock run`, as a line. It may come before or after torch and everything else is imported.
"""

from __future__ import annotations

import os

from .adoption.environment import AUTOTUNE, NO_DASHBOARD, READ_ONLY, VARIABLE, spread
from .adoption.replacing import install

_given = {word.strip().lower() for word in os.environ.get(VARIABLE, "").split(",")}
spread(os.environ, [word for word in (NO_DASHBOARD, READ_ONLY, AUTOTUNE) if word in _given])
install()
