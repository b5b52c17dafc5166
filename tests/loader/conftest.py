"""What tests that start processes have in common."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from penstock import engine

from tests.loader.agent import agents
from tests.loader.support import Script, Scripts, Template, descendants, described, helpers, open_descriptors
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resize()`, `pause()` and `resume()` wait for their outcome, however long a busy machine takes."""
    monkeypatch.setattr(engine, "PATIENCE", PATIENCE)


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """The test leaves as many processes, threads and descriptors as it found."""
    processes, known = descendants(os.getpid()), helpers()
    descriptors, threads = open_descriptors(), threading.active_count()
    yield
    deadline = time.monotonic() + PATIENCE
    while True:
        started = helpers() - known
        left = descendants(os.getpid()) - processes - started
        more_descriptors = open_descriptors() - descriptors - 2 * len(started)
        more_threads = threading.active_count() - threads
        if not left and more_descriptors <= 0 and more_threads <= 0:
            return
        if time.monotonic() > deadline:
            pytest.fail(
                f"left behind: processes {', '.join(map(described, left)) or 'none'}; "
                f"{more_descriptors} descriptors; {more_threads} threads of {threading.enumerate()}"
            )
        gc.collect()
        time.sleep(0.02)


@pytest.fixture(scope="session")
def shared_agents() -> Iterator[None]:
    """`agents.shared` are there."""
    with agents.agents(2) as started:
        agents.shared.extend(started)
        yield
        agents.shared.clear()


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.fixture
def script(template: Template) -> Scripts:
    """Runs a training script; `with script(body, *arguments) as running:` ends it with all that it started."""

    @contextmanager
    def run(body: str, *arguments: str) -> Iterator[Script]:
        running = Script(template, body, *arguments)
        try:
            yield running
        finally:
            running.end()

    return run
