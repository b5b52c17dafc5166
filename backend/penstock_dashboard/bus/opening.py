"""Which bus the settings mean."""

from __future__ import annotations

from ..settings import Settings
from ..store import Unavailable
from . import Bus
from .alone import InProcess

REDIS = ("redis://", "rediss://")


def open_bus(settings: Settings, key: str) -> Bus:
    """The bus, not started. `key`: a secret that all replicas share. Raises `Unavailable`."""
    if not settings.bus:
        return InProcess()
    try:
        from .on_redis import OnRedis
    except ImportError as error:
        raise Unavailable(f"--bus needs redis ({error}): pip install 'penstock[redis]'") from error
    return OnRedis(settings.bus, key)
