"""`import loader`: the public names of `penstock`, for training code that took them from `torch.utils.data` before.

Many projects have a `loader` of their own. Theirs is meant then, wherever on the path it is, as if this file were not
installed; `from penstock import DataLoader` works beside it.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import penstock

if "DataLoader" not in dir(penstock):
    raise ImportError(
        f"{penstock.__file__} is found under the name penstock before the installed package: "
        "rename it, or remove its folder from sys.path."
    )


def _another() -> ModuleSpec | None:
    """A `loader` that is not ours. One in an editable install comes later on the path than we do."""
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent.resolve()]
    for finder in sys.meta_path:
        spec = PathFinder.find_spec(__name__, elsewhere) if finder is PathFinder else finder.find_spec(__name__, None)
        if spec is not None and spec.loader is not None and spec.origin is not None and not _is_ours(spec.origin):
            return spec
    return None


def _is_ours(path: str) -> bool:
    """There are two of this file, perhaps of two versions, where it is installed to be edited."""
    return (__doc__ or "").splitlines()[0].encode() in Path(path).read_bytes()


_theirs = _another() if __name__ == "loader" else None
if _theirs is not None and _theirs.loader is not None:
    sys.modules[__name__] = module_from_spec(_theirs)
    _theirs.loader.exec_module(sys.modules[__name__])
else:
    from penstock import *  # noqa: F403
    from penstock import __all__, __version__  # noqa: F401
