"""Datasets and helpers that the loader's tests share. Everything here can be imported by spawned processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import loader
from tests.patience import PATIENCE

Pair = namedtuple("Pair", "left right")
DataLoader: Any = loader.DataLoader
"""Without its types: tests pass what no type checker would let pass."""

ROOT = Path(__file__).parents[2]

KINDS = ("int", "float", "tensor", "big", "array", "dict", "pair", "tuple", "string", "bytes", "nested", "scalar")


def make_sample(kind: str, key: Any) -> Any:
    """A sample that depends on nothing but the key."""
    number = key if isinstance(key, int) else sum(map(ord, str(key)))
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3) + number
    makers: dict[str, Callable[[], Any]] = {
        "int": lambda: number,
        "float": lambda: number / 7,
        "tensor": lambda: tensor,
        "big": lambda: torch.full((60, 50), number, dtype=torch.float32),
        "array": lambda: np.full((3, 2), number, dtype=np.int16),
        "dict": lambda: {"x": tensor.to(torch.int32), "name": f"sample {number}", "y": float(number)},
        "pair": lambda: Pair(tensor, number),
        "tuple": lambda: (tensor.bool(), number % 2 == 0),
        "string": lambda: f"text {number}",
        "bytes": f"bytes {number}".encode,
        "nested": lambda: {"a": [Pair(number, {"b": tensor.double()})], "c": (number, str(number))},
        "scalar": lambda: np.float32(number),
    }
    return makers[kind]()


class Samples(Dataset[Any]):
    """Map-style: samples of one kind."""

    def __init__(self, kind: str = "int", length: int = 10) -> None:
        self.kind = kind
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int) and not 0 <= key < self.length:
            raise IndexError(key)
        return make_sample(self.kind, key)


class WholeBatches(Samples):
    """Has `__getitems__`, and shows that it was used."""

    def __getitems__(self, keys: list[Any]) -> list[Any]:
        return [(len(keys), self[key]) for key in keys]


class Stream(IterableDataset[Any]):
    """Iterable-style; `share` has each worker give its own part only."""

    def __init__(self, kind: str = "int", length: int = 10, share: bool = True) -> None:
        self.kind = kind
        self.length = length
        self.share = share

    def __repr__(self) -> str:
        """Tests are named by it, alike in every process."""
        return f"{type(self).__name__}({self.kind!r}, {self.length})"

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None or not self.share else (info.id, info.num_workers)
        return (make_sample(self.kind, number) for number in range(first, self.length, step))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.length


class Draws(Dataset[Any]):
    """Augmentation: what it gives is drawn from every generator there is."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index, draw()


class DrawingStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            yield number, draw()


def draw() -> torch.Tensor:
    return torch.tensor([random.random(), np.random.random(), torch.rand(()).item()], dtype=torch.float64)


class Full(Dataset[Any]):
    """Tensors filled with their index, too large to travel inside a message."""

    def __init__(self, length: int = 50, size: int = 20_000) -> None:
        self.length = length
        self.size = size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.size,), index, dtype=torch.int32)


def assert_same(ours: Any, theirs: Any, path: str = "batch") -> None:
    """Equal in structure, type, dtype, shape, stride and value."""
    assert type(ours) is type(theirs), f"{path}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype, path
        assert ours.shape == theirs.shape, path
        assert ours.layout == theirs.layout, path
        assert ours.requires_grad == theirs.requires_grad, path
        assert torch.equal(ours, theirs), f"{path}: {ours} is not {theirs}"
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, path
        np.testing.assert_array_equal(ours, theirs, path)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs), path
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), f"{path}: {len(ours)} is not {len(theirs)}"
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{path}[{place}]")
    else:
        assert ours == theirs, path


def values(batches: Any) -> list[Any]:
    """Tensors as plain lists."""
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children() -> set[int]:
    """This process's own, those included that have ended and wait to be reaped."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(map(int, (task / "children").read_text().split()))
    return found


def helpers() -> set[int]:
    """Python's own helpers for `spawn` and `forkserver`, which live as long as this process."""
    pids = {
        getattr(forkserver._forkserver, "_forkserver_pid", None),
        getattr(resource_tracker._resource_tracker, "_pid", None),
    }
    return {pid for pid in pids if pid is not None}


