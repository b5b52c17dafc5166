"""Whose code a function is: the user's own, or a library's."""

from __future__ import annotations

import functools
import site
import sysconfig
from pathlib import Path

_INSTALLED = ("/site-packages/", "/dist-packages/")
_OURS = f"{Path(__file__).resolve().parents[1]}/"


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    return tuple(f"{folder}/" for folder in folders)


_LIBRARIES = _library_folders()


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Whether a file, named as code objects name theirs, is neither installed, nor Python's own, nor ours.

    What has no file is a library's as a rule; but what was typed into a notebook, an interpreter or a command line is
    the user's.
    """
    if file.startswith("<"):
        return file.startswith(("<string>", "<stdin", "<ipython", "<python-input"))
    if any(mark in file for mark in _INSTALLED):
        return False
    return not file.startswith((_OURS, *_LIBRARIES))
