"""Run by Python at its start where `penstock run` has put this folder on PYTHONPATH; then the user's own of that name.

Nothing here may disturb the program: a Python that cannot have Penstock goes on without.
"""

import os
import sys


def _adopt() -> None:
    if os.environ.get("PENSTOCK_AUTO", "").strip().lower() in ("", "0", "no", "off", "false"):
        return
    try:
        from penstock.adoption.replacing import install
    except ImportError:  # of another environment, in which Penstock is not installed
        return
    install()


def _run_the_users_own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]  # noqa: PTH100
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec(__name__, sys.path)
    if spec is None or spec.loader is None:
        return
    module = sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(module)


try:
    _adopt()
except Exception as error:
    print(f"Penstock could not be adopted by this process, which goes on without: {error!r}", file=sys.stderr)
if __name__ == "sitecustomize":
    _run_the_users_own()
