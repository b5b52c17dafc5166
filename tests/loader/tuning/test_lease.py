"""The ranks of a host: one has its turn, the slowest first, and a turn ends with its holder, whatever ends it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from penstock.tuning.lease import Host

from tests.backend.harness import until
from tests.patience import PATIENCE

HOLDER = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9)
from pathlib import Path
from penstock.tuning.lease import Host
rank = Host(Path(sys.argv[1])).join()
rank.tell(float(sys.argv[2]), 0.75, 3, True)
print(rank.take_turn(float(sys.argv[2])), flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runtime"


def hold(folder: Path, waiting: float = 0.9) -> subprocess.Popen[str]:
    """Another process that has its turn."""
    command = [sys.executable, "-c", HOLDER, str(folder), str(waiting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_a_turn_ends_with_its_holder_whatever_ends_it(folder: Path) -> None:
    process = hold(folder)
    rank = Host(folder).join()
    assert rank is not None
    try:
        assert not rank.take_turn(1.0), "another process has it"
        (other,) = rank.others()
        assert (other.waiting, other.processors, other.workers, other.wants) == (0.9, 0.75, 3, True)
        child = os.fork()
        if child == 0:  # a worker, say: what its parent holds is not its own, and its end changes nothing
            os._exit(0)
        os.waitpid(child, 0)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    until(lambda: rank.take_turn(1.0), "the turn of a killed process")
    assert rank.others() == []
    rank.leave()


def test_a_turn_is_kept_when_a_child_ends(folder: Path) -> None:
    first, second = Host(folder), Host(folder)
    del second  # its descriptor stays open: see point 4 of the argument
    rank = first.join()
    assert rank is not None and rank.take_turn(0.5)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    code = HOLDER.replace("time.sleep(600)", "")
    said = subprocess.run([sys.executable, "-c", code, str(folder), "0.9"], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
    rank.leave()


def test_those_who_wait_longer_for_data_go_first_and_loaders_of_one_process_take_turns(folder: Path) -> None:
    host = Host(folder)
    slow, fast = host.join(), host.join()
    assert slow is not None and fast is not None
    slow.tell(0.8, 1.0, 2, True)
    fast.tell(0.1, 0.5, 2, True)
    assert not fast.take_turn(0.1)
    assert slow.take_turn(0.8)
    slow.tell(0.8, 1.0, 2, False)  # it has tried all it wanted
    assert not fast.take_turn(0.1), "it is still the other's turn"
    slow.end_turn()
    assert fast.take_turn(0.1)
    assert sum(each.processors for each in fast.others()) == 1.0
    slow.leave()
    assert fast.others() == []


def test_the_file_is_its_owners_and_without_one_each_is_alone(folder: Path, tmp_path: Path) -> None:
    Host(folder).join()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ranks").stat().st_mode) == 0o600
    blocked = tmp_path / "file"
    blocked.write_text("")
    alone = Host(blocked / "folder")
    assert alone.alone and alone.join() is None
