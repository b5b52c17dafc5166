"""What every kind of database promises to the store: one suite for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from penstock.protocol import Rates
from penstock_dashboard.settings import Retention
from penstock_dashboard.store import Batch, Claim, CommandsAsked, CommandStored, EventRecord, EventsAsked, HistoryAsked
from penstock_dashboard.store.batch import LoaderRecord, Mark, RunChangeStored, RunPlace
from penstock_dashboard.store.compaction import INTERVAL
from penstock_dashboard.store.database import Database, Wanted
from penstock_dashboard.store.samples import Sample, pack
from penstock_dashboard.store.sqlite import Sqlite

from tests.backend.harness import make_hello
from tests.backend.servers import PostgresServer

LOADER = "run:0:train"
PLACES = ("pinned", "hidden", "pinned", "pinned")
HELLO = msgspec.msgpack.encode(make_hello())

Open = Callable[[], Database]


def _sqlite(request: pytest.FixtureRequest) -> Open:
    folder: Path = request.getfixturevalue("folder")
    return lambda: Sqlite(folder, Retention())


def _memory(_request: pytest.FixtureRequest) -> Open:
    return lambda: Sqlite(None, Retention())


def _postgres(request: pytest.FixtureRequest) -> Open:
    server: PostgresServer = request.getfixturevalue("postgres")
    from penstock_dashboard.store.postgres import Postgres

    url = server.database()
    return lambda: Postgres(url, Retention())


@pytest.fixture(params=[_sqlite, _memory, _postgres], ids=lambda kind: kind.__name__.strip("_"))
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens the same database again and again; this thread is its writer."""
    made: list[Database] = []
    make: Open = request.param(request)

    def open_again() -> Database:
        database = make()
        database.begin()
        made.append(database)
        return database

    yield open_again
    for database in made:
        database.close()


@pytest.fixture
def database(opened: Open) -> Database:
    return opened()


def claim(database: Database, loader: str = LOADER, incarnation: str = "i") -> Claim:
    owner = database.owner("local")
    (made,) = database.claim([Wanted(loader, incarnation, owner, HELLO, time.time())])
    return made


def message(made: Claim, seq: int, *, incarnation: str = "i", at: float | None = None, events: int = 1) -> Batch:
    """A batch with one snapshot and some events of one loader."""
    batch = Batch()
    batch.add_sample(made.key, made.owner, Sample(time.time() if at is None else at, pack(Rates(batches=seq))))
    for number in range(events):
        body = b'{"seq":%d,"n":%d}' % (seq, number)
        batch.add_event(EventRecord(0, made.key, LOADER, time.time(), "epoch", body, made.owner))
    batch.add_mark(made.key, Mark(incarnation, seq, made.number))
    return batch


def bodies(database: Database, key: int, **more: object) -> list[bytes]:
    asked = msgspec.structs.replace(EventsAsked(key, LOADER), **more)
    return [record.body for record in database.events(asked)]


def history(database: Database, key: int, points: int = 1000) -> list[float]:
    now = time.time()
    found = database.history(HistoryAsked(key, LOADER, None, now + 120, points, 0.2, now))
    return found.mean["batches"]


def test_a_new_loader_has_a_number_of_its_own_and_nothing_stored(database: Database) -> None:
    first, other = claim(database), claim(database, "run:1:train")
    assert first.key != other.key
    assert first.last_seq == other.last_seq == -1
    assert first.owner == other.owner == database.owner("local") != database.owner("another")


def test_a_claim_says_what_is_stored_of_this_incarnation(database: Database) -> None:
    first = claim(database)
    database.store(message(first, 7))
    again = claim(database)
    assert (again.key, again.last_seq) == (first.key, 7)
    assert again.number > first.number
    assert claim(database, incarnation="another").last_seq == -1


def test_several_loaders_are_claimed_at_once_and_one_of_them_twice(database: Database) -> None:
    owner = database.owner("local")
    names = ["run:2:train", "run:3:train", "run:2:train"]
    made = database.claim([Wanted(name, "i", owner, HELLO, 1.0) for name in names])
    assert made[0].key == made[2].key != made[1].key
    assert made[2].number > made[0].number


def test_what_came_under_a_void_claim_is_not_stored(database: Database) -> None:
    before = claim(database)
    other = claim(database, "run:1:train")
    now = claim(database)
    batch = message(before, 0)
    batch.add_sample(other.key, other.owner, Sample(time.time(), pack(Rates())))
    batch.add_mark(other.key, Mark("i", 0, other.number))
    stored = database.store(batch)
    assert stored.void == {before.key}
    assert set(stored.marks) == {other.key} and stored.events == []
    assert bodies(database, before.key) == [] and history(database, before.key) == []
    assert len(history(database, other.key)) == 1
    stored = database.store(message(now, 0))
    assert not stored.void and len(bodies(database, now.key)) == 1


def test_events_are_numbered_in_order_and_read_back_as_asked(database: Database) -> None:
    made = claim(database)
    numbers = [record.id for seq in range(3) for record in database.store(message(made, seq, events=2)).events]
    assert numbers == sorted(set(numbers)) and min(numbers) > 0
    everything = [b'{"seq":%d,"n":%d}' % (seq, n) for seq in range(3) for n in range(2)]
    assert bodies(database, made.key) == everything
    assert bodies(database, made.key, after=numbers[1]) == everything[2:]
    assert bodies(database, made.key, before=numbers[4]) == everything[:4]
    assert bodies(database, made.key, limit=2) == everything[-2:]
    assert bodies(database, made.key, limit=2, newest=False) == everything[:2]
    assert bodies(database, made.key, kinds=("epoch", "stall")) == everything
    assert bodies(database, made.key, kinds=("stall",)) == []
    assert bodies(database, made.key, most_bytes=1) == everything[-1:], "at least one"


