"""The sampler sees where threads of its process are, charges the time that really passed, and is not noticed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import opmap
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.profiling.sampler import Chunk, Look, Sampler, Schedule, Target, _shared_out
from penstock.profiling.stacks import Stacks
from penstock.profiling.tree import ROOT, Intake, Tree

from tests.patience import PATIENCE

AT_WORK, IDLE = 2, 1
MS = 1_000_000


class Watch:
    """A sampler of one thread, and what it has seen."""

    def __init__(self) -> None:
        self.words = array("q", [AT_WORK, 0])
        self.looks: list[Look] = []
        self.tree = Tree()
        self.idle: dict[int, int] = {}
        self.leaves: list[str] = []
        intake = Intake(self.tree, self.idle, {AT_WORK: 0})

        def deliver(chunk: Chunk) -> None:
            self.looks += chunk.rows()
            for _, node, _ in intake.take(chunk):
                leaf = None if node == ROOT else self.tree.functions[self.tree.nodes[node].function]
                self.leaves.append("" if leaf is None else leaf.name.rpartition(".")[2])

        self.sampler = Sampler(200, deliver, frozenset({inside.__code__}), lambda state: state == IDLE)

    def wall(self, name: str) -> int:
        """ns charged to a function."""
        named = {number for number, function in enumerate(self.tree.functions) if function.name.endswith(name)}
        own = self.tree.own()
        return sum(weight for node, weight in own.items() if node >= 0 and self.tree.nodes[node].function in named)

    def wait_for(self, looks: int) -> None:
        """Until so many more have been delivered."""
        wanted, end = len(self.looks) + looks, time.monotonic() + PATIENCE
        while len(self.looks) < wanted:
            assert time.monotonic() < end, "the sampler delivered nothing"
            time.sleep(0.01)


def inside(work: Callable[[], None]) -> None:
    """Stacks begin below it."""
    work()


@contextmanager
def sampled(work: Callable[[], None]) -> Iterator[Watch]:
    """A thread at work, looked at until it has ended."""
    watch, ready, started = Watch(), threading.Event(), threading.Event()

    def run() -> None:
        watch.words[0] = IDLE
        watch.sampler.watch(Target.this_thread(0, watch.words, (0, 1)))
        ready.set()
        started.wait()
        watch.words[0] = AT_WORK
        inside(work)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(PATIENCE)
    watch.sampler.start()
    started.set()
    try:
        yield watch
    finally:
        thread.join(PATIENCE)
        watch.sampler.stop()
        assert not thread.is_alive()


@given(st.floats(1, 1000), st.lists(st.integers(0, 10**8), max_size=30))
def test_one_look_is_due_in_every_period_and_late_ones_stand_for_those_before(rate: float, steps: list[int]) -> None:
    schedule = Schedule(1000, rate)
    counted, now = 0, 1000
    for step in steps:
        now += step
        due = schedule.due()
        more = schedule.count(now)
        assert (more > 0) == (due <= now)
        counted += more
        assert (now - 1000) // schedule.period <= counted <= (now - 1000) // schedule.period + 1
        assert schedule.due() > now


@given(st.integers(0, 10**12), st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), min_size=1))
def test_processor_time_goes_to_those_looks_that_found_the_thread_running(
    whole: int, looks: list[tuple[int, bool]]
) -> None:
    running = [wall if runs else 0 for wall, runs in looks]
    shares = _shared_out(whole, running, [wall for wall, _ in looks])
    assert sum(shares) == whole
    if any(running):
        assert all(share == 0 for share, part in zip(shares, running, strict=True) if not part)


def test_a_blocked_thread_is_seen_where_it_blocks_and_uses_no_processor() -> None:
    first, second = threading.Event(), threading.Event()

    def reads() -> None:
        first.wait()

    def parses() -> None:
        second.wait()

    def work() -> None:
        reads()
        parses()

    with sampled(work) as watch:
        watch.wait_for(20)
        assert all(user.user for user in watch.tree.functions if user.name.endswith(("work", "reads")))
        assert watch.wall("parses") == 0
        first.set()
        watch.wait_for(20)
        second.set()
    paths = {tuple(watch.tree.functions[each.function].name.rpartition(".")[2] for each in watch.tree.path(node))
             for node in watch.tree.own()}  # fmt: skip
    assert any(path[:2] == ("work", "reads") and path[-1] == "wait" for path in paths)
    assert any(path[:2] == ("work", "parses") for path in paths)
    assert sum(watch.tree.own("processor").values()) < sum(watch.tree.own().values()) / 2


def test_a_busy_thread_is_charged_its_own_processor_clock() -> None:
    done, used = threading.Event(), []

    def counts() -> None:
        began = time.thread_time_ns()
        while not done.is_set():
            for _ in range(1000):
                pass
        used.append(time.thread_time_ns() - began)

    with sampled(counts) as watch:
        watch.wait_for(40)
        done.set()
    charged = sum(watch.tree.own("processor").values())
    assert abs(charged - used[0]) < 0.2 * used[0] + 50 * MS
    assert watch.wall("counts") > 0.5 * sum(watch.tree.own().values())


def test_c_code_that_holds_the_interpreter_lock_is_charged_all_its_time() -> None:
    took = []

    def holds() -> None:
        began = time.monotonic_ns()
        sum(repeat(1, 40_000_000))
        took.append(time.monotonic_ns() - began)

    with sampled(holds) as watch:
        pass
    period = 5 * MS
    assert watch.wall("holds") >= took[0] - 4 * period
    assert max(look.wall for look in watch.looks) >= took[0] // 2, "one look stood for the whole call"


def test_time_without_work_has_no_stack() -> None:
    begun, done = threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        done.wait()

    with sampled(waits) as watch:
        assert begun.wait(PATIENCE)
        watch.words[0] = IDLE
        watch.wait_for(1)
        at_work, idle = sum(watch.tree.own().values()), watch.idle[0]
        watch.wait_for(1)
        assert sum(watch.tree.own().values()) == at_work
        assert watch.idle[0] > idle
        done.set()


def test_the_user_notices_no_thread_no_signal_and_no_setting() -> None:
    """Signals still interrupt what the main thread waits in: they never reach the sampler's thread."""
    before, known, heard = sys.getswitchinterval(), threading.enumerate(), []
    watch = Watch()
    watch.sampler.watch(Target.this_thread(0, watch.words, (0, 1)))
    read, write = os.pipe()

    def hear(*_: object) -> None:
        heard.append(True)
        os.write(write, b"x")

    # Python retries a read that a signal interrupts, after the handler has run, which writes what is read.
    handler = signal.signal(signal.SIGUSR1, hear)
    watch.sampler.start()
    try:
        assert threading.enumerate() == known
        for number in range(1, 21):
            threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            assert os.read(read, 1) == b"x"
            assert len(heard) == number
    finally:
        watch.sampler.stop()
        signal.signal(signal.SIGUSR1, handler)
        os.close(read)
        os.close(write)
    assert sys.getswitchinterval() == before
    watch.sampler.stop()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_a_fork_copies_no_thread_of_ours_and_sampling_goes_on() -> None:
    watch = Watch()
    watch.sampler.watch(Target.this_thread(0, watch.words, (0, 1)))
    watch.sampler.start()
    try:
        watch.wait_for(5)
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(len(list(Path("/proc/self/task").iterdir())))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        watch.wait_for(20)
    finally:
        watch.sampler.stop()


