"""Errors of the user's code are told, whether or not training catches them; a training that died is no finished one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from penstock import DataLoader
from penstock.protocol import ErrorEvent, Errors, Snapshot
from penstock.telemetry import errors
from penstock.telemetry.errors import ErrorLog
from torch.utils.data import Sampler

from tests.loader.scenarios import Loaders, events
from tests.loader.support import ROOT, Samples, Stream
from tests.loader.telemetry.servers import TOKEN, GoodServer
from tests.patience import PATIENCE


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


class Fragile(Samples):
    def __getitem__(self, key: Any) -> Any:
        if key == 5:
            raise ValueError("sample 5 is torn")
        return super().__getitem__(key)


class FragileStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            if number == 5:
                raise ValueError("sample 5 is torn")
            yield number


def fragile_collate(samples: Any) -> Any:
    if 5 in samples:
        raise KeyError("no such column")
    return samples


class FragileSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)
        raise OSError("the list of samples is gone")


def fragile_init(worker: int) -> None:
    raise RuntimeError(f"no licence for worker {worker}")


def taken(loader: Any, most: int = 100) -> list[Any]:
    """What training gets that catches every error of a batch."""
    got: list[Any] = []
    iterator = iter(loader)
    for _ in range(most):
        try:
            got.append(next(iterator))
        except StopIteration:
            break
        except Exception as error:
            got.append(type(error).__name__)
            if isinstance(error, OSError):  # of a sampler: nothing follows
                break
    return got


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_dataset_is_told_with_its_sample_and_training_goes_on(loaders: Loaders, workers: int) -> None:
    loader = loaders(Fragile("int", 12), batch_size=2, num_workers=workers)
    assert taken(loader).count("ValueError") == 1
    (error,) = events(loader, ErrorEvent)
    assert (error.where, error.type, error.message) == ("dataset", "ValueError", "sample 5 is torn")
    assert (error.epoch, error.batch, error.sample, error.fatal) == (0, 2, "5", False)
    assert error.worker in ((-1,) if workers == 0 else (0, 1))
    assert "in __getitem__" in error.traceback and error.traceback.rstrip().endswith("ValueError: sample 5 is torn")
    stats = loader.stats()
    assert stats.state == "finished", "training caught it"
    assert isinstance(stats.errors, Errors)
    assert (stats.errors.count, stats.errors.text) == (1, "ValueError: sample 5 is torn")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_an_iterable_dataset_names_its_place_in_the_batch(loaders: Loaders, workers: int) -> None:
    loader = loaders(FragileStream("int", 12), batch_size=4, num_workers=workers)
    assert "ValueError" in taken(loader)
    (error,) = events(loader, ErrorEvent)
    assert (error.where, error.batch, error.sample) == ("dataset", 1, "1")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_collate_fn_is_told_as_such(loaders: Loaders, workers: int) -> None:
    loader = loaders(Samples("int", 8), batch_size=2, num_workers=workers, collate_fn=fragile_collate)
    assert "KeyError" in taken(loader)
    (error,) = events(loader, ErrorEvent)
    assert (error.where, error.type, error.batch, error.sample) == ("collate_fn", "KeyError", 2, "")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_sampler_is_told_as_such(loaders: Loaders, workers: int) -> None:
    loader = loaders(Samples("int", 8), num_workers=workers, batch_size=2, sampler=FragileSampler())
    assert taken(loader)[-1] == "OSError"
    (error,) = events(loader, ErrorEvent)
    assert (error.where, error.message, error.batch) == ("sampler", "the list of samples is gone", 2)


def test_an_error_of_worker_init_fn_is_told_once_a_kind_and_counted(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 40), num_workers=1, worker_init_fn=fragile_init)
    assert taken(loader) == ["RuntimeError"] * 40
    told = events(loader, ErrorEvent)
    assert told and all((each.where, each.worker) == ("worker_init_fn", 0) for each in told)
    assert len(told) < 40, "a training that catches all of them must not fill the dashboard"
    summary = loader.stats().errors
    assert isinstance(summary, Errors) and summary.count == 40


def test_an_error_that_leaves_the_with_block_makes_the_loader_failed(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 8), num_workers=0)
    with pytest.raises(ZeroDivisionError), loader:
        for _ in loader:
            raise ZeroDivisionError("the loss")
    (error,) = events(loader, ErrorEvent)
    assert (error.where, error.type, error.fatal) == ("training", "ZeroDivisionError", True)
    assert loader.stats().state == "failed"


SCRIPT = """
import sys
from tests.loader.support import Samples
from tests.loader.telemetry.test_errors import Fragile
from penstock import DataLoader
if __name__ == "__main__":
    train = DataLoader({dataset}("int", 8), batch_size=2, num_workers=1, monitor=sys.argv[1], name="train")
    for batch in train:
        {body}
    {after}
