"""Pause, resume, resize, refresh and close: every call in every state, from any thread, without changing the stream."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock import DataLoader
from penstock.control import Outcome, Ticket
from penstock.failures import WorkerLostError
from penstock.pool import conductor, pool
from penstock.pool.requests import TakeStack
from penstock.protocol import CommandEvent, Resize, Snapshot

from tests.loader.scenarios import (
    Counting,
    DiesAtBirth,
    Held,
    HeldOnce,
    InThread,
    Loaders,
    SavedStream,
    await_workers,
    events,
    plain,
    worker_pids,
)
from tests.loader.support import Draws, Samples, Stream, wait_until
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.usefixtures("nothing_left_behind"),
    pytest.mark.filterwarnings("ignore:.*exited unexpectedly"),  # of workers that die at birth
]

LENGTH = 12
KINDS = ("inline", "pool", "persistent", "iterable", "persistent iterable", "stateful")
STATES = ("not started", "running", "paused", "finished", "closed", "failed")
SITUATIONS = [
    (kind, state) for kind in KINDS for state in STATES if state != "failed" or kind in ("pool", "persistent")
]
"""Inline only the dataset fails, which is no failure of the loader; an iterable-style one only loses shards."""
OPEN = [(kind, state) for kind, state in SITUATIONS if state != "closed"]
DELAYED = ("inline", "iterable", "persistent iterable")
"""Kinds for which a resize waits for the next epoch."""


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


class Situation:
    """A loader of some kind in some state, and what it is to yield from there."""

    def __init__(self, loaders: Loaders, folder: Path, kind: str, state: str) -> None:
        self.kind = kind
        self.state = state
        self.birth = DiesAtBirth(folder)
        self._loaders = loaders
        self.workers = 0 if kind == "inline" else 1
        self.loader = self.fresh()
        self.epoch = [[number, number + 1] for number in range(0, LENGTH, 2)]
        if "iterable" in kind or kind == "stateful":
            self.epoch = self.dealt(1)
        self.rest: list[Any] | None = None
        """What is left of the epoch under way; None: there is none."""
        self.iterator: Any = None
        if state == "failed":
            self.birth.arm()
            self.iterator = iter(self.loader)
            with pytest.raises(WorkerLostError, match="exit code 9"):
                next(self.iterator)
            self.birth.disarm()
        elif state == "finished":
            assert self.numbers(self.loader) == self.epoch
        elif state in ("running", "paused", "closed"):
            self.iterator = iter(self.loader)
            first = self.numbers([next(self.iterator), next(self.iterator)])
            assert first == self.epoch[:2]
            self.rest = self.epoch[2:]
            if state == "paused":
                assert self.loader.pause().state == "applied"
            elif state == "closed":
                self.loader.close()

    def fresh(self) -> DataLoader[Any]:
        dataset: Any = Samples("int", LENGTH)
        if "iterable" in self.kind:
            dataset = Stream("int", LENGTH)
        elif self.kind == "stateful":
            dataset = SavedStream(LENGTH)
        return self._loaders(
            dataset,
            batch_size=2,
            num_workers=self.workers,
            persistent_workers="persistent" in self.kind,
            worker_init_fn=None if self.kind == "inline" else self.birth,
        )

    def dealt(self, shards: int) -> list[list[int]]:
        """The order in which an iterable-style dataset in so many shards comes."""
        hands = [list(range(first, LENGTH, shards)) for first in range(shards)]
        cut = [[hand[at : at + 2] for at in range(0, len(hand), 2)] for hand in hands]
        longest = max(map(len, cut))
        return [hand[turn] for turn in range(longest) for hand in cut if turn < len(hand)]

    def following(self, workers: int) -> list[list[int]]:
        """What an epoch with so many workers yields."""
        return self.epoch if self.kind in ("inline", "pool", "persistent") else self.dealt(workers)

    def numbers(self, batches: Any) -> list[list[int]]:
        if self.kind == "stateful":
            return [batch[0].flatten().tolist() for batch in batches]
        return [batch.tolist() for batch in batches]

    def check_stream(self, workers: int) -> None:
        """The rest of the epoch under way, and the next one, come as if nothing had been."""
        if self.rest is not None:
            assert InThread(lambda: self.numbers(self.iterator)).result() == self.rest
        assert InThread(lambda: self.numbers(self.loader)).result() == self.following(workers)


@pytest.fixture
def situation(loaders: Loaders, tmp_path: Path) -> Callable[[str, str], Situation]:
    return lambda kind, state: Situation(loaders, tmp_path, kind, state)


Situate = Callable[[str, str], Situation]


# -- every call in every state -------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "state"), OPEN)
def test_every_call_in_every_state_of_an_open_loader(situation: Situate, kind: str, state: str) -> None:
    now = situation(kind, state)
    loader = now.loader
    usual = {"not started": "idle", "paused": "running"}.get(state, state)

    told = loader.stats()
    assert isinstance(told, Snapshot)
    assert told.state == ("paused" if state == "paused" else usual)
    assert told.batches == {"not started": 0, "failed": 0, "finished": 6}.get(state, 2)
    assert (told.target, told.pending) == (now.workers, None)

    for _ in range(2):
        paused = loader.pause()
        assert (paused.action, paused.state) == ("pause", "applied")
        assert loader.stats().state == ("failed" if state == "failed" else "paused")
    for _ in range(2):
        resumed = loader.resume()
        assert (resumed.action, resumed.state) == ("resume", "applied")
        assert loader.stats().state == usual

    loader.refresh()
    loader.refresh()

    if "iterable" in kind and now.rest is not None:
        with pytest.warns(UserWarning, match=r"cannot save its position.*state_dict"):
            loader.state_dict()
    else:
        saved = loader.state_dict()
        assert (saved["epoch"], saved["batch"]) == {"finished": (1, 0), "not started": (0, 0), "failed": (0, 0)}.get(
            state, (0, 2)
        )

    outcome = loader.resize(2)
    assert (outcome.action, outcome.asked, outcome.before) == ("resize", 2, now.workers)
    if now.rest is not None and kind not in DELAYED:
        assert (outcome.state, outcome.actual) == ("applied", 2)
        assert outcome.at_batch is not None
        assert 2 <= outcome.at_batch <= 6
        assert (loader.stats().target, loader.stats().pending) == (2, None)
    else:
        assert outcome.state == "pending"
        assert outcome.reason
        assert (loader.num_workers, loader.stats().pending) == (now.workers, 2)
    now.check_stream(2)
    assert (loader.num_workers, loader.stats().pending, loader.stats().state) == (2, None, "finished")


@pytest.mark.parametrize(("kind", "state"), [each for each in SITUATIONS if each[1] != "finished"])
def test_close_ends_everything_and_a_closed_loader_refuses(situation: Situate, kind: str, state: str) -> None:
    now = situation(kind, state)
    loader = now.loader
    loader.close()
    loader.close()
    assert loader.stats().state == "closed"
    assert loader.stats().workers == []
    if now.iterator is not None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed|exit code 9" if state == "failed" else "closed"):
                InThread(lambda: next(now.iterator)).result()
    calls: list[Callable[[], Any]] = [
        lambda: loader.resize(3),
        loader.pause,
        lambda: loader.pause(1.0),
        loader.resume,
        loader.refresh,
        lambda: loader.load_state_dict({}),
        lambda: iter(loader),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="closed"):
            call()
    if "iterable" not in kind:
        # What training had is still known, so that a script can save it on its way out.
        assert loader.state_dict()["batch"] == (0 if now.rest is None else 2)


@pytest.mark.parametrize("kind", ["inline", "pool", "persistent", "stateful"])
def test_the_next_epoch_of_an_idle_loader_starts_paused(situation: Situate, kind: str) -> None:
    for state in ("not started", "finished"):
        now = situation(kind, state)
        now.loader.pause()
        waiting = InThread(lambda now=now: now.numbers(now.loader))  # type: ignore[misc]
        wait_until(lambda now=now: now.loader.stats().times.paused_us, "time that counts as paused")  # type: ignore[misc]
        assert not waiting.is_done()
        assert now.loader.stats().batch == 0
        assert now.loader.stats().state == "paused"
        now.loader.resume()
        assert waiting.result() == now.epoch


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("inline", "running"),
        ("pool", "paused"),
        ("pool", "failed"),
        ("persistent", "running"),
        ("persistent", "finished"),
        ("stateful", "running"),
    ],
)
def test_load_state_dict_takes_effect_with_the_next_iter(situation: Situate, kind: str, state: str) -> None:
    now = situation(kind, state)
    source = now.fresh()
    iterator = iter(source)
    for _ in range(3):
        next(iterator)
    saved = source.state_dict()
    now.loader.load_state_dict(saved)
    assert now.loader.state_dict()["batch"] == 3
    if state == "paused":
        now.loader.resume()
    assert now.numbers(now.loader) == now.epoch[3:]
    assert now.loader.stats().epoch == 0
    assert now.numbers(now.loader) == now.epoch
    assert now.loader.stats().epoch == 1


# -- resize --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, -1, 9, 10**9])
def test_resize_refuses_numbers_out_of_range(loaders: Loaders, workers: int) -> None:
    loader = loaders(Samples(), num_workers=1, max_workers=8)
    with pytest.raises(ValueError, match=rf"1 to 8 \(max_workers\).*workers={workers}"):
        loader.resize(workers)
    assert (loader.num_workers, loader.stats().pending) == (1, None)


@pytest.mark.parametrize("workers", [None, "2", 2.0, True, [2]])
def test_resize_refuses_other_types(loaders: Loaders, workers: Any) -> None:
    loader = loaders(Samples(), num_workers=1)
    with pytest.raises(TypeError, match="expects an int, but got workers="):
        loader.resize(workers)
    assert (loader.num_workers, loader.stats().pending) == (1, None)


def test_many_threads_resize_and_the_newest_wins(loaders: Loaders) -> None:
    loader = loaders(Draws(400), batch_size=2, num_workers=2, generator=torch.Generator().manual_seed(5), max_workers=4)
    undisturbed = loaders(Draws(400), batch_size=2, num_workers=1, generator=torch.Generator().manual_seed(5))
    iterator = iter(loader)
    got = [next(iterator)]
    outcomes: list[Outcome] = []

    def resize_often(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(5):
            outcomes.append(loader.resize(choose.randint(1, 4)))

    threads = [threading.Thread(target=resize_often, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        got.extend(batch for _, batch in zip(range(2), iterator, strict=False))
    assert len(outcomes) == 20
    assert {outcome.state for outcome in outcomes} <= {"applied", "superseded", "pending"}
    for outcome in outcomes:
        if outcome.state == "applied":
            assert outcome.actual == outcome.asked
        else:
            assert outcome.reason
    final = loader.resize(3)
    assert final.state in ("applied", "pending")
    got.extend(iterator)
    assert plain(got) == plain(undisturbed)
    assert loader.stats().digest == undisturbed.stats().digest


@contextmanager
def conductor_held(iterator: Any) -> Iterator[None]:
    """The pool's thread does nothing meanwhile."""
    held, go_on = threading.Event(), threading.Event()

    def hold(_stack: str) -> None:
        held.set()
        go_on.wait(PATIENCE)

    iterator.pool.conductor.request(TakeStack(hold, None))
    assert held.wait(PATIENCE)
    try:
        yield
    finally:
        go_on.set()


