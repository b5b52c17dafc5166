"""The disk fails or fills at the n-th write, for every n of a short recording. What was reported as stored is there
afterwards; what was not is said to be at risk; and the file can be used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from penstock.protocol import Rates
from penstock_dashboard.settings import Retention
from penstock_dashboard.store import Batch, LoaderRecord, Mark, Sample, Store, sqlite
from penstock_dashboard.store.samples import pack
from penstock_dashboard.store.sqlite import FILE_NAME, Sqlite
from penstock_dashboard.store.sqlite.schema import open_database

from tests.backend.faulty_disk import Fault, FaultyDisk
from tests.backend.harness import make_hello
from tests.patience import PATIENCE

MESSAGES = 8
KEY = 1


class Recording(msgspec.Struct):
    durable: int = -1
    """Last message that was reported as stored for good."""
    stored: int = -1
    """Last message that was reported at all."""
    warning: str = ""


async def record(data: Path) -> Recording:
    """Messages one after the other, each stored before the next, and a compaction; the log is emptied meanwhile."""
    made = Recording()

    def committed(batch: Batch, durable: bool) -> None:
        for mark in batch.marks.values():
            made.stored = mark.seq
            made.durable = mark.seq if durable else made.durable

    database = Sqlite(data, Retention(max_bytes=8 << 20))
    database.space._log_size = 20_000
    store = Store(database, 0.0)
    store.on_commit = committed
    async with asyncio.timeout(PATIENCE):
        await store.start()
        hello = msgspec.msgpack.encode(make_hello())
        owner = await store.owner("local")
        claim = (await store.claim("run:0:train", "i", owner, hello)).number
        store.loader(LoaderRecord(KEY, "run:0:train", hello, b"snapshot", "connected", 1.0, owner, claim=claim))
        for seq in range(0, MESSAGES, 2):
            body = b'{"n":%d,"%s":0}' % (seq, b"x" * 6000)
            store.events(KEY, 1, "run:0:train", time.time(), [("epoch", body)], Mark("i", seq, claim))
            await store.committed()
            store.sample(KEY, 1, Sample(float(seq), pack(Rates())), Mark("i", seq + 1, claim))
            await store.committed()
            if seq == MESSAGES // 2:
                store._writer.run_job(lambda _database: database.compact())
        await store.committed()
        made.warning = store.warning
        await store.stop()
    return made


def check(data: Path, made: Recording) -> None:
    assert made.stored == MESSAGES - 1, "whatever happens, it goes on"
    assert made.durable == MESSAGES - 1 or "memory" in made.warning, "what is at risk is said to be"
    with contextlib.closing(sqlite3.connect(data / FILE_NAME)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if made.durable < 0 and not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return
        bodies = [row[0] for row in database.execute("SELECT body FROM events ORDER BY id")]
        found = [int(body[5 : body.index(b",")]) for body in bodies]
        assert found == sorted(set(found)), "nothing twice"
        assert set(range(0, made.durable + 1, 2)) <= set(found), "what was acknowledged is there"
        marks = [row[0] for row in database.execute("SELECT last_seq FROM marks")]
        assert max(marks, default=-1) >= made.durable
        samples = database.execute("SELECT count(*) FROM recent").fetchone()[0]
        chunks = database.execute("SELECT count(*) FROM chunks WHERE tier = 0").fetchone()[0]
        assert made.durable < 1 or samples + chunks > 0


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: hundreds of databases are made, and what is tested is not the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.mark.parametrize("fault", ["fills", "fails", "fails once"])
def test_what_was_acknowledged_outlives_a_fault_at_every_write(
    quick: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TRIES", 1)
    caplog.set_level("CRITICAL", "penstock.store")  # it has much to say here
    with FaultyDisk(1 << 60, fault).in_place() as disk:
        made = asyncio.run(record(quick / "none"))
    writes = disk.writes
    assert made.durable == MESSAGES - 1 and made.warning == ""
    assert writes > 30, "the recording writes, and is counted"
    for nth in range(1, writes + 1):
        data = quick / str(nth)
        with FaultyDisk(nth, fault).in_place():
            made = asyncio.run(record(data))
        check(data, made)
        open_database(data / FILE_NAME).close()  # it is of use again
        shutil.rmtree(data)
