"""`stats()`: a typed snapshot at any time, whose numbers are right in situations that are known."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from penstock.protocol import CommandEvent, EpochEvent, Snapshot, Spans, WorkerEvent

from tests.loader.scenarios import InThread
from tests.loader.support import DataLoader, Samples, Stream
from tests.loader.telemetry.datasets import Gated, Unhurried
from tests.loader.telemetry.servers import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def test_it_can_be_had_at_any_time() -> None:
    made = DataLoader(Samples(length=8), batch_size=2, num_workers=1)
    seen = {"new": made.stats().state}
    iterator = iter(made)
    next(iterator)
    seen["running"] = made.stats().state
    made.pause()
    seen["paused"] = until(lambda: made.stats().state == "paused" and "paused")
    made.resume()
    list(iterator)
    seen["finished"] = made.stats().state
    made.close()
    seen["closed"] = made.stats().state
    assert seen == {"new": "idle", "running": "running", "paused": "paused", "finished": "finished", "closed": "closed"}
    copy = pickle.loads(pickle.dumps(made))
    assert copy.stats().batches == 0


def test_a_failed_epoch_is_one() -> None:
    made = DataLoader(Samples(length=4), sampler=FailingSampler(), num_workers=1)
    with pytest.raises(KeyError):
        list(made)
    assert made.stats().state == "failed"
    made.close()


class FailingSampler:
    def __iter__(self) -> Any:
        yield 0
        raise KeyError("sampler")


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_yielded_is_counted(workers: int) -> None:
    made = DataLoader(Samples("tensor", length=10), batch_size=4, num_workers=workers)
    for _ in range(3):
        assert len(list(made)) == 3
    stats = made.stats()
    assert (stats.batches, stats.samples, stats.epoch, stats.batch, stats.length) == (9, 30, 2, 3, 3)
    if workers:
        assert stats.bytes >= 30 * 6 * 4
    made.close()


def test_a_stream_has_no_length() -> None:
    made = DataLoader(Stream(length=10), num_workers=2)
    assert made.stats().length is None
    assert len(list(made)) == 10
    assert made.stats().samples == 10
    made.close()


def test_when_training_stands_still_everything_ahead_is_ready() -> None:
    made = DataLoader(Samples(length=100), num_workers=2, prefetch_factor=4)
    iterator = iter(made)
    next(iterator)
    stats: Snapshot = until(lambda: full(made))
    assert (stats.queues.window, stats.queues.data, stats.queues.in_flight) == (8, 8, 8)
    assert (stats.queues.index, stats.queues.reorder, stats.queues.pin) == (0, 0, 0)
    assert [worker.state for worker in stats.workers] == ["idle", "idle"]
    assert sum(worker.batches for worker in stats.workers) == 9
    list(iterator)
    assert made.stats().queues.data == 0
    assert made.stats().batches == 100
    made.close()


def full(made: Any) -> Snapshot | None:
    stats: Snapshot = made.stats()
    idle = all(worker.state == "idle" for worker in stats.workers)
    return stats if stats.queues.data == stats.queues.window and idle else None


def test_behind_a_late_batch_the_finished_ones_are_in_the_reorder_buffer() -> None:
    dataset = Gated(40, [2])
    made = DataLoader(dataset, num_workers=2, prefetch_factor=4, multiprocessing_context="fork")
    iterator = iter(made)
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    waiting = threading.Thread(target=lambda: next(iterator))
    waiting.start()
    stats: Snapshot = until(lambda: (s := made.stats()).queues.reorder == s.queues.window - 1 and s)
    assert stats.queues.data == 0
    assert stats.queues.in_flight == stats.queues.window == 8
    busy = [worker for worker in stats.workers if worker.state == "fetching"]
    assert [worker.batch for worker in busy] == [2]
    assert until(lambda: any(each.batch == 2 and each.state_ms >= 5 for each in made.stats().workers))
    dataset.open()
    waiting.join()
    assert [int(batch) for batch in iterator] == list(range(3, 40))
    made.close()


def test_tasks_that_workers_have_not_begun_are_in_their_index_queues() -> None:
    dataset = Gated(20, range(20))
    made = DataLoader(dataset, num_workers=1, prefetch_factor=6, multiprocessing_context="fork")
    iterator = iter(made)

    def settled() -> bool:
        """The worker is at its first batch, which is held; numbers of one snapshot may be a step apart before that."""
        stats = made.stats()
        queued = [worker.index_queue for worker in stats.workers if worker.state == "fetching"]
        return queued == [stats.queues.index] == [stats.queues.in_flight - 1] and stats.queues.window == 6

    until(settled)
    dataset.open()
    assert len(list(iterator)) == 20
    made.close()


def test_workers_show_what_they_are() -> None:
    made = DataLoader(Unhurried("big", length=80), batch_size=4, num_workers=2)
    iterator = iter(made)
    next(iterator)
    until(lambda: all(worker.batches for worker in made.stats().workers))
    workers = made.stats().workers
    assert [worker.id for worker in workers] == [0, 1]
    for worker in workers:
        assert Path(f"/proc/{worker.pid}").exists()
        assert worker.rss > 1 << 20
        assert worker.fetch_us + worker.collate_us + worker.send_us > 0
    list(iterator)
    made.close()


def test_what_workers_made_is_what_training_gets() -> None:
    made = DataLoader(
        Samples("big", length=50), batch_size=4, num_workers=2, persistent_workers=True, prefetch_epochs=False
    )
    list(made)
    stats = made.stats()
    assert sum(worker.batches for worker in stats.workers) == stats.batches == 13
    assert sum(worker.samples for worker in stats.workers) == stats.samples == 50
    kib = sum(worker.sent_kib for worker in stats.workers)
    assert stats.bytes - len(stats.workers) * 1024 < 1024 * kib <= stats.bytes
    made.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_made_of_a_stream_is_what_training_gets(persistent: bool) -> None:
    """The ends of shards are no batches."""
    made = DataLoader(Stream(length=60), num_workers=2, persistent_workers=persistent)
    iterator = iter(made)
    for _ in range(60):
        next(iterator)
    until(lambda: all(worker.state == "idle" for worker in made.stats().workers))
    workers = made.stats().workers
    assert [worker.batches for worker in workers] == [worker.samples for worker in workers] == [30, 30]
    assert [worker.batch for worker in workers] == [29, 29]
    assert len(list(iterator)) == 0
    made.close()


def collate_arrays(_samples: list[Any]) -> Any:
    return [np.zeros(100) for _ in range(200)]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_size_of_a_batch_is_that_of_all_its_arrays(workers: int) -> None:
    made = DataLoader(Samples(length=3), num_workers=workers, collate_fn=collate_arrays)
    list(made)
    assert made.stats().bytes == 3 * 200 * 800
    made.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_into_a_loader_amidst_an_epoch_is_another_epoch(workers: int) -> None:
    made = DataLoader(Samples(length=30), num_workers=workers, persistent_workers=False)
    for number, _ in enumerate(made, 1):
        if number == 10:
            next(iter(made))
            continue
        assert made.state_dict()["batch"] == number, "of the epoch that goes on"
        stats = made.stats()
        assert (stats.state, stats.epoch, stats.batch) == ("running", 0, number)
        assert stats.batches == number + (number >= 10)
        assert len(stats.workers) <= workers, "and not those of the other one"
    assert (made.stats().state, made.stats().batch, made.stats().batches) == ("finished", 30, 31)
    made.close()


def test_an_iterator_that_somebody_still_has_is_not_the_current_one() -> None:
    made = DataLoader(Samples(length=5))
    kept = iter(made)
    next(kept)
    list(made)
    assert (made.stats().state, made.stats().epoch, made.stats().batch) == ("finished", 1, 5)
    assert made.state_dict()["batch"] == 0
    assert len(list(kept)) == 4


class Hesitant:
    """A sampler that takes its time before its first index."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[int]:
        self.begun.set()
        self.go.wait(PATIENCE)
        yield from range(20)


