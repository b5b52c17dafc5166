"""Starting and ending a zygote, as seen from the training process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import connection, process
from typing import Any

from .board import size_of_board
from .channel import Channel, ChannelClosedError, is_readable, pair
from .memory import create_segment
from .tasks import Parcel, Recipe
from .zygote import STACK_SIGNAL, run_zygote

_starting = threading.Lock()
"""Held while ends of a new channel exist that a fork in another thread would copy. Nobody waits for it for long: the
garbage collector may end another pool while it is held, and a copied end only delays the news of a death."""
_BRIEFLY = 1.0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    held = _starting.acquire(timeout=_BRIEFLY)
    try:
        yield
    finally:
        if held:
            _starting.release()


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

    def __init__(self, context: Any, recipe: Recipe, rows: int, board_descriptor: int) -> None:
        with _alone():
            ours, theirs = pair()
            self.channel = Channel(ours, blocking=False)
            self._stacks_read, stacks_write = os.pipe()
            try:
                self.process = context.Process(
                    target=run_zygote, args=(theirs, Parcel(recipe), rows), name="loader-zygote", daemon=True
                )
                self.process.start()
                self.channel.send(("begin",), [board_descriptor, stacks_write])
            except BaseException:
                self.channel.close()
                os.close(self._stacks_read)
                raise
            finally:
                theirs.close()
                os.close(stacks_write)
        self.pid = int(self.process.pid or 0)
        _zygotes.add(self.process)
        self._ended = False

    def fork(self, key: int, birth: Any) -> Channel:
        """Ask for a worker; return our end of its channel."""
        with _alone():
            ours, theirs = pair()
            channel = Channel(ours, blocking=False)
            try:
                self.channel.send(("fork", key, birth), [theirs.fileno()])
            except ChannelClosedError:
                channel.close()
                raise
            finally:
                theirs.close()
        return channel

    def signal(self, key: int, number: int) -> None:
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(("signal", key, number))

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
        return text.decode(errors="replace").strip()

    def stop(self, grace: float) -> None:
        """Ask the zygote to let the workers leave within `grace` seconds, then to kill them, and to exit."""
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(("stop", grace))

    def end(self, patience: float) -> None:
        """Wait for the zygote's end, kill it if need be, and close everything."""
        if self._ended:
            return
        self._ended = True
        # The sentinel tells also when somebody else has reaped the zygote, as with SIGCHLD ignored.
        connection.wait([self.process.sentinel], patience)
        self.channel.close()  # the zygote kills what is left and exits
        if not connection.wait([self.process.sentinel], 1.0):
            self.process.kill()
            connection.wait([self.process.sentinel])
        self.process.join(0.1)
        try:
            self.process.close()
        except ValueError:  # reaped by somebody else, so Python takes it for alive
            process._children.discard(self.process)  # type: ignore[attr-defined]
            del self.process
        os.close(self._stacks_read)

    def _drain(self) -> None:
        while is_readable(self._stacks_read):
            if not os.read(self._stacks_read, 65536):
                return


def make_board(rows: int) -> int:
    """Return the descriptor of a new, empty board."""
    return create_segment(size_of_board(rows))


def signal_name(exitcode: int) -> str:
    """The name of the signal that ended a process, or an empty string."""
    if exitcode >= 0:
        return ""
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"
