"""Waking threads, whatever signal handlers do meanwhile."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
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


def test_a_wait_ends_with_its_time() -> None:
    latch = Latch()
    assert not latch.wait(0) and not latch.wait(0.01)
    latch.set()
    latch.set()
    assert latch.wait() and latch.is_set()