def test_an_older_resize_under_way_reports_superseded(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 100), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    with conductor_held(iterator):  # so that all of them are there when it looks
        tickets = [loader._penstock.request(Resize(2 + number % 3)) for number in range(30)]
    outcomes = [ticket.wait(PATIENCE) for ticket in tickets]
    assert [outcome.state for outcome in outcomes] == ["superseded"] * 29 + ["applied"]
    assert outcomes[-1].actual == 2 + 29 % 3
    assert all("newer" in outcome.reason for outcome in outcomes[:-1])


def test_a_pending_resize_is_superseded_by_a_newer_one_and_applied_with_the_next_epoch(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 6), num_workers=1)
    older, newer = loader._penstock.request(Resize(2)), loader._penstock.request(Resize(3))
    assert newer.wait(PATIENCE).state == "pending"
    list(loader)
    told = [(event.asked, event.state) for event in events(loader, CommandEvent)]
    assert (2, "superseded") in told
    assert told[-1] == (3, "applied")
    assert (older.outcome.state, newer.outcome.state) == ("superseded", "applied")


@pytest.mark.parametrize("prefetch_factor", [None, 1])
def test_new_workers_take_tasks_at_once(loaders: Loaders, tmp_path: Path, prefetch_factor: int | None) -> None:
    dataset = Held(tmp_path, set(range(2, 24)))
    loader = loaders(dataset, num_workers=1, prefetch_factor=prefetch_factor)
    iterator = iter(loader)
    assert next(iterator)[0].item() == 0
    assert loader.resize(3).state == "applied"
    assert next(iterator)[0].item() == 1
    following = InThread(lambda: plain([next(iterator)]))
    assert len(dataset.await_holders(3)) == 3
    assert not following.is_done()
    dataset.let_go()
    assert following.result()[0][0] == [2]
    assert len(list(iterator)) == 21