def test_a_thread_that_has_ended_is_forgotten_and_a_receiver_that_fails_ends_the_sampler() -> None:
    with sampled(lambda: None) as watch:
        end = time.monotonic() + PATIENCE
        while watch.sampler._targets:
            assert time.monotonic() < end
            time.sleep(0.01)

    failed = threading.Event()

    def fails(chunk: Chunk) -> None:
        if chunk.looks:
            failed.set()
            raise OSError("nobody listens")

    sampler = Sampler(200, fails, frozenset(), lambda _: False)
    sampler.watch(Target.this_thread(0, array("q", [0, 0]), (0, 1)))
    sampler.start()
    assert failed.wait(PATIENCE)
    sampler.stop()


def test_stacks_are_bounded_and_what_does_not_fit_is_charged_to_a_caller() -> None:
    stacks = Stacks(frozenset(), most=3)
    codes = [compile("pass", f"{name}.py", "exec") for name in "abcd"]
    a, b, c, d = ((code, 2) for code in codes)  # which are equal to Python, but for their files
    numbers = [stacks.number(stack) for stack in ([a], [b, a], [c, b, a])]
    assert numbers == [0, 1, 2]
    assert stacks.number([d, c, b, a]) == 2
    assert stacks.number([d, b, a]) == 1
    news = stacks.take_news()
    assert [len(stack) for stack in news.stacks] == [1, 2, 3]
    assert stacks.take_news() == ([], [], [])


def test_a_function_that_was_only_just_entered_is_not_charged_but_its_caller() -> None:
    def caller() -> None:
        pass

    def callee() -> None:
        pass

    stacks = Stacks(frozenset())
    entered = callee.__code__.co_code.index(opmap["RESUME"])
    assert stacks.number([(callee.__code__, entered), (caller.__code__, 2)]) == stacks.number([(caller.__code__, 2)])
    assert stacks.number([(callee.__code__, entered + 2), (caller.__code__, 2)]) == 1
