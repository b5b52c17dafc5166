"""Promise 5: nothing is left behind, whatever ends a training script. Real scripts, in processes of their own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from penstock import DataLoader

from tests.loader.support import Full, Script, Scripts, descendants, helpers, maps_shared_memory, wait_until

TRAINING = """
import gc, os, signal, sys, threading, time
import torch
from penstock import DataLoader
from tests.loader.support import PATIENCE, Full, Stream, children, helpers, open_descriptors, workers_of

def pids(iterator):
    workers = [worker.pid for worker in workers_of(iterator)]
    print(iterator.pool.crews[0].nursery.pid, *workers, flush=True)

def check_nothing_left(before, threads):
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while True:
        # Python's own helpers for `spawn` and `forkserver` stay, with two descriptors each.
        left = children() - helpers()
        growth = open_descriptors() - before - 2 * len(helpers())
        if not left and growth <= 0 and threading.active_count() <= threads:
            print("clean", flush=True)
            return
        if time.monotonic() > deadline:
            print("children", left, "descriptors", growth, "threads", threading.enumerate(), flush=True)
            return
        time.sleep(0.01)

before, threads = open_descriptors(), threading.active_count()
made = DataLoader(Full(300), batch_size=2, num_workers=2, persistent_workers="persistent" in sys.argv)
"""

ENDINGS = {
    "end of epoch": """
for epoch in range(3):
    for batch in made: pass
del batch, made
check_nothing_left(before, threads)
""",
    "break": """
for epoch in range(3):
    for batch in made: break
del batch, made
check_nothing_left(before, threads)
""",
    "exception in training": """
def train():
    for batch in made: raise ValueError("training is broken")
try: train()
except ValueError: pass
del made
check_nothing_left(before, threads)
""",
    "del": """
iterator = iter(made)
batch = next(iterator)
del iterator, made
assert batch.sum() == batch[:, 0].sum() * 20_000, "a batch outlives its pool"
del batch
check_nothing_left(before, threads)
""",
    "close": """
iterator = iter(made)
next(iterator)
made.close()
check_nothing_left(before, threads)
""",
    "a cycle of references": """
iterator = iter(made)
next(iterator)
cycle = [iterator]
cycle.append(cycle)
del iterator, cycle, made
check_nothing_left(before, threads)
""",
    "SIGCHLD is ignored": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for epoch in range(2):
    for batch in made: pass
del batch, made
check_nothing_left(before, threads)
""",
}