def test_shrinking_takes_unstarted_tasks_back_and_loses_no_work(loaders: Loaders, tmp_path: Path) -> None:
    dataset = Held(tmp_path, set(range(24)))
    loader = loaders(dataset, num_workers=3, generator=torch.Generator().manual_seed(3))
    iterator = iter(loader)
    holders = dataset.await_holders(3)
    assert loader.resize(1).state == "applied"
    retiring = {worker.pid for worker in loader.stats().workers if worker.state == "retiring"}
    assert len(retiring) == 2
    assert retiring < holders  # each is still at its batch
    dataset.let_go()
    got = plain(iterator)
    # What a worker had begun it finished; what it had not begun went to the other.
    assert {index for index, _ in dataset.fetched()} == set(range(24))
    assert {pid: [p for _, p in dataset.fetched()].count(pid) for pid in retiring} == dict.fromkeys(retiring, 1)
    assert loader.stats().recoveries == 0
    undisturbed = loaders(Draws(24), num_workers=1, generator=torch.Generator().manual_seed(3))
    assert got == plain(undisturbed)


def test_resize_works_while_paused(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 40), num_workers=2)
    iterator = iter(loader)
    got = [next(iterator).item()]
    loader.pause()
    assert loader.resize(4).state == "applied"
    assert loader.resize(1).state == "applied"
    assert loader.stats().state == "paused"
    await_workers(loader, 1)
    loader.resume()
    assert [*got, *(batch.item() for batch in iterator)] == list(range(40))