def test_while_an_epoch_is_begun_it_is_under_way_and_its_workers_are_there() -> None:
    sampler = Hesitant()
    sampler.go.set()
    made = DataLoader(Samples(length=20), sampler=sampler, num_workers=2, persistent_workers=True)
    assert len(list(made)) == 20
    sampler.go.clear()
    sampler.begun.clear()
    thread = threading.Thread(target=lambda: list(made))
    thread.start()
    assert sampler.begun.wait(PATIENCE)
    stats = made.stats()
    sampler.go.set()
    thread.join()
    assert (stats.state, stats.epoch, stats.batch) == ("running", 1, 0)
    assert len(stats.workers) == 2 and sum(worker.batches for worker in stats.workers) == 20
    made.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_old_iterator_that_somebody_has_forgotten_is_not_where_training_is(workers: int) -> None:
    made = DataLoader(Samples(length=8), num_workers=workers)
    forgotten = iter(made)
    next(forgotten)
    for _ in range(3):
        for _ in made:
            break
    assert (made.state_dict()["epoch"], made.state_dict()["batch"]) == (3, 1)
    assert made.stats().state == "finished"
    del forgotten
    made.close()


def test_two_iterators_of_one_epoch_are_both_closed() -> None:
    made = DataLoader(Samples(length=8), num_workers=1)
    first = iter(made)
    next(first)
    made.load_state_dict(made.state_dict())
    second = iter(made)
    next(second)
    made.close()
    for iterator in (first, second):
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)


