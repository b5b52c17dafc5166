"""What holds for all tests, and what those of several packages need."""

from __future__ import annotations

import signal
import threading

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business: a busy one would fail tests that nothing is wrong with.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# Whoever starts the tests in the background (`nohup`, `&` in a script) has Ctrl-C ignored, in all that they start, too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def test_accelerator() -> None:
    """`tests.accelerator.install()` works in the processes that the test starts."""
    from tests.accelerator import CannotBuildError, library

    try:
        library()
    except CannotBuildError as error:
        pytest.skip(str(error))
