"""An epoch with workers on agents, and what may stand between them: for tests."""

from __future__ import annotations

import select
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from penstock import Agents

from tests.loader.scenarios import Held, InThread, Loaders, await_workers, plain

lost = pytest.mark.filterwarnings("ignore:.*(exited unexpectedly|was lost|died|cannot be reached)")


class Run:
    """An epoch that stands still in the middle until `finish`."""

    def __init__(self, loaders: Loaders, folder: Path, workers: Agents, num_workers: int = 2, **options: Any) -> None:
        self.dataset = Held(folder, {20, 21}, 40)
        self.loader = loaders(self.dataset, num_workers=num_workers, workers=workers, **options)
        self.iterator: Any = iter(self.loader)
        iterator = self.iterator
        self.began = [next(iterator) for _ in range(4)]
        self.rest = InThread(lambda: list(iterator))
        self.dataset.await_held(20)
        self.pids = await_workers(self.loader, num_workers)

    def finish(self) -> None:
        """The rest comes, and every sample has come once and in order."""
        self.dataset.let_go()
        batches = plain(self.began + self.rest.result())
        assert [index for ((index,), _) in batches] == list(range(40))


class Cable:
    """Carries connections to an agent, until it is cut: then nothing more arrives on either side, and no end either."""

    def __init__(self, address: str, rate: float = 0.0) -> None:
        """`rate`: bytes a second that it carries at the most; 0: no limit."""
        self._rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        host, port = address.split(":")
        self._target = (host, int(port))
        self._cut = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def cut(self) -> None:
        self._cut.set()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _carry(self) -> None:
        ends: dict[socket.socket, socket.socket] = {}
        while not self._ended.is_set():
            for readable in select.select([self._listener, *ends], [], [], 0.05)[0]:
                if readable is self._listener:
                    here, there = readable.accept()[0], socket.create_connection(self._target)
                    ends[here], ends[there] = there, here
                elif not self._cut.is_set() and readable in ends:
                    try:
                        data = readable.recv(1 << 16)
                        ends[readable].sendall(data)
                        if self._rate:
                            time.sleep(len(data) / self._rate)
                    except OSError:
                        data = b""
                    if not data:
                        other = ends.pop(readable)
                        ends.pop(other)
                        readable.close()
                        other.close()
        for each in [self._listener, *ends]:
            each.close()


TRAINING = """
import sys
from penstock import Agents, DataLoader
from tests.loader.scenarios import Counting
from pathlib import Path

loader = DataLoader(
    Counting(Path(sys.argv[2]), 10_000), num_workers=2, workers=Agents([sys.argv[1]], token=sys.argv[3]), name="x"
)
for number, batch in enumerate(loader):
    if number == 3:
        print("under way", flush=True)
        sys.stdin.read()
"""
"""A script: an epoch that stands still when it is under way, until it is killed."""