def test_two_live_iterators_are_both_resized_and_paused(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 60), num_workers=1, prefetch_factor=1)
    first, second = iter(loader), iter(loader)
    assert (next(first).item(), next(second).item()) == (0, 0)
    assert loader.resize(2).state == "applied"
    assert loader.pause().state == "applied"
    both = [InThread(lambda each=each: [b.item() for b in each]) for each in (first, second)]  # type: ignore[misc]
    wait_until(lambda: loader.stats().times.paused_us, "time that counts as paused")
    time.sleep(0.2)
    assert not any(each.is_done() for each in both)
    pools: list[Any] = [first, second]
    assert [len(iterator.pool.conductor.roster) for iterator in pools] == [2, 2]
    assert loader.resume().state == "applied"
    assert [each.result() for each in both] == [list(range(1, 60))] * 2


# -- requests that come too late -----------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("action", ["resize", "pause", "resume"])
def test_a_request_that_meets_the_end_of_the_epoch_is_settled(loaders: Loaders, persistent: bool, action: str) -> None:
    loader = loaders(Samples("int", 3), num_workers=1, persistent_workers=persistent)
    iterator: Any = iter(loader)
    assert len(list(iterator)) == 3
    ticket = Ticket(action, 2 if action == "resize" else None)
    if action == "resize":
        iterator.pool.resize(2, ticket)
    elif action == "pause":
        iterator.pool.pause(None, ticket)
    else:
        iterator.pool.resume(ticket)
    assert ticket.wait(PATIENCE).state == ("pending" if action == "resize" else "applied")


