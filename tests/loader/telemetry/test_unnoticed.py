"""Being watched changes nothing about what is watched, and not being watched costs nothing."""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from penstock.protocol import EpochEvent

from tests.loader.support import DataLoader, Samples
from tests.loader.telemetry.datasets import Unhurried
from tests.loader.telemetry.servers import GoodServer, until

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Buckets:
    """A batch sampler that shuffles to know its length, as samplers by bucket do."""

    def __init__(self) -> None:
        self.random = random.Random(5)
        self.asked: list[str] = []

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(40))
        self.random.shuffle(order)
        yield from (order[first : first + 2] for first in range(0, 40, 2))

    def __len__(self) -> int:
        self.asked.append(threading.current_thread().name)
        return sum(1 for _ in self)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_user_s_own_is_not_asked_for_its_length(workers: int, server: GoodServer) -> None:
    streams = []
    for monitor in (False, server.url):
        sampler = Buckets()
        made = DataLoader(
            Unhurried(length=40), batch_sampler=sampler, num_workers=workers, monitor=monitor, publish_interval=0.01
        )
        streams.append([batch.tolist() for _ in range(2) for batch in made])
        assert made.stats().length is None
        assert sampler.asked == []
        assert len(made) == made.stats().length == 20, "once training has asked, it is known"
        made.close()
    assert streams[0] == streams[1]


def test_lengths_that_are_harmless_to_ask_for_are_known() -> None:
    for arguments, expected in (
        ({"batch_size": 3}, 4),
        ({"batch_size": 3, "shuffle": True, "drop_last": True}, 3),
        ({"batch_size": 4, "sampler": [1, 2, 3, 4, 5]}, 2),
        ({"batch_sampler": [[1, 2], [3]]}, 2),
        ({"batch_size": None, "sampler": np.arange(7)}, 7),
    ):
        made = DataLoader(Samples(length=10), **arguments)
        assert made.stats().length == expected, arguments


@pytest.mark.parametrize("workers", [0, 1])
def test_whom_nobody_watches_keeps_nothing_for_anybody(workers: int) -> None:
    made = DataLoader(Samples(length=5000), num_workers=workers, monitor=False)
    assert len(list(made)) == 5000
    assert made.stats().dropped == 0
    assert made._penstock.ledger.spans.stride == 0
    assert made._penstock.ledger.spans.take(1, 1.0) is None
    made.close()


class NoLength(Samples):
    def __len__(self) -> int:
        raise RuntimeError("nobody has counted them")


@pytest.mark.parametrize("watched", [False, True])
def test_a_dataset_need_not_have_a_length(watched: bool, server: GoodServer) -> None:
    made = DataLoader(NoLength(), sampler=range(5), monitor=server.url if watched else False)
    assert len(list(made)) == 5
    made.close()


def no_more_descriptors(*_: Any) -> Any:
    raise OSError(24, "Too many open files")


def no_more_threads(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("where", "name", "problem"),
    [(socket, "socketpair", no_more_descriptors), (threading.Thread, "start", no_more_threads)],
)
def test_what_cannot_be_published_is_trained_with(
    where: Any, name: str, problem: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = DataLoader(Samples(length=6), monitor="http://127.0.0.1:9", name="poor")
    with monkeypatch.context() as patched:
        patched.setattr(where, name, problem)
        assert len(list(made)) == 6
    assert "loader poor cannot be published. Training goes on." in caplog.text
    assert made._penstock.ledger.spans.stride == 0
    assert len(list(made)) == 6
    made.close()


def test_odd_values_that_torch_takes_are_published(server: GoodServer) -> None:
    made = DataLoader(
        Samples(length=6),
        batch_size=2,
        num_workers=np.int64(1),
        pin_memory=0,
        in_order=1,
        monitor=server.url,
    )
    assert len(list(made)) == 3
    made.close()
    until(lambda: server.only.said_goodbye)
    config = server.only.hello.config
    assert (config.batch_size, config.num_workers, config.pin_memory, config.in_order) == (2, 1, False, True)


class Files(Samples):
    def __getitem__(self, key: Any) -> Any:
        return len(key)


class Unprintable:
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("key", ["caf\udce9.jpg", "x" * 1000])
@pytest.mark.parametrize("workers", [0, 1])
def test_any_index_can_be_published(key: str, workers: int, server: GoodServer) -> None:
    made = DataLoader(Files(), sampler=[key] * 3, num_workers=workers, record_samples=2, monitor=server.url)
    assert [int(batch) for batch in made] == [len(key)] * 3
    made.close()
    until(lambda: server.only.said_goodbye)
    last = server.only.snapshots[-1]
    assert last.batches == 3
    assert last.slowest[0].index == last.cost.max_index != ""


class Objects(Samples):
    def __getitem__(self, key: Any) -> Any:
        return 1


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_that_cannot_be_printed_ends_nothing(workers: int) -> None:
    made = DataLoader(Objects(), sampler=[Unprintable()] * 3, num_workers=workers, record_samples=2)
    assert len(list(made)) == 3
    assert made.stats().slowest[0].index == "a Unprintable"
    made.close()


def test_a_forked_copy_of_training_has_no_place_on_the_dashboard(
    server: GoodServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RUN", "forks")
    made = DataLoader(Samples(length=6), monitor=server.url, publish_interval=0.02)
    iterator = iter(made)
    next(iterator)
    until(lambda: server.only.snapshots)
    if (child := os.fork()) == 0:
        try:
            status = int(len(list(made)) != 6 or made._penstock.ledger.batches != 6 or bool(made._penstock.publisher))
        except BaseException:
            status = 9
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    list(iterator)
    made.close()
    until(lambda: server.only.said_goodbye)
    assert server.only.hello.identity.pid == os.getpid()


def test_a_loader_that_only_a_fork_iterates_over_is_published_there(server: GoodServer) -> None:
    made = DataLoader(Samples(length=6), monitor=server.url, publish_interval=0.02)
    if (child := os.fork()) == 0:
        status = 9
        try:
            list(made)
            made.close()
            made._penstock.publisher.close(10)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    until(lambda: server.only.said_goodbye)
    assert server.only.hello.identity.pid == child


@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_snapshot_of_a_loader_that_nobody_holds_is_complete(workers: int, server: GoodServer) -> None:
    for _ in DataLoader(Unhurried(length=57), num_workers=workers, monitor=server.url, publish_interval=0.1):
        pass
    gc.collect()
    until(lambda: server.only.said_goodbye)
    last = server.only.snapshots[-1]
    (ended,) = (e for e in server.only.events if isinstance(e, EpochEvent) and e.what == "ended")
    assert ended.batches == last.batches == last.samples == last.batch == 57
    assert last.state == "closed" and last.workers == []
    assert last.cost.count == 57 and last.times.compute_us + last.times.starvation_us > 0
