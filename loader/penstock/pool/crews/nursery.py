"""Starting and ending a zygote, as seen from the training process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import process
from pathlib import Path
from typing import Any

from ..tasks import Recipe
from .channel import Channel, ChannelClosedError, is_readable, pair
from .messages import Begin, Birth, Fork, Kill, pack
from .parcel import Packed, Parcel
from .zygote import STACK_SIGNAL, run_zygote, work

_starting = threading.Lock()
"""Held while ends of a new channel exist that a fork in another thread would copy. Nobody waits for it for long: the
garbage collector may end another pool while it is held, and a copied end only delays the news of a death."""
_BRIEFLY = 1.0
_ENTRY = re.compile(rf'^ *File ".*{Path(work.__code__.co_filename).name}", line \d+ in {work.__name__}$')
"""The outermost call of a worker."""
TO_REAP = 5.0
"""Seconds that the system may take to end killed processes. Large ones take their time."""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    held = _starting.acquire(timeout=_BRIEFLY)
    try:
        yield
    finally:
        if held:
            _starting.release()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is over: within a fork it would leave a process that nobody knows of."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    noted: list[Any] = []
    signal.signal(signal.SIGINT, lambda *about: noted.append(about))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if noted:
        handler(*noted[0])


_zygotes: weakref.WeakSet[Any] = weakref.WeakSet()


def _start_over_after_fork() -> None:
    """In a forked copy of training: the zygotes are not its children, and it must not end them when it exits."""
    global _starting
    _starting = threading.Lock()
    for zygote in list(_zygotes):
        process._children.discard(zygote)  # type: ignore[attr-defined]
    _zygotes.clear()


os.register_at_fork(after_in_child=_start_over_after_fork)


class Nursery:
    """A running zygote, the board it shares with us, and the pipe on which its workers write stacks."""

    def __init__(self, context: Any, recipe: Recipe | Packed, rows: int, board_descriptor: int) -> None:
        with _alone():
            ours, theirs = pair()
            self.channel = Channel(ours, blocking=False)
            self._stacks_read, stacks_write = os.pipe()
            try:
                self.process = context.Process(
                    target=run_zygote, args=(theirs, Parcel(recipe), rows), name="loader-zygote", daemon=True
                )
                with _uninterrupted():
                    self.process.start()
                self.channel.send(pack(Begin()), [board_descriptor, stacks_write])
            except BaseException:
                self.channel.close()
                os.close(self._stacks_read)
                if (zygote := self.__dict__.get("process")) is not None and zygote.pid is not None:
                    zygote.kill()  # it has no workers yet
                    zygote.join()
                raise
            finally:
                theirs.close()
                os.close(stacks_write)
        self.pid = int(self.process.pid or 0)
        self._pidfd = _open_process(self.pid)
        _zygotes.add(self.process)
        self._ended = False

    def fork(self, key: int, birth: Birth) -> Channel:
        """Ask for a worker; return our end of its channel."""
        with _alone():
            ours, theirs = pair()
            channel = Channel(ours, blocking=False)
            try:
                self.channel.send(pack(Fork(key, birth)), [theirs.fileno()])
            except ChannelClosedError:
                channel.close()
                raise
            finally:
                theirs.close()
        return channel

    def signal(self, key: int, number: int) -> None:
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(pack(Kill(key, number)))

    def stack_of(self, key: int, patience: float = 0.5) -> str:
        """The Python stack of a worker at this moment; empty if it does not answer."""
        self._drain()
        self.signal(key, STACK_SIGNAL)
        text = b""
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            if not is_readable(self._stacks_read, left if not text else 0.02):
                break
            chunk = os.read(self._stacks_read, 65536)
            if not chunk:
                break
            text += chunk
        return _since_fork(text.decode(errors="replace").strip())

    def end(self) -> None:
        """Have the zygote kill what is left of the workers and exit; wait for that, and close everything."""
        if self._ended:
            return
        self._ended = True
        self.channel.close()
        if not self._wait(TO_REAP):
            self.process.kill()
            self._wait(TO_REAP)
        try:
            self.process.close()
        except ValueError:  # reaped by somebody else, so Python takes it for alive; or it cannot even be killed
            process._children.discard(self.process)  # type: ignore[attr-defined]
            del self.process
        os.close(self._stacks_read)
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def _wait(self, seconds: float) -> bool:
        """Wait for the zygote's end, and reap it.

        Not for the end of its sentinel: that is a pipe, whose other end everybody has whom the zygote's workers, or
        another thread of training at the wrong moment, have forked.
        """
        deadline = time.monotonic() + seconds
        while self.process.exitcode is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._pidfd < 0:
                time.sleep(min(left, 0.005))
                if not _exists(self.pid):
                    return True  # reaped by somebody else
            elif is_readable(self._pidfd, left):
                return self.process.exitcode is not None or not _exists(self.pid)
        return True

    def _drain(self) -> None:
        while is_readable(self._stacks_read):
            if not os.read(self._stacks_read, 65536):
                return


def _since_fork(stack: str) -> str:
    """Without the calls that the process it was forked from was in."""
    lines = stack.splitlines()
    last = next((number for number, line in enumerate(lines) if _ENTRY.match(line)), len(lines))
    return "\n".join(lines[: last + 1])


def _open_process(pid: int) -> int:
    """A descriptor that is readable when the process has ended; -1 where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
