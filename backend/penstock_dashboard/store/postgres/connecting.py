"""Connections to PostgreSQL, made again when they are lost."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..database import Unavailable
from .schema import SCHEMA, Connection

CONNECT_WITHIN = 5
"""Seconds."""


def shown(url: str) -> str:
    """The address for people: no password in it."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "the address given"
    port = f":{parts['port']}" if "port" in parts else ""
    return f"postgresql://{parts.get('host', '')}{port}/{parts.get('dbname', '')}"


def connect(url: str) -> Connection:
    """A new connection; raises `Unavailable`."""
    try:
        connection: Connection = psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=CONNECT_WITHIN,
            application_name="penstock",
            # A server that has vanished is noticed within half a minute.
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=20_000,
        )
        connection.execute(f"SET search_path TO {SCHEMA}")
        # Messages are text in a few shapes: each is planned once.
        connection.prepare_threshold = 2
    except psycopg.Error as error:
        raise Unavailable(f"The database {shown(url)} cannot be reached: {_reason(error)}") from error
    return connection


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