def descendants(root: int) -> set[int]:
    """All processes under `root`, itself not included."""
    children: dict[int, list[int]] = {}
    for pid, fields in _stats():
        children.setdefault(int(fields[1]), []).append(int(pid))
    found: set[int] = set()
    front = [root]
    while front:
        front = [child for parent in front for child in children.get(parent, [])]
        found.update(front)
    return found


def described(pid: int) -> str:
    """What a person needs to know of a process that should not be there."""
    try:
        parent, state = next(fields[1::-1] for other, fields in _stats() if int(other) == pid)
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        waits_in = Path(f"/proc/{pid}/wchan").read_text()
    except (OSError, StopIteration):
        return f"{pid} (gone by now)"
    return f"{pid} (state {state}, child of {parent}, in {waits_in}: {command[:200]})"


def wait_until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait for something that must come; how long it takes is not the test's business."""
    deadline = time.monotonic() + patience
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came: {what}")
        time.sleep(0.01)
    return result


_TEMPLATE = """
import json, os, signal, socket, sys
import torch, numpy
import penstock.dataloader, tests.loader.support
control = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
    if not message:
        os._exit(0)
    if not (child := os.fork()):
        break
    for descriptor in descriptors:
        os.close(descriptor)
    control.sendall(b"%d " % child)
    control.sendall(b"%d " % os.waitpid(child, 0)[1])
control.close()
os.setsid()
for place, descriptor in enumerate(descriptors):
    os.dup2(descriptor, place)
    os.close(descriptor)
body, *sys.argv[1:] = json.loads(message)
exec(compile(body, "script", "exec"))
"""


class Template:
    """A process that has imported everything, from which scripts are forked: a fresh one takes seconds to import."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                pass_fds=[theirs.fileno()],
            )

    def number(self) -> int:
        digits = b""
        while not digits.endswith(b" "):
            part = self.control.recv(1)
            if not part:
                raise AssertionError("the scripts' template process has died")
            digits += part
        return int(digits)

    def close(self) -> None:
        self.control.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:  # a process that a failed test left behind may hold the other end
            self.process.kill()
            self.process.wait()


class Script:
    """A training script in a process and a session of its own. One at a time."""

    def __init__(self, template: Template, body: str, *arguments: str) -> None:
        self._template = template
        ends = [os.pipe(), os.pipe(), os.pipe()]
        theirs = [ends[0][0], ends[1][1], ends[2][1]]
        message = json.dumps([body, *arguments]).encode()
        socket.send_fds(template.control, [message], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        self._stdin = os.fdopen(ends[0][1], "w")
        self._stdout = os.fdopen(ends[1][0])
        self._stderr = os.fdopen(ends[2][0])
        self.pid = template.number()
        self.status: int | None = None
        """Exit code, or minus the signal."""

    def line(self) -> str:
        """The next line that it prints."""
        line = self._stdout.readline()
        if not line:
            raise AssertionError(f"the script ended early:\n{self._stderr.read()}")
        return line.strip()

    def say(self, text: str = "") -> None:
        self._stdin.write(text + "\n")
        self._stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.pid, number)

    def finish(self) -> tuple[str, str]:
        """Wait for its end; what it printed and what it complained of."""
        self._await()
        wait_until(lambda: not self.survivors(), "the end of all its processes")
        return self._stdout.read(), self._stderr.read()

    def survivors(self) -> set[int]:
        """Processes of its session, orphans included."""
        return {int(pid) for pid, fields in _stats() if int(fields[3]) == self.pid}

    def end(self) -> None:
        while survivors := self.survivors():
            for pid in survivors:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._await()
        for pipe in (self._stdin, self._stdout, self._stderr):
            with suppress(OSError):
                pipe.close()

    def _await(self) -> None:
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(self._template.number())


Scripts = Callable[..., AbstractContextManager[Script]]


def _stats() -> Iterator[tuple[str, list[str]]]:
    """(pid, fields from the state on) of every process that is not a zombie."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    yield entry.name, fields


def workers_of(iterator: Any) -> list[Any]:
    """The pool's workers once all are up."""
    conductor = iterator.pool.conductor

    def all_up() -> bool:
        return len(conductor.roster) == conductor.target and all(w.up and w.pid for w in conductor.roster)

    wait_until(all_up, "workers")
    return sorted(conductor.roster, key=lambda worker: int(worker.id))


def maps_shared_memory(pid: int) -> list[str]:
    """What a process has mapped or open under /dev/shm."""
    found = []
    with suppress(OSError):
        found = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("/dev/shm/"):
                    found.append(target)
    return found