def test_control_and_epochs_race_without_a_lost_answer(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 6), batch_size=2, num_workers=1)
    stop = threading.Event()
    outcomes: list[Outcome] = []

    def control() -> None:
        choose = random.Random(11)
        while not stop.is_set():
            outcomes.append(loader.resize(choose.randint(1, 2)))
            outcomes.append(loader.pause())
            outcomes.append(loader.resume())

    thread = threading.Thread(target=control, daemon=True)
    thread.start()
    try:
        for _ in range(6):
            assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert {outcome.state for outcome in outcomes if outcome.action != "resize"} == {"applied"}
    assert {outcome.state for outcome in outcomes if outcome.action == "resize"} <= {"applied", "pending"}


# -- pause ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_pause_refuses_times_that_are_none(loaders: Loaders, seconds: float) -> None:
    loader = loaders(Samples())
    with pytest.raises(ValueError, match="positive number of seconds, but got resume_after="):
        loader.pause(seconds)
    assert loader.stats().state == "idle"


@pytest.mark.parametrize("seconds", ["1", True, [1]])
def test_pause_refuses_other_types(loaders: Loaders, seconds: Any) -> None:
    loader = loaders(Samples())
    with pytest.raises(TypeError, match="number of seconds, but got resume_after="):
        loader.pause(seconds)
    assert loader.stats().state == "idle"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pause_ends_by_itself(loaders: Loaders, workers: int) -> None:
    loader = loaders(Samples("int", 20), num_workers=workers, prefetch_factor=1 if workers else None)
    assert loader.pause(resume_after=0.3).state == "applied"  # remembered for the epoch
    assert InThread(lambda: len(list(loader))).result() == 20
    iterator = iter(loader)
    next(iterator)
    loader.pause()
    before = loader.stats().times.paused_us
    rest = InThread(lambda: len(list(iterator)))
    wait_until(lambda: loader.stats().times.paused_us > before, "a training that waits")
    loader.pause(resume_after=0.3)  # in mid-epoch
    assert rest.result() == 19
    assert loader.stats().state == "finished"
    assert loader.stats().times.paused_us - before >= 300_000


@pytest.mark.parametrize("workers", [0, 2])
def test_a_newer_pause_replaces_the_time_of_the_older(loaders: Loaders, workers: int) -> None:
    loader = loaders(Samples("int", 500), num_workers=workers, prefetch_factor=1 if workers else None)
    iterator = iter(loader)
    next(iterator)
    loader.pause(resume_after=0.05)
    loader.pause()
    rest = InThread(lambda: len(list(iterator)))
    time.sleep(0.3)  # the older pause would be over
    assert not rest.is_done()
    assert loader.stats().state == "paused"
    loader.pause(resume_after=0.05)
    assert rest.result() == 499


def test_training_goes_on_with_what_is_finished_and_then_waits(loaders: Loaders, tmp_path: Path) -> None:
    dataset = Held(tmp_path, {5})
    loader = loaders(dataset, num_workers=1, prefetch_factor=8)
    iterator = iter(loader)
    dataset.await_held(5)
    loader.pause()
    dataset.let_go()
    # The worker finishes the batch that it is at, and no other.
    got = [next(iterator)[0].item() for _ in range(6)]
    assert got == [0, 1, 2, 3, 4, 5]
    waiting = InThread(lambda: plain([next(iterator)]))
    wait_until(lambda: [w.state for w in loader.stats().workers] == ["paused"], "the worker's pause")
    wait_until(lambda: loader.stats().times.paused_us, "time that counts as paused")
    assert max(index for index, _ in dataset.fetched()) == 5
    assert not waiting.is_done()
    loader.resume()
    assert waiting.result()[0][0] == [6]
    assert len(list(iterator)) == 17


def test_a_persistent_pool_resumed_between_epochs_goes_on(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 8), num_workers=1, persistent_workers=True, prefetch_factor=8)
    iterator = iter(loader)
    next(iterator)
    wait_until(lambda: loader.stats().queues.data == 7, "the rest of the epoch")
    loader.pause()
    assert len(list(iterator)) == 7
    assert loader.stats().state == "paused"
    loader.resume()
    assert InThread(lambda: len(list(loader))).result() == 8


