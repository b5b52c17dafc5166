"""Which database the settings mean."""

from __future__ import annotations

from ..settings import Settings
from .database import Database, Unavailable
from .sqlite import Sqlite

POSTGRES = ("postgresql://", "postgres://")


def open_database(settings: Settings) -> Database:
    """The database, opened; raises `Unavailable`."""
    if not settings.store:
        return Sqlite(settings.data, settings.retention, settings.limits.batch)
    try:
        from .postgres import Postgres
    except ImportError as error:
        raise Unavailable(f"--store needs psycopg ({error}): pip install 'penstock[postgres]'") from error
    return Postgres(settings.store, settings.retention, settings.limits.batch)
