"""`watch` takes whatever can be iterated: it stays what it was, and what cannot be known of it is told as unknown."""

from __future__ import annotations

import collections.abc
import copy
import gc
import logging
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from penstock.protocol import EpochEvent, Snapshot
from penstock.telemetry import watched_source
from penstock.telemetry.watching import watch

from tests.loader.support import Stream
from tests.loader.telemetry import iterables
from tests.loader.telemetry.iterables import BATCHES, Iterable, PrefetchLoader, Restarting, prefetched, tensors
from tests.loader.telemetry.servers import GoodServer, until

pytestmark = pytest.mark.timeout(90)

THINGS: dict[str, Callable[[], Any]] = {
    "list": tensors,
    "tuple": lambda: tuple(tensors()),
    "dictionary's values": lambda: dict(enumerate(tensors())).values(),
    "generator": iterables.generator,
    "map": lambda: map(torch.tensor, BATCHES),
    "iterable": iterables.Iterable,
    "indexed": iterables.Indexed,
    "restarting": iterables.Restarting,
    "calls itself": iterables.CallsItself,
    "slotted": iterables.Slotted,
    "registry": iterables.Registry,
    "unsized": iterables.Unsized,
    "prefetched": lambda: prefetched(0),
    "prefetched from workers": lambda: prefetched(2),
}


def epochs(server: GoodServer) -> list[tuple[str, int]]:
    return [(event.what, event.batches) for event in server.only.events if isinstance(event, EpochEvent)]


def with_batches(server: GoodServer, count: int) -> Snapshot:
    found = until(lambda: next((s for s in server.only.snapshots if s.batches == count), None))
    assert isinstance(found, Snapshot)
    return found


@pytest.mark.parametrize("name", THINGS)
def test_batches_waits_and_contents_are_counted_and_the_rest_is_unknown(server: GoodServer, name: str) -> None:
    watched = watch(THINGS[name](), monitor=server.url, publish_interval=0.02)
    assert [batch.tolist() for batch in watched] == BATCHES
    snapshot = with_batches(server, 3)
    assert (snapshot.samples, snapshot.bytes) == (6, 6 * 8)
    assert snapshot.times.starvation_us + snapshot.times.startup_us > 0
    last = until(lambda: next((s for s in server.only.snapshots if s.state == "finished"), None))
    assert last.batch == 3
    until(lambda: epochs(server) == [("started", 0), ("ended", 3)])
    seen_inside = name.startswith("prefetched")
    for field in ("queues.data", "workers", "pin.bytes", "stalls", "times.reorder_stall_us", "target"):
        assert snapshot.knows(field) == seen_inside, field
    assert not snapshot.knows("cost") and snapshot.knows("samples") and snapshot.knows("bytes")
    config = server.only.hello.config
    assert ("num_workers" in config.unknown) == (not seen_inside)
    assert not config.control and config.kind


@pytest.mark.parametrize("name", [name for name in THINGS if name not in ("generator", "map")])
def test_it_can_be_iterated_again_as_often_as_before(server: GoodServer, name: str) -> None:
    watched = watch(THINGS[name](), monitor=server.url)
    for _ in range(2):
        assert [batch.tolist() for batch in watched] == BATCHES
    for _ in watched:
        break
    until(lambda: [what for what, _ in epochs(server)].count("started") == 3)
    assert [batches for what, batches in epochs(server) if what == "ended"] == [3, 3]


@pytest.mark.parametrize("name", THINGS)
def test_it_is_what_it_was_to_those_who_look(server: GoodServer, name: str) -> None:
    thing = THINGS[name]()
    kind = type(thing)
    watched = watch(thing, monitor=server.url)
    assert isinstance(watched, kind) and type(watched).__name__ == kind.__name__
    for abstract in (
        collections.abc.Iterable,
        collections.abc.Iterator,
        collections.abc.Sized,
        collections.abc.Mapping,
    ):
        if abstract is not collections.abc.Iterable:
            assert isinstance(watched, abstract) == issubclass(kind, abstract), abstract
    assert hasattr(watched, "__len__") == hasattr(kind, "__len__")
    assert {field for field in dir(watched) if not field.startswith("_")} == {
        field for field in dir(thing) if not field.startswith("_")
    }
    assert watch(watched, monitor=server.url) is watched
    if name not in ("list", "tuple", "generator", "map", "slotted", "dictionary's values"):
        assert watched is thing