def test_a_persistent_epoch_that_was_left_and_is_read_to_its_end_has_ended() -> None:
    made = DataLoader(Samples(length=8), num_workers=1, persistent_workers=True)
    first = iter(made)
    next(first)
    second = iter(made)
    next(second)
    del second
    list(first)
    assert (made.state_dict()["epoch"], made.state_dict()["batch"]) == (2, 0)
    made.close()


def odd_batch(kind: str) -> Any:
    if kind == "sparse":
        return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (3,))
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


class OddBatches(Samples):
    def __getitem__(self, key: Any) -> Any:
        return self.kind


@pytest.mark.filterwarnings("ignore:.*nested tensors.*", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", ["sparse", "nested"])
def test_batches_of_unknown_size_are_yielded(kind: str) -> None:
    made = DataLoader(OddBatches(kind, length=3), collate_fn=lambda _: odd_batch(kind))
    assert len(list(made)) == 3
    assert made.stats().bytes == 0


def epochs(made: Any) -> list[str]:
    return [event.what for event in made._penstock.ledger.take_events() if isinstance(event, EpochEvent)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_left_by_closing_was_abandoned(workers: int) -> None:
    made = DataLoader(Samples(length=30), num_workers=workers)
    iterator = iter(made)
    next(iterator)
    made.close()
    assert epochs(made) == ["started", "abandoned"]
    assert made.state_dict()["batch"] == 1
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    assert epochs(made) == []


def test_a_persistent_epoch_left_early_was_abandoned() -> None:
    made = DataLoader(Samples(length=30), num_workers=2, persistent_workers=True)
    for _ in made:
        break
    assert epochs(made) == ["started", "abandoned"]
    assert (made.stats().state, made.stats().batch) == ("finished", 1)
    assert made.state_dict()["batch"] == 1
    made.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_every_worker_that_is_born_retires(persistent: bool) -> None:
    made = DataLoader(Unhurried(length=20), num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        list(made)
    made.close()
    events = [event for event in made._penstock.ledger.take_events() if isinstance(event, WorkerEvent)]
    born = [(event.worker, event.pid) for event in events if event.what == "born"]
    assert len(born) == (2 if persistent else 4)
    assert 0 not in dict(born).values()
    assert sorted((event.worker, event.pid) for event in events if event.what == "retired") == sorted(born)


def test_the_end_of_a_pause_by_the_clock_is_told_inline_too() -> None:
    made = DataLoader(Samples(length=3))
    iterator = iter(made)
    next(iterator)
    made.pause()
    rest = InThread(lambda: next(iterator))
    until(lambda: made.stats().times.paused_us)
    made.pause(resume_after=0.05)
    rest.result()
    told = [event for event in made._penstock.ledger.take_events() if isinstance(event, CommandEvent)]
    assert [(event.action, event.state, event.by) for event in told] == [
        ("pause", "applied", "local"), ("pause", "applied", "local"), ("resume", "applied", "timer"),
    ]  # fmt: skip
    assert told[2].at_batch == 1
    assert made.stats().times.paused_us >= 50_000


def test_the_time_in_which_a_worker_comes_up_is_idle_time() -> None:
    made = DataLoader(Unhurried(length=8), num_workers=1, multiprocessing_context="spawn")
    iterator = iter(made)
    before = until(lambda: (s := made.stats()).workers and s.workers[0].state == "starting" and s).workers[0]
    next(iterator)
    assert made.stats().workers[0].idle_ms >= before.idle_ms
    list(iterator)
    made.close()


def test_times_go_on_while_a_sample_is_made() -> None:
    dataset = Gated(4, range(1, 4))
    made = DataLoader(dataset, num_workers=1, multiprocessing_context="fork")
    iterator = iter(made)
    next(iterator)
    before = until(lambda: (s := made.stats()).workers[0].state == "fetching" and s).workers[0]
    time.sleep(0.1)
    after = made.stats().workers[0]
    assert after.state_ms - before.state_ms >= 99, "in whole ms"
    assert after.fetch_us - before.fetch_us >= 100_000
    dataset.open()
    list(iterator)
    made.close()


class Failing(Samples):
    def __getitem__(self, key: Any) -> Any:
        time.sleep(0.05)
        raise KeyError(key)


def test_the_time_of_a_failed_batch_was_spent_in_the_dataset() -> None:
    made = DataLoader(Failing(length=4), num_workers=1, prefetch_factor=4)
    iterator = iter(made)
    made._penstock.ledger.spans.watch(time.monotonic_ns())
    for _ in range(4):
        with pytest.raises(KeyError):
            next(iterator)
    worker = made.stats().workers[0]
    assert worker.fetch_us >= 4 * 50_000
    (spans,) = (event for event in made._penstock.ledger.take_events() if isinstance(event, Spans))
    for span in spans.spans:
        assert (span.fetched_us, span.collated_us) == (-1, -1), "not come to"
        assert span.sent_us - span.start_us >= 50_000
    made.close()


def test_without_an_order_batches_are_counted_all_the_same() -> None:
    made = DataLoader(Unhurried(length=20), num_workers=3, in_order=False)
    for number, _ in enumerate(made):
        assert made.stats().batch == number + 1
    made.close()


def test_an_epoch_that_goes_on_counts_from_where_it_was() -> None:
    first = DataLoader(Samples(length=20), num_workers=1)
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    state = first.state_dict()
    first.close()
    second = DataLoader(Samples(length=20), num_workers=1)
    second.load_state_dict(state)
    iterator = iter(second)
    assert second.stats().batch == 5
    assert len(list(iterator)) == 15
    assert second.stats().batch == 20
    second.close()


def test_slots_are_free_when_nobody_looks_at_them() -> None:
    made = DataLoader(
        Samples("big", length=40), batch_size=8, num_workers=2, persistent_workers=True, prefetch_epochs=False
    )
    kept: list[Any] = []
    for batch in made:
        if len(kept) < 2:
            kept.append(batch)
    del batch
    stats = made.stats()
    assert stats.queues.slots_used == 2
    assert stats.queues.slots_bytes >= (stats.queues.slots_used + stats.queues.slots_free) * 8 * 60 * 50 * 4
    kept.clear()
    assert made.stats().queues.slots_used == 0
    made.close()


def test_an_epoch_of_persistent_workers_can_be_copied_as_little_as_any() -> None:
    made = DataLoader(Samples(length=4), num_workers=1, persistent_workers=True)
    iterator = iter(made)
    for attempt in (copy.copy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            attempt(iterator)
    assert len(iterator) == len(list(iterator)) == 4
    made.close()


def test_looking_from_other_threads_disturbs_nothing() -> None:
    made = DataLoader(Samples(length=300), num_workers=2)
    stop, looks, problems = threading.Event(), [0], []

    def look() -> None:
        while not stop.is_set():
            stats = made.stats()
            looks[0] += 1
            if stats.queues.in_flight > stats.queues.window or stats.batch > 300:
                problems.append(stats)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert [int(batch) for batch in made] == list(range(300))
    stop.set()
    for thread in threads:
        thread.join()
    assert looks[0] > 10
    assert problems == []
    made.close()


def test_a_person_can_read_it() -> None:
    made = DataLoader(Samples("tensor", length=40), batch_size=2, num_workers=2, record_samples=2)
    before = str(made.stats())
    assert before.splitlines()[0] == "idle, epoch 0, batch 0 of 20; 0 of 2 workers"
    assert "not started" in before
    iterator = iter(made)
    next(iterator)
    until(lambda: len(made.stats().workers) == 2)
    text = str(made.stats())
    assert text.startswith("running, epoch 0, batch 1 of 20; 2 of 2 workers")
    for word in ("yielded", "time", "queues", "memory", "worker", "pid"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100
    list(iterator)
    made.close()