class WaitsAtBirth:
    """A worker_init_fn that waits for a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, _worker: int) -> None:
        wait_until(self.file.exists, "leave to begin")


class Clock:
    """The module `time`, with a monotonic clock that can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_the_timeout_stands_still_while_paused(
    loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    born = tmp_path / "go"
    clock = Clock()
    for module in (conductor, pool):
        monkeypatch.setattr(module, "time", clock)

    loader = loaders(Samples("int", 4), num_workers=1, timeout=PATIENCE, worker_init_fn=WaitsAtBirth(born))
    iterator = iter(loader)
    waiting = InThread(lambda: [batch.item() for batch in iterator])
    wait_until(lambda: loader.stats().times.startup_us, "the wait")
    loader.pause()
    clock.ahead = 10 * PATIENCE  # much longer than the timeout
    loader.resume()
    born.touch()
    assert waiting.result() == [0, 1, 2, 3]


def test_the_timeout_goes_on_after_a_pause(loaders: Loaders, tmp_path: Path) -> None:
    dataset = Held(tmp_path, {1})
    loader = loaders(dataset, num_workers=1, timeout=PATIENCE)
    iterator: Any = iter(loader)
    next(iterator)
    iterator._timeout = 1
    loader.pause(resume_after=0.2)
    with pytest.raises(RuntimeError, match=r"timed out after 1 seconds waiting for batch 1"):
        InThread(lambda: next(iterator)).result()
    dataset.let_go()


def _processor_time(tasks: list[Path]) -> list[list[str]]:
    """Processor time and context switches of threads, as the system counts them."""
    counters = []
    for task in tasks:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        status = (task / "status").read_text().splitlines()
        counters.append([*fields[11:13], *(line for line in status if "ctxt_switches" in line)])
    return counters


def _is_quiet(tasks: list[Path]) -> bool:
    before = _processor_time(tasks)
    time.sleep(0.5)
    return _processor_time(tasks) == before


def test_a_paused_pool_uses_no_processor_time(loaders: Loaders) -> None:
    loader = loaders(Draws(1000), num_workers=3)
    iterator: Any = iter(loader)
    next(iterator)
    await_workers(loader, 3)
    assert loader.pause().state == "applied"
    wait_until(lambda: {worker.state for worker in loader.stats().workers} == {"paused"}, "the workers' pause")
    conductors = [thread.native_id for thread in threading.enumerate() if thread.name == "loader-conductor"]
    assert len(conductors) == 1
    tasks = [task for pid in worker_pids(loader) for task in Path(f"/proc/{pid}/task").iterdir()]
    tasks += [Path(f"/proc/self/task/{number}") for number in conductors]
    assert len(tasks) >= 4
    # It may take them a moment to come to rest. Whoever looks again and again would never be quiet for so long.
    wait_until(lambda: _is_quiet(tasks), "quiet")
    loader.resume()
    assert len(list(iterator)) == 999


# -- while training is busy ----------------------------------------------------------------------------------


def test_control_does_not_wait_for_training(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 2000), num_workers=1)
    iterator = iter(loader)
    next(iterator)

    def control() -> list[Any]:
        outcomes = [loader.resize(3), loader.pause()]
        wait_until(lambda: [w.state for w in loader.stats().workers].count("paused") == 3, "three paused workers")
        outcomes += [loader.resume(), loader.resize(1)]
        return [(outcome.action, outcome.state) for outcome in outcomes]

    controlling = InThread(control)
    number = 0
    while not controlling.is_done():
        number += sum(divmod(number, 7))  # pure Python: the conductor has to fight for the interpreter lock
    assert controlling.result() == [
        ("resize", "applied"), ("pause", "applied"), ("resume", "applied"), ("resize", "applied"),
    ]  # fmt: skip
    assert [batch.item() for batch in iterator] == list(range(1, 2000))