def test_attributes_and_methods_are_the_thing_s_own(server: GoodServer) -> None:
    thing = Iterable()
    watched = watch(thing, monitor=server.url)
    watched.set_epoch(3)
    assert watched.epoch == 3 and thing.epoch == 3
    prefetching = watch(prefetched(0), monitor=server.url)
    assert isinstance(prefetching, PrefetchLoader)
    prefetching.mixup_enabled = False
    assert not prefetching.mixup_enabled and not prefetching.mixup
    assert prefetching.sampler is prefetching.loader.sampler and len(prefetching) == 3
    slotted = watch(slots := iterables.Slotted(), monitor=server.url)
    slotted.given = 8
    assert slots.given == 8 and slotted.given == 8
    with pytest.raises(AttributeError):
        slotted.other = 1  # type: ignore[attr-defined]


def test_a_list_is_still_a_list(server: GoodServer) -> None:
    thing = [1, 2, 3]
    watched = watch(thing, monitor=server.url)
    assert watched == thing and thing == watched and watched[1] == 2 and watched[1:] == [2, 3] and 3 in watched
    assert list(reversed(watched)) == [3, 2, 1] and watched * 2 == thing * 2 and len(watched) == 3
    watched.append(4)
    assert thing == [1, 2, 3, 4] and str(watched) == str(thing) and bool(watched)
    with pytest.raises(TypeError, match="unhashable"):
        hash(watched)
    for again in (copy.copy(watched), copy.deepcopy(watched), pickle.loads(pickle.dumps(watched))):
        assert type(again) is list and again == thing


def test_a_generator_is_still_one(server: GoodServer) -> None:
    closed = []

    def numbers() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    watched: Any = watch(numbers(), monitor=server.url)
    assert isinstance(watched, types.GeneratorType) and iter(watched) is watched
    assert next(watched) == 1 and watched.gi_frame is not None
    assert next(iter(watched)) == 2, "one epoch, whoever takes from it"
    watched.close()
    assert closed and list(watched) == []
    del watched
    gc.collect()
    until(lambda: server.only.said_goodbye)
    assert epochs(server) == [("started", 0), ("ended", 2)]


def test_iter_and_len_are_called_by_training_only(server: GoodServer) -> None:
    thing = iterables.Unsized()
    watched = watch(thing, monitor=server.url)
    assert thing.asked == 0
    for _ in watched:
        pass
    assert thing.asked == 1
    with pytest.raises(RuntimeError, match="not to be asked"):
        len(watched)
    assert with_batches(server, 3).length is None


def test_how_long_it_is_is_learned_when_training_asks(server: GoodServer) -> None:
    watched = watch(prefetched(0), monitor=server.url, publish_interval=0.02)
    iterator = iter(watched)
    next(iterator)
    assert with_batches(server, 1).length is None
    assert len(watched) == 3
    until(lambda: server.only.snapshots[-1].length == 3)


def test_a_length_that_proves_wrong_is_unknown(server: GoodServer) -> None:
    class Longer(Iterable):
        def __len__(self) -> int:
            return 2

    watched = watch(Longer(), monitor=server.url, publish_interval=0.02)
    assert len(watched) == 2
    iterator = iter(watched)
    next(iterator)
    assert with_batches(server, 1).length == 2
    list(iterator)
    assert with_batches(server, 3).length is None


def test_an_iterator_that_begins_anew_has_epochs(server: GoodServer) -> None:
    watched = watch(Restarting(), monitor=server.url)
    for _ in range(2):
        for _ in watched:
            break
    assert len(list(watched)) == 3
    until(lambda: len(epochs(server)) == 6)
    assert epochs(server)[1::2] == [("abandoned", 1), ("abandoned", 1), ("ended", 3)]


def test_an_error_passes_and_is_told(server: GoodServer) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise LookupError("no more of these")

    watched = watch(failing(), monitor=server.url)
    with pytest.raises(LookupError, match="no more of these"):
        list(watched)
    failed = until(lambda: [e for e in server.only.events if isinstance(e, EpochEvent) and e.what == "failed"])
    assert failed[0].batches == 1 and "no more of these" in failed[0].reason


