"""Being told when somebody has imported a module, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

Callback = Callable[[Any], None]

_waiting: dict[str, list[Callback]] = {}


def when_imported(name: str, callback: Callback) -> None:
    """Call `callback` with the module, now or as soon as it has been imported, before the importer goes on."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        callback(module)
        return
    _waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Finds what the other finders find, and has its loader tell when it is done."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _tell_when_loaded(name, spec.loader)
                return spec
        return None


def _tell_when_loaded(name: str, loader: Any) -> None:
    """The loader stays what it is, for those who ask it for the source: only this one load has an end that we see."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        for callback in _waiting.pop(name, ()):
            callback(module)
        if not _waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)

    loader.exec_module = exec_module


_finder = _Finder()