def test_the_sampler_is_advanced_only_where_training_iterates(loaders: Loaders) -> None:
    threads = set()

    class Watched(torch.utils.data.SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            for index in super().__iter__():
                threads.add(threading.current_thread().name)
                yield index

    dataset = Samples("int", 600)
    loader = loaders(dataset, sampler=Watched(dataset), num_workers=1, prefetch_factor=1)
    iterator = iter(loader)
    next(iterator)
    for workers in (4, 2, 5):
        loader.resize(workers)
        next(iterator)
    assert len(list(iterator)) == 596
    assert threads == {threading.current_thread().name}


# -- changes of the dataset ----------------------------------------------------------------------------------


class Offset(Samples):
    offset = 0

    def __getitem__(self, key: Any) -> Any:
        return int(super().__getitem__(key)) + self.offset


def test_attributes_reach_a_new_pool_but_not_a_persistent_one(loaders: Loaders) -> None:
    for persistent, seen in ((False, 100), (True, 0)):
        dataset = Offset("int", 3)
        loader = loaders(dataset, num_workers=2, persistent_workers=persistent)
        assert [batch.item() for batch in loader] == [0, 1, 2]
        dataset.offset = 100
        assert [batch.item() for batch in loader] == [seen, seen + 1, seen + 2]


def test_refresh_makes_a_persistent_pool_take_the_dataset_as_it_is(loaders: Loaders) -> None:
    dataset = Offset("int", 3)
    loader = loaders(dataset, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator).item() == 0
    dataset.offset = 100
    loader.refresh()
    assert [batch.item() for batch in iterator] == [1, 2]  # the epoch under way keeps the old one
    assert [batch.item() for batch in loader] == [100, 101, 102]
    pids = set(await_workers(loader, 2))
    assert [batch.item() for batch in loader] == [100, 101, 102]
    assert set(worker_pids(loader)) == pids  # once


def test_refresh_does_not_change_the_random_stream(loaders: Loaders) -> None:
    def make() -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(8)
        return loaders(Draws(8), num_workers=2, shuffle=True, persistent_workers=True, generator=generator)

    undisturbed, refreshed = make(), make()
    for _ in range(3):
        assert plain(undisturbed) == plain(refreshed)
        refreshed.refresh()
    assert undisturbed.stats().digest == refreshed.stats().digest


@pytest.mark.parametrize("held", [1, 2, 3, 4, 5, 6])
def test_a_batch_of_an_epoch_that_was_left_holds_nothing_up(loaders: Loaders, tmp_path: Path, held: int) -> None:
    """The worker that is still at it may be handed the batch of the same number of the next epoch."""
    dataset = HeldOnce(tmp_path, {held}, 8)
    loader = loaders(dataset, num_workers=2, persistent_workers=True, prefetch_factor=4)
    iterator = iter(loader)
    assert next(iterator)[0].item() == 0
    dataset.await_held(held)
    await_workers(loader, 2)
    iterator = iter(loader)
    following = InThread(lambda: plain(iterator))
    try:
        # The free worker makes all of them; the other may go on afterwards.
        assert [batch[0] for batch in following.result()] == [[number] for number in range(8)]
    finally:
        dataset.let_go()


def test_commands_become_events(loaders: Loaders) -> None:
    loader = loaders(Samples("int", 300), num_workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.resize(2)
    loader.pause()
    loader.resume()
    told = [(e.action, e.state, e.asked, e.before, e.actual, e.by) for e in events(loader, CommandEvent)]
    assert told == [
        ("resize", "applied", 2, 1, 2, "local"),
        ("pause", "applied", None, 2, 2, "local"),
        ("resume", "applied", None, 2, 2, "local"),
    ]


def test_control_has_few_samples_fetched_again(loaders: Loaders, tmp_path: Path) -> None:
    """Only what a worker took up at the very moment at which it was recalled is made twice."""
    dataset = Counting(tmp_path, 120)
    loader = loaders(dataset, batch_size=2, num_workers=2)
    choose = random.Random(2)
    recalls = 0
    iterator: Any = iter(loader)
    dispatcher = iterator.pool.conductor.dispatcher
    real = dispatcher.recall

    def counted(window: Any, worker: Any) -> bool:
        nonlocal recalls
        recalls += 1
        return bool(real(window, worker))

    dispatcher.recall = counted
    for step, _ in enumerate(iterator):
        if step % 5 == 0:
            loader.resize(choose.randint(1, 4))
        elif step % 7 == 0:
            loader.pause()
            loader.resume()
    fetched = [index for index, _ in dataset.fetched()]
    assert set(fetched) == set(range(120))
    assert len(fetched) <= 120 + 2 * recalls
