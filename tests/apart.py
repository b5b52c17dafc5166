"""Where Ray may run in tests and benchmarks: in namespaces of their own, of the network and of processes.

Ray listens on all interfaces, so that it must not run where others could reach it: there is nothing but `lo`. And what
it starts may outlive it: here everything ends with the first process, and that one with whoever started it.
"""

from __future__ import annotations

import importlib.util
import subprocess

# The shell stays, as the first process: it reaps what loses its parent. A raylet that nobody reaps seems to be alive.
APART = (
    *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("sh", "-c", 'ip link set lo up && "$@"; exit $?', "apart"),
)
"""Runs what follows apart from the rest of the machine."""


def why_not_on_ray() -> str:
    """Why nothing can be run on a Ray cluster here; empty: it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed"
    try:
        refused = subprocess.run([*APART, "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        refused = True
    return "only root may make namespaces, and Ray must not be reached from outside" if refused else ""
