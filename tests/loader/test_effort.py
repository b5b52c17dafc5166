"""What a batch takes of processors, as its worker measures it."""

from __future__ import annotations

import threading
import time

import pytest
from penstock.effort import APART, Effort
from penstock.pool.crews.board import Recorder, local_row


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_processor_time_is_counted_and_sleep_is_not() -> None:
    effort = Effort()
    effort.start()
    spin(0.02)
    time.sleep(0.05)
    effort.end(time.monotonic_ns())
    assert 20_000_000 <= effort.processor < 45_000_000
    assert effort.queued >= -1


def test_threads_of_the_dataset_count() -> None:
    effort = Effort()
    effort.start()
    thread = threading.Thread(target=spin, args=(0.02,))
    thread.start()
    thread.join()
    effort.end(time.monotonic_ns())
    assert effort.processor >= 20_000_000


def test_short_batches_are_not_all_measured() -> None:
    recorder, measured, now = Recorder(local_row()), [], 1_000_000_000
    recorder._clock = lambda: now
    for step in range(100):
        now += APART // 8
        recorder.start(step)
        recorder.encode_done(1, 1)
        measured.append(recorder.effort.processor >= 0)
    assert measured[0]
    assert sum(measured) == pytest.approx(100 / 9, abs=2)


def test_where_the_system_does_not_tell_only_processor_time_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_arguments: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr("os.open", no_file)
    effort = Effort()
    effort.start()
    effort.end(1)
    assert effort.processor >= 0
    assert effort.queued == -1