@pytest.mark.parametrize("arguments", [(), ("persistent",)], ids=["", "persistent"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_in_the_process_that_goes_on(script: Scripts, ending: str, arguments: tuple[str, ...]) -> None:
    with script(TRAINING + ENDINGS[ending], *arguments) as running:
        out, err = running.finish()
        assert out.split() == ["clean"], out
        assert err == ""
        assert_gone(running)


EXITS = {
    "live iterator": ("iterator = iter(made); next(iterator); pids(iterator)", 0),
    "live iterator in a thread": (
        """
iterator = iter(made); next(iterator); pids(iterator)
def train():
    for batch in iterator: time.sleep(0.01)
threading.Thread(target=train, daemon=True).start()
time.sleep(0.1)
""",
        0,
    ),
    "exception": ("iterator = iter(made); next(iterator); pids(iterator); raise ValueError('broken')", 1),
    "sys.exit": ("iterator = iter(made); next(iterator); pids(iterator); sys.exit(3)", 3),
    "os._exit": ("iterator = iter(made); next(iterator); pids(iterator); os._exit(4)", 4),
    "SIGKILL": ("iterator = iter(made); next(iterator); pids(iterator); os.kill(os.getpid(), 9)", -9),
    "SIGTERM": ("iterator = iter(made); next(iterator); pids(iterator); os.kill(os.getpid(), 15)", -15),
}


@pytest.mark.parametrize("way", EXITS)
def test_at_the_end_of_the_process(script: Scripts, way: str) -> None:
    body, status = EXITS[way]
    with script(TRAINING + body) as running:
        pids = [int(pid) for pid in running.line().split()]
        assert len(pids) == 3
        _, err = running.finish()
        assert running.status == status
        assert ("Traceback" in err) == (way == "exception")
        assert "loader" not in err, err
        assert_gone(running)


class Slow(Full):
    """Says so when it comes to a sample that takes a minute, and leaves a file if somebody waits for that."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 40:
            print("slow", flush=True)
            time.sleep(60)
            Path(self.file).touch()
        return super().__getitem__(index)


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("where", ["waiting", "computing"])
def test_control_c(script: Scripts, caught: bool, where: str, tmp_path: Any) -> None:
    """Ctrl-C, which the whole process group gets, does not wait for what a worker is at, and is quiet."""
    compute = "pass" if where == "waiting" else "time.sleep(60 if batch[0, 0] == 20 else 0)"
    body = f"""
from tests.loader.test_shutdown import Slow
def train():
    try:
        for batch in DataLoader(Slow(sys.argv[1]), num_workers=2): {compute}
    except {"KeyboardInterrupt" if caught else "ZeroDivisionError"}:
        print("interrupted", flush=True)
train()
"""
    file = tmp_path / "the slow sample was waited for"
    with script(TRAINING + body, str(file)) as running:
        assert running.line() == "slow"
        running.signal_group(signal.SIGINT)
        out, err = running.finish()
        assert out.split() == (["interrupted"] if caught else [])
        assert err.count("Traceback") == (0 if caught else 1), err
        assert not file.exists(), "a batch that nobody will take was waited for"
        assert_gone(running)


@pytest.mark.parametrize("victim", ["zygote", "worker"])
def test_a_killed_process_of_the_pool(script: Scripts, victim: str) -> None:
    body = """
import warnings
warnings.simplefilter("ignore")
iterator = iter(made)
batches = [next(iterator)[:, 0].tolist()]
pids(iterator)
sys.stdin.readline()
batches += [batch[:, 0].tolist() for batch in iterator]
assert batches == [[i, i + 1] for i in range(0, 300, 2)]
del iterator, made
check_nothing_left(before, threads)
"""
    with script(TRAINING + body) as running:
        zygote, *workers = (int(pid) for pid in running.line().split())
        os.kill(zygote if victim == "zygote" else workers[0], signal.SIGKILL)
        running.say()
        out, err = running.finish()
        assert out.split() == ["clean"], out + err
        assert err == ""
        assert_gone(running)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_training_is_killed_with_every_start_method(script: Scripts, method: str) -> None:
    body = f"""
if __name__ == "__main__":
    made = DataLoader(Full(300), num_workers=2, multiprocessing_context="{method}")
    iterator = iter(made); next(iterator); pids(iterator); time.sleep(60)
"""
    with script(TRAINING + body) as running:
        running.line()
        running.signal(signal.SIGKILL)
        running.finish()
        assert_gone(running)


def test_two_loaders_at_once(script: Scripts) -> None:
    body = """
other = DataLoader(Stream("big", 200), num_workers=2)
pairs = list(zip(made, other))
assert len(pairs) == 150
del pairs, made, other
check_nothing_left(before, threads)
"""
    with script(TRAINING + body) as running:
        out, err = running.finish()
        assert out.split() == ["clean"], out + err
        assert_gone(running)


@pytest.mark.parametrize("how", ["os.fork", "Process"])
def test_a_forked_copy_of_training(script: Scripts, how: str) -> None:
    """The copy may look at what it inherited, use the loader anew, and end, without meddling with the original."""
    start, join = {
        "os.fork": (
            "child = os.fork()\nif not child:\n    copy(); sys.exit(0)\n",
            "assert os.waitpid(child, 0)[1] == 0",
        ),
        "Process": (
            "import multiprocessing\nchild = multiprocessing.get_context('fork').Process(target=copy); child.start()",
            "child.join(); assert child.exitcode == 0; child.close()",
        ),
    }[how]
    body = f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, from 3.12 on, of forks where there are threads
# A forked process cannot use the server of another one: where Python has one by default, the copy needs this.
made = DataLoader(Full(300), batch_size=2, num_workers=2, multiprocessing_context="fork")
iterator = iter(made)
first = next(iterator)
def copy():
    sys.stdin.close()
    time.sleep(0.3)  # while the original goes on and its slots are used again
    assert first[:, 0].tolist() == [0, 1] and first.sum() == 20_000, "the copy's batch has changed"
    assert [b[:, 0].tolist() for b in made] == [[i, i + 1] for i in range(0, 300, 2)]
    try: next(iterator)
    except RuntimeError: pass
{start}
batches = [first[:, 0].tolist()]
del first
for batch in iterator:
    time.sleep(0.01)
    batches.append(batch[:, 0].tolist())
assert batches == [[i, i + 1] for i in range(0, 300, 2)]
{join}
del iterator, made, batch
check_nothing_left(before, threads)
"""
    with script(TRAINING + body) as running:
        out, err = running.finish()
        assert out.split() == ["clean"], out + err
        assert err == ""
        assert_gone(running)


def test_a_copy_of_training_does_not_keep_the_pool_alive(script: Scripts) -> None:
    """The zygote sees the end of its channel although a forked copy of training lives on."""
    body = """
iterator = iter(made); next(iterator)
pids(iterator)
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
    time.sleep(60)
os.kill(os.getpid(), 9)
"""
    with script(TRAINING + body) as running:
        pool = {int(pid) for pid in running.line().split()}
        copy = int(running.line())
        wait_until(lambda: not running.survivors() & pool, "the end of the pool")
        assert copy in running.survivors()


def test_iteration_in_another_thread(script: Scripts) -> None:
    body = """
seen = []
def train():
    for epoch in range(2):
        seen.append(sum(len(batch) for batch in made))
thread = threading.Thread(target=train)
thread.start(); thread.join()
assert seen == [300, 300]
del made, thread
check_nothing_left(before, threads)
"""
    with script(TRAINING + body) as running:
        out, err = running.finish()
        assert out.split() == ["clean"], out + err
        assert_gone(running)


def test_a_pool_collected_in_its_own_conductor_thread_leaves_nothing(script: Scripts) -> None:
    body = """
iterator = iter(made); next(iterator)
conductor = iterator.pool.conductor
cycle = [iterator]; cycle.append(cycle)
del iterator, cycle, made
from penstock.pool.requests import TakeStack
conductor.request(TakeStack(lambda text: gc.collect(), None))
conductor.join()
del conductor
check_nothing_left(before, threads)
"""
    with script(TRAINING + body) as running:
        out, err = running.finish()
        assert out.split() == ["clean"], out + err
        assert_gone(running)


def test_nothing_of_a_running_pool_is_in_dev_shm(script: Scripts) -> None:
    with script(TRAINING + "iterator = iter(made); next(iterator); pids(iterator); sys.stdin.readline()") as running:
        pids = [running.pid, *(int(pid) for pid in running.line().split())]
        assert [maps_shared_memory(pid) for pid in pids] == [[]] * 4
        running.say()
        running.finish()


def assert_gone(running: Script) -> None:
    assert not running.survivors()
    # Torch's names have the pid in them; ours have none, for nothing of ours is there (see below).
    assert not [name for name in map(str, Path("/dev/shm").iterdir()) if f"_{running.pid}_" in name]


def test_close_after_an_epoch_waits_until_nothing_is_left() -> None:
    """The end of an epoch leaves large processes to their end; `close` does not."""
    before, threads = descendants(os.getpid()), threading.active_count()
    loader = DataLoader(Full(20, 1000), batch_size=2, num_workers=3)
    assert len(list(loader)) == 10
    loader.close()
    assert descendants(os.getpid()) - before - helpers() == set()
    assert threading.active_count() <= threads