def test_samples_are_there_before_and_after_compaction_once_each(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = claim(database)
    minute = time.time() // INTERVAL * INTERVAL
    for seq in range(10):
        database.store(message(made, seq, at=minute - 30 + seq))
    assert history(database, made.key) == [float(seq) for seq in range(10)]
    monkeypatch.setattr(time, "time", lambda: minute + INTERVAL + 5)
    database.tend()
    assert history(database, made.key) == [float(seq) for seq in range(10)]
    database.store(message(made, 10, at=minute + 30))
    assert history(database, made.key) == [float(seq) for seq in range(11)]
    assert len(history(database, made.key, points=3)) <= 3


def test_what_had_its_time_goes(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    made = claim(database)
    now = time.time()
    database.store(message(made, 0, at=now))
    monkeypatch.setattr(time, "time", lambda: now + 40 * 86400 // INTERVAL * INTERVAL + 5)
    database.tend()  # makes chunks, which are as old as the moment they were made
    assert bodies(database, made.key) == []
    monkeypatch.setattr(time, "time", lambda: now + 80 * 86400 // INTERVAL * INTERVAL + 5)
    database.tend()
    assert history(database, made.key) == []


def test_commands_are_found_by_loader_run_and_id_in_their_latest_state(database: Database) -> None:
    batch = Batch()
    for number in range(3):
        stored = CommandStored(
            f"c{number}", f"run{number % 2}:0:train", f"run{number % 2}", 10.0 + number, "", "", b"1"
        )
        batch.add_command(stored)
    database.store(batch)
    changed = Batch()
    changed.add_command(msgspec.structs.replace(batch.commands["c1"], record=b"2"))
    database.store(changed)
    assert [found.id for found in database.commands(CommandsAsked())] == ["c2", "c1", "c0"]
    assert [found.id for found in database.commands(CommandsAsked(loader="run0:0:train"))] == ["c2", "c0"]
    assert [found.id for found in database.commands(CommandsAsked(run="run1"))] == ["c1"]
    assert [found.id for found in database.commands(CommandsAsked(since=11.0, limit=1))] == ["c2"]
    found = database.command("c1")
    assert found is not None and found.record == b"2"
    assert database.command("unknown") is None


def test_a_forgotten_loader_leaves_nothing_and_its_number_is_not_given_again(database: Database) -> None:
    made = claim(database)
    database.store(message(made, 0))
    gone = Batch()
    gone.add_forgotten(made.key)
    database.store(gone)
    assert bodies(database, made.key) == [] and history(database, made.key) == []
    assert database.known(1 << 20).loaders == []
    assert database.store(message(made, 1)).void == {made.key}
    again = claim(database)
    assert again.key != made.key and again.last_seq == -1


def test_the_last_place_of_a_run_holds_for_all_its_loaders_and_ends_with_the_last(database: Database) -> None:
    first, other = claim(database), claim(database, "run-2:0:train")
    assert first.place is None and database.known(0).places == []
    places = [database.put_place("run", place, RunChangeStored(1.0, "run", place.encode())) for place in PLACES]
    assert [each.place for each in places] == list(PLACES)
    assert places[0].number < places[1].number < places[2].number == places[3].number, "what is the same is no change"
    assert database.run_changes("run", 9) == [b"pinned", b"hidden", b"pinned"], "the newest first"
    database.store_loaders([LoaderRecord(first.key, LOADER, HELLO, None, "lost", 3.0, first.owner, first.number)])
    later = claim(database, "run:1:train")
    assert database.known(0).places == [places[-1]] == [later.place]
    database.put_place("run-2", "hidden", RunChangeStored(1.0, "run-2", b""))
    for key, left in ((first.key, ["run", "run-2"]), (later.key, ["run-2"]), (other.key, [])):
        gone = Batch()
        gone.add_forgotten(key)
        database.store(gone)
        assert sorted(place.run for place in database.known(0).places) == left
    again = claim(database)
    assert again.place is None
    assert database.put_place("run", "shown", RunChangeStored(1.0, "run", b"shown")).number > places[-1].number
    assert database.run_changes("run", 1) == [b"pinned"], "it was shown before"


def test_everything_is_there_when_it_is_opened_again(opened: Open) -> None:
    before = opened()
    if before.in_memory:
        pytest.skip("what is in memory is gone")
    made = claim(before)
    before.store(message(made, 5))
    placed = before.put_place("run", "pinned", RunChangeStored(1.0, "run", b"{}"))
    before.store_loaders([LoaderRecord(made.key, LOADER, HELLO, b"snapshot", "stale", 3.0, made.owner, made.number)])
    before.close()
    after = opened()
    ((record, mark),) = after.known(1 << 20).loaders
    assert (record.key, record.id, record.hello, record.snapshot) == (made.key, LOADER, HELLO, b"snapshot")
    assert (record.presence, record.seen, record.owner) == ("stale", 3.0, made.owner)
    assert (mark.incarnation, mark.seq) == ("i", 5)
    assert after.known(1).places == [placed] == [RunPlace("run", "pinned", placed.number)]
    assert after.put_place("run", "hidden", RunChangeStored(1.0, "run", b"{}")).number > placed.number
    assert after.known(1).loaders[0][0].snapshot is None, "there is room for one byte of snapshots"
    assert claim(after).last_seq == 5
    assert len(bodies(after, made.key)) == 1 and history(after, made.key) == [5.0]
    (newer,) = after.store(message(claim(after), 6)).events
    assert newer.id > after.events(EventsAsked(made.key, LOADER))[0].id
    assert after.used_bytes() > 0
