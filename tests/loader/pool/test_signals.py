"""Waking threads, whatever signal handlers do meanwhile."""

from __future__ import annotations

import random
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import penstock
import pytest
from penstock.control import Gate
from penstock.pool.signals import Latch

from tests.patience import PATIENCE


class Interrupted(Exception):
    pass


@pytest.fixture
def alarms() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    timer = signal.getitimer(signal.ITIMER_REAL)  # the time limit of the test
    yield
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def wait_amidst_alarm(latch: Latch, seconds: float) -> bool:
    """Wait; True if a signal handler raised."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        latch.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    return False


@pytest.mark.timeout(method="thread")
def test_a_handler_that_raises_in_a_wait_never_stops_whoever_sets_it(alarms: None) -> None:  # noqa: ARG001
    """An event of `threading` is left locked in one of about a thousand such waits."""
    choose, raised = random.Random(5), 0
    for _ in range(8000):
        latch = Latch()
        setter = threading.Thread(target=latch.set, daemon=True)
        setter.start()
        raised += wait_amidst_alarm(latch, choose.uniform(1e-6, 1e-4))
        setter.join(PATIENCE)
        assert not setter.is_alive()
        assert latch.is_set() and latch.wait(0)
    assert raised


@pytest.mark.timeout(method="thread")
def test_a_handler_that_raises_in_a_pause_never_stops_whoever_ends_it(alarms: None) -> None:  # noqa: ARG001
    """Inline loading waits at a gate in the training thread; commands come from the publisher's."""
    choose = random.Random(5)
    for _ in range(3000):
        gate = Gate()
        gate.pause(None)
        with pytest.raises(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-6, 1e-4))
            gate.wait()
        resuming = threading.Thread(target=gate.resume, daemon=True)
        resuming.start()
        resuming.join(PATIENCE)
        assert not resuming.is_alive()
        assert not gate.wait()


def test_a_gate_opens_for_those_who_wait_and_a_later_pause_holds() -> None:
    gate = Gate()
    for end in (gate.resume, gate.close):
        gate.pause(None)
        waiting = threading.Thread(target=gate.wait, daemon=True)
        waiting.start()
        end()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
    gate = Gate()
    gate.pause(0.01)
    assert gate.wait(), "its time was over"
    assert gate.status() == (False, None)


MAY = {
    "pool/crews/worker_process.py",  # a worker's own
    "pool/pool.py",  # a thread that the interpreter leaves behind
}
"""Files in which there is a `threading.Event` that no handler's exception can leave locked for others."""


def test_threads_of_training_wait_for_latches() -> None:
    package = Path(penstock.__file__).parent
    files = [path.relative_to(package).as_posix() for path in package.rglob("*.py") if _EVENT.search(path.read_text())]
    assert set(files) <= MAY


_EVENT = re.compile(r"threading\.(Event|Condition)\(")


def test_a_wait_ends_with_its_time() -> None:
    latch = Latch()
    assert not latch.wait(0) and not latch.wait(0.01)
    latch.set()
    latch.set()
    assert latch.wait() and latch.is_set()
