"""Pinning with an accelerator, beside torch's own. What is tested is in `pinned.py`: it needs a process of its own."""

from __future__ import annotations

import pytest

from tests.loader.agent import agents
from tests.loader.support import Scripts

# The first of them builds it.
pytestmark = [pytest.mark.usefixtures("test_accelerator"), pytest.mark.timeout(300)]

BODY = """
import sys, warnings
from tests import accelerator
warnings.simplefilter("ignore")
accelerator.install()
from tests.loader import pinned
getattr(pinned, sys.argv[1])(*sys.argv[2:])
"""

INLINE_AND_POOLED = pytest.mark.parametrize("workers", [0, 2])


def run(script: Scripts, test: str, *arguments: object) -> None:
    """Run a function of `pinned.py` to its end, on the test accelerator."""
    with script(BODY, test, *map(str, arguments)) as running:
        _, complaints = running.finish()
        assert running.status == 0, complaints
        assert "Traceback" not in complaints, complaints


@INLINE_AND_POOLED
def test_batches_are_torchs_and_what_is_pinned_is_counted(script: Scripts, workers: int) -> None:
    run(script, "same_as_torch", workers)


@pytest.mark.usefixtures("shared_agents")
def test_the_same_with_workers_on_other_machines(script: Scripts) -> None:
    run(script, "same_as_torch", 2, *(agent.address for agent in agents.shared))


@INLINE_AND_POOLED
def test_batches_are_pinned_for_the_device_of_training(script: Scripts, workers: int) -> None:
    run(script, "device_of_the_pin_thread", workers)


@INLINE_AND_POOLED
def test_errors_in_a_batchs_own_pinning_reach_training(script: Scripts, workers: int) -> None:
    run(script, "errors", workers)


def test_no_error_ends_the_pin_thread(script: Scripts) -> None:
    run(script, "endings")


def test_a_device_that_the_pin_thread_cannot_use_is_told(script: Scripts) -> None:
    run(script, "device_lost")


@INLINE_AND_POOLED
def test_warnings_are_torchs(script: Scripts, workers: int) -> None:
    run(script, "warned", workers)


def test_batches_stay_right_while_the_pool_is_paused_and_resized(script: Scripts) -> None:
    run(script, "control")


@INLINE_AND_POOLED
def test_pinned_memory_is_used_again(script: Scripts, workers: int) -> None:
    run(script, "blocks_are_used_again", workers)


@INLINE_AND_POOLED
def test_pin_wait_and_throughput_are_published(script: Scripts, workers: int) -> None:
    run(script, "told", workers)
