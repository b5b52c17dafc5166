"""Any range, in at most as many buckets as asked for, with every spike."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.insight.rates import FIELDS
from penstock.protocol import History, Rates
from penstock_dashboard.settings import Retention
from penstock_dashboard.store import HistoryAsked
from penstock_dashboard.store.history import read_history
from penstock_dashboard.store.samples import Sample, pack
from penstock_dashboard.store.sqlite import compacting
from penstock_dashboard.store.sqlite.records import StoredChunks
from penstock_dashboard.store.sqlite.schema import open_database

from tests.backend.harness import Running

BEGIN = 1_700_000_040.0
MINUTES = 180
SPIKE = BEGIN + 3725.5
RETENTION = Retention(samples=1800.0, ten_seconds=7200.0)


@pytest.fixture(scope="module")
def database() -> sqlite3.Connection:
    """Three hours of one loader at 2 Hz, with one sample that stands out, compacted minute by minute."""
    connection = open_database(None)
    for minute in range(MINUTES):
        samples = [
            Sample(at, pack(Rates(batches=1000.0 if at == SPIKE else 10.0, data=float(minute))))
            for at in (BEGIN + minute * 60 + n / 2 for n in range(120))
        ]
        connection.execute("BEGIN")
        compacting.compact(connection, {1: samples}, {}, {}, BEGIN + minute * 60 + 60)
        compacting.expire(connection, RETENTION, BEGIN + minute * 60 + 60)
        connection.execute("COMMIT")
    return connection


END = BEGIN + MINUTES * 60


def ask(connection: sqlite3.Connection, start: float | None, end: float, points: int, **more: Any) -> History:
    asked = HistoryAsked(1, "x", start, end, points, 0.5, END)
    return read_history(StoredChunks(connection, 1), more.get("recent", []), asked, RETENTION)


@given(
    start=st.floats(BEGIN - 10_000, END + 1000),
    length=st.floats(0, 20_000),
    points=st.integers(1, 3000),
)
def test_any_range_is_answered_in_order_within_the_points(
    database: sqlite3.Connection, start: float, length: float, points: int
) -> None:
    history = ask(database, start, start + length, points)
    assert len(history.at) <= points
    assert history.at == sorted(set(history.at))
    assert set(history.mean) == set(FIELDS)
    assert all(len(column) == len(history.at) for column in history.mean.values())
    if history.low:
        for low, mean, high in zip(
            *(part["batches"] for part in (history.low, history.mean, history.high)), strict=True
        ):
            assert low <= mean * (1 + 1e-6) and mean <= high * (1 + 1e-6)


@pytest.mark.parametrize("points", [1, 7, 100, 600, 2000])
def test_a_spike_of_one_sample_survives(database: sqlite3.Connection, points: int) -> None:
    history = ask(database, None, END, points)
    assert max(history.high["batches"]) == 1000.0
    place = history.high["batches"].index(1000.0)
    assert abs(history.at[place] - SPIKE) <= history.step / 2 + 1e-6


def test_a_short_recent_range_has_every_sample(database: sqlite3.Connection) -> None:
    history = ask(database, END - 300, END, 1000)
    assert history.step == 0.0
    assert len(history.at) == 600
    assert history.low == {}


def test_samples_that_no_compaction_has_reached_are_there_once(database: sqlite3.Connection) -> None:
    recent = [Sample(END + n / 2, pack(Rates(batches=77.0))) for n in range(10)]
    history = ask(database, END - 60, END + 60, 1000, recent=recent)
    assert len(history.at) == 120 + 10
    # A compaction between the copy of `recent` and the query: the same samples are in a chunk as well.
    connection = open_database(None)
    compacting.compact(connection, {1: recent}, {}, {}, END)
    assert len(ask(connection, END - 60, END + 60, 1000, recent=recent).at) == 10


def test_nothing_is_known_of_a_loader_without_samples() -> None:
    history = ask(open_database(None), None, END, 100)
    assert history.at == [] and set(history.mean) == set(FIELDS)


def test_history_over_http_and_as_csv(server: Running) -> None:
    now = time.time()
    with server.loader("historic") as loader:
        for number in range(100):
            loader.snapshot(at=now - 20 + number * 0.2)
        loader.acknowledged(99)
        history = server.get(f"/api/loaders/{loader.id}/history", points=1000)
        assert len(history["at"]) == 100
        assert history["mean"]["batches"][50] == pytest.approx(10.0, rel=1e-3)
        coarse = server.get(f"/api/loaders/{loader.id}/history", **{"from": now - 30, "to": now, "points": 10})
        assert 1 < len(coarse["at"]) <= 10
        with server.http() as client:
            answer = client.get(f"/api/loaders/{loader.id}/history", params={"points": 10, "format": "csv"})
        assert answer.headers["content-type"].startswith("text/csv")
        assert "attachment" in answer.headers["content-disposition"]
        head, *lines = answer.text.strip().splitlines()
        assert head.split(",")[:2] == ["at", "batches"]
        assert "batches_high" in head
        assert len(lines) <= 10