@pytest.mark.parametrize(
    ("batch", "samples", "size"),
    [
        ({"image": torch.zeros(4, 2), "label": torch.zeros(4)}, 4, 48),
        ((torch.zeros(3, 8, 8), 7), None, 768),  # one sample: an image and its class
        ((torch.zeros(4, 2), torch.zeros(3)), None, 44),
        (["a", "b"], None, None),
        (5, None, None),
        (object(), None, None),
        ({"image": torch.zeros(4, 2), "meta": object()}, 4, None),
        (torch.zeros(2, 2).to_sparse(), None, None),
    ],
)
def test_what_cannot_be_measured_is_unknown(
    server: GoodServer, batch: Any, samples: int | None, size: int | None
) -> None:
    assert len(list(watch((each for each in [batch]), monitor=server.url))) == 1
    snapshot = with_batches(server, 1)
    assert (snapshot.samples if snapshot.knows("samples") else None) == samples
    assert (snapshot.bytes if snapshot.knows("bytes") else None) == size


def test_workers_inside_another_library_s_loader_are_seen(server: GoodServer) -> None:
    watched = watch(prefetched(2), monitor=server.url, publish_interval=0.02)
    iterator = iter(watched)
    next(iterator)
    snapshot = until(lambda: next((s for s in server.only.snapshots if len(s.workers) == 2), None))
    assert snapshot.target == 2 and snapshot.queues.window == 4 and snapshot.knows("queues.in_flight")
    assert not snapshot.knows("workers.fetch_us") and not snapshot.knows("queues.finished_bytes")
    assert [batch.tolist() for batch in iterator] == BATCHES[1:]
    config = server.only.hello.config
    assert (config.kind, config.num_workers, config.batch_size) == ("PrefetchLoader", 2, 2)
    copied = copy.copy(watched)
    assert type(copied) is PrefetchLoader and len(list(copied)) == 3


@pytest.mark.parametrize("method", ["enter", "leave", "end", "begin"])
@pytest.mark.parametrize("name", ["generator", "iterable", "prefetched"])
def test_a_fault_of_ours_is_logged_once_and_training_goes_on(
    server: GoodServer,
    name: str,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    watched = watch(THINGS[name](), monitor=server.url)
    monkeypatch.setattr(watched_source.WatchedSource, method, broken)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert [batch.tolist() for batch in watched] == BATCHES
        if name != "generator":
            assert [batch.tolist() for batch in watched] == BATCHES
    assert len([record for record in caplog.records if "not watched any more" in record.message]) == 1
    until(lambda: server.only.said_goodbye)


def test_what_cannot_even_be_described_is_left_alone(
    server: GoodServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("penstock.telemetry.watching.source_of", broken)
    thing = tensors()
    assert watch(thing, monitor=server.url) is thing
    assert "cannot be watched" in caplog.text


def test_workers_that_iterate_over_it_do_not_publish(server: GoodServer) -> None:
    watched: Any = watch(Stream("int", 8), monitor=server.url)
    assert len(list(torch.utils.data.DataLoader(watched, num_workers=2, multiprocessing_context="fork"))) == 8
    assert len(list(watched)) == 8
    with_batches(server, 8)
    assert len(server.loaders) == 1


def test_nobody_above_it_hears_of_a_subclass(server: GoodServer) -> None:
    before = list(iterables.Registry.known)
    watch(iterables.Registry(), monitor=server.url)
    assert iterables.Registry.known == before


@pytest.mark.parametrize("thing", [3, None, object(), len])
def test_what_cannot_be_iterated_is_refused(server: GoodServer, thing: Any) -> None:
    with pytest.raises(TypeError, match="iterated"):
        watch(thing, monitor=server.url)


def test_without_anywhere_to_publish_to_it_is_left_alone() -> None:
    thing = tensors()
    assert watch(thing) is thing and watch(thing, monitor=False) is thing


def test_printed_it_says_what_is_unknown(server: GoodServer) -> None:
    assert list(watch(("text" for _ in range(2)), monitor=server.url)) == ["text"] * 2
    text = str(with_batches(server, 2))
    assert "– of – workers" in text and "– samples, – bytes" in text and "queues    –" in text and "memory    –" in text
    assert "starvation" not in text and "index 0" not in text and "finished 0" not in text


def test_printed_workers_of_torch_s_do_not_say_what_only_they_know(server: GoodServer) -> None:
    iterator = iter(watch(prefetched(1), monitor=server.url, publish_interval=0.02))
    next(iterator)
    text = str(until(lambda: next((s for s in server.only.snapshots if s.workers), None)))
    assert "1 of 1 workers" in text and "memory    –" in text and "µs" not in text.splitlines()[-1]
    assert text.splitlines()[-1].split()[3] == "–", "the batch it works at"