"""


@pytest.mark.parametrize(
    ("dataset", "body", "after", "state", "where"),
    [
        ("Samples", "raise ValueError('the loss is not finite')", "", "failed", "training"),
        ("Fragile", "pass", "", "failed", "dataset"),
        ("Samples", "sys.exit(1)", "", "failed", "training"),
        ("Samples", "sys.exit('no data')", "", "failed", "training"),
        ("Samples", "pass", "sys.exit(3)", "failed", "training"),
        ("Samples", "pass", "sys.exit(0)", "finished", ""),
        ("Samples", "exec('try: sys.exit(1)\\nexcept SystemExit: pass')", "", "finished", ""),
        ("Samples", "pass", "", "finished", ""),
        ("Samples", "pass", "raise KeyError('after the epoch')", "failed", "training"),
    ],
)
def test_how_a_training_ended_is_in_its_last_snapshot(
    server: GoodServer, dataset: str, body: str, after: str, state: str, where: str
) -> None:
    text = SCRIPT.format(dataset=dataset, body=body, after=after)
    script = [sys.executable, "-c", text, f"{server.url}#token={TOKEN}"]
    subprocess.run(script, cwd=ROOT, timeout=PATIENCE, capture_output=True, check=False)
    assert server.only.said_goodbye
    last: Snapshot = server.only.snapshots[-1]
    assert last.state == state
    told = [event for event in server.only.events if isinstance(event, ErrorEvent)]
    if not where:
        assert last.errors is UNSET and not told
        return
    assert last.errors is not UNSET and last.errors.fatal
    assert (last.errors.count, last.errors.where, told[-1].where, told[-1].fatal) == (1, where, where, True)


def ranked(rank: int, address: str) -> None:
    for _ in DataLoader(Samples("int", 8), num_workers=0, monitor=address, name="train"):
        raise ValueError(f"rank {rank} has no data")


def test_a_crash_under_spawn_does_not_count_as_finished(server: GoodServer) -> None:
    """torch's `spawn` catches what the function raises, and ends the process by `sys.exit`."""
    call = "torch.multiprocessing.spawn(ranked, (sys.argv[1],), nprocs=1)"
    text = f"import sys, torch.multiprocessing\nfrom {__name__} import ranked\nif __name__ == '__main__': {call}"
    script = [sys.executable, "-c", text, f"{server.url}#token={TOKEN}"]
    ended = subprocess.run(script, cwd=ROOT, timeout=PATIENCE, capture_output=True, check=False, text=True)
    assert "rank 0 has no data" in ended.stderr
    last: Snapshot = server.only.snapshots[-1]
    assert last.state == "failed" and last.errors is not UNSET and last.errors.fatal
    assert last.errors.text == "ValueError: rank 0 has no data"


# -- the log itself -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.4)), max_size=200))
def test_every_error_counts_and_few_are_told(arrivals: list[tuple[str, float]]) -> None:
    now = 0.0
    told: list[ErrorEvent] = []
    log = ErrorLog(told.append, lambda: now)
    for kind, later in arrivals:
        now += later
        log.note(ErrorEvent(now, "dataset", kind))
    if not arrivals:
        assert log.summary is None
        return
    assert log.summary is not None and log.summary.count == len(arrivals)
    for kind in {kind for kind, _ in arrivals}:
        mine = [event for event in told if event.type == kind]
        assert len(mine) <= errors.WHOLE + now / errors.APART + 1
        assert len(mine) + sum(event.more for event in mine) <= sum(each == kind for each, _ in arrivals)
    msgspec.msgpack.encode(told)


def test_kinds_beyond_a_limit_are_told_apart_no_more() -> None:
    told: list[ErrorEvent] = []
    log = ErrorLog(told.append, lambda: 0.0)
    for number in range(10_000):
        log.note(ErrorEvent(0.0, "dataset", f"Error{number}"))
    assert len(told) <= (errors.MOST_KINDS + 1) * errors.WHOLE
