"""Ctrl-C at every point of a profile's beginning and end at which Python would let one in: nothing is left running.

Python looks for signals when a function is entered, after a call, and at the end of a loop's body. The tests count
those points in our own code and raise at the first, the second, and so on, until there is none left.
"""

from __future__ import annotations

import dis
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import penstock
import pytest
import torch
from penstock import DataLoader
from penstock.profiling import sampler

from tests.loader.support import wait_until

pytestmark = [pytest.mark.usefixtures("nothing_left_behind"), pytest.mark.timeout(300)]

OURS = str(Path(penstock.__file__).parent)
FILES = ("engine.py", "dataloader.py", "session.py", "sampler.py", "inline.py", "pool/pool.py")


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> int:
        return index


@cache
def points(code: CodeType) -> frozenset[int]:
    """Offsets of instructions before which Python may call a signal handler."""
    found, after_call = set(), False
    for each in dis.get_instructions(code):
        if after_call or each.opname == "RESUME" or each.opname.startswith("JUMP_BACKWARD"):
            found.add(each.offset)
        after_call = each.opname.startswith("CALL") or (after_call and each.opname == "CACHE")
    return frozenset(found)


class Interruption:
    """Raises at one of the points of our own code in this thread."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed = 0
        self.where = ""

    def run(self, action: Callable[[], None]) -> None:
        sys.settrace(self._enter)
        try:
            action()
        except KeyboardInterrupt:
            assert self.where, "somebody else's"
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        file = frame.f_code.co_filename
        if self.where or not (file.startswith(OURS) and file.endswith(FILES)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002
        if event == "opcode" and not self.where and frame.f_lasti in points(frame.f_code):
            if self.passed == self.at:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
            self.passed += 1
        return self._step


def ended(loader: Any) -> bool:
    names = {thread.name for thread in threading.enumerate()}
    return loader._penstock.profiling is None and "loader-profile" not in names and not sampler._running


@pytest.mark.parametrize("workers", [0, 1])
def test_a_profile_that_is_interrupted_anywhere_can_be_ended_and_begun_again(workers: int) -> None:
    pace, mask = sys.getswitchinterval(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with DataLoader(Numbers(), 2, num_workers=workers, monitor=False, name="interrupted") as loader:
        iterator = iter(loader)
        expected = 0

        def read() -> None:
            """What a batch was interrupted at is not lost: the next one is the same."""
            nonlocal expected
            batch = next(iterator)
            assert batch.tolist() == [expected, expected + 1]
            expected += 2

        def profile() -> None:
            with loader.profiling(rate=200):
                read()

        read()
        at, hit = 0, set()
        while True:
            interruption = Interruption(at)
            interruption.run(profile)
            if not interruption.where:
                break
            hit.add(interruption.where)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask, interruption.where
            # Whatever was begun: it belongs to the loader, which ends it when another one begins.
            engine = loader._penstock
            with engine._control:
                engine._stop_profiling()
            wait_until(lambda: ended(loader), f"the end, after {interruption.where}")
            read()
            at += 1
        assert len(hit) > 20
        with loader.profiling(rate=200) as profiling:
            seen = profiling.profile

            def looked() -> bool:
                read()
                return bool(seen.total() + sum(seen.idle.values()))

            wait_until(looked, "looks")
        wait_until(lambda: ended(loader), "the end")
    assert sys.getswitchinterval() == pytest.approx(pace)
