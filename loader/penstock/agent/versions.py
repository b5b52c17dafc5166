"""Versions that both sides should share, and what is said of a difference."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import numpy as np
import torch

from .. import __version__


def versions() -> dict[str, str]:
    """Of this process: name → version, without what only says how it was built."""
    return {
        "Python": platform.python_version(),
        "torch": str(torch.__version__).partition("+")[0],
        "numpy": np.__version__,
        "penstock": __version__,
    }


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Those for which batches might differ or not arrive, and those that are only worth a word.

    The last number of a version is a repair, but for Penstock's own, whose two sides must be the same.
    """
    grave, slight = list[str](), list[str]()
    for name, ours in here.items():
        theirs = str(there.get(name, "none"))
        if ours != theirs:
            same = name != "penstock" and ours.split(".")[:2] == theirs.split(".")[:2]
            (slight if same else grave).append(f"{name} {theirs}, not {ours}")
    return grave, slight
