"""Frames over a TCP connection: a small pickle, and beside it the contents of batches, which are never copied.

A frame is a header, a pickle of (message, sizes), and then so many runs of bytes. What it carries is sent from where it
lies, and received straight into memory that the other side has chosen for it: see `Landing` and `luggage`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

_HEADER = struct.Struct("<I")
_CHUNK = 1 << 18
_AT_A_TIME = 16
"""Reads, or runs of bytes sent by one call, before it is somebody else's turn."""


class ConnectionEndedError(Exception):
    """The other side is gone, or cannot be reached any more."""


class Place(Protocol):
    """Memory for one run of bytes."""

    @property
    def view(self) -> memoryview: ...


P = TypeVar("P", bound=Place)

_ends: weakref.WeakSet[Wire[Any]] = weakref.WeakSet()
"""Closed in every process that is forked from this one: with a forgotten copy the other side would not see the end."""


class Wire(Generic[P]):
    """One end, which never blocks. `place` gives memory for so many bytes that arrive."""

    def __init__(self, sock: socket.socket, place: Callable[[int], P]) -> None:
        self.socket = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = 0
        """Bytes received so far."""
        self._place = place
        self._incoming = bytearray()
        self._buffer = bytearray(_CHUNK)
        self._message: Any = None
        """Of the frame whose contents are on their way."""
        self._places: list[P] = []
        self._wanted: deque[memoryview] = deque()
        """What of its contents is still to come."""
        self._outgoing: deque[tuple[memoryview, object]] = deque()
        _ends.add(self)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: tuple[Any, ...], contents: list[tuple[memoryview, object]] | None = None) -> None:
        """Keep a frame to be sent by `flush`. With each run of bytes goes whatever keeps its memory."""
        sizes = [len(view) for view, _ in contents or ()]
        packed = pickle.dumps((message, sizes), 5)
        self._outgoing.append((memoryview(_HEADER.pack(len(packed)) + packed), None))
        if contents:
            self._outgoing.extend((view, keeper) for view, keeper in contents if len(view))

    def flush(self) -> bool:
        """Send what is kept; False if there is no room for all of it."""
        outgoing = self._outgoing
        try:
            while outgoing:
                views = [outgoing[number][0] for number in range(min(len(outgoing), _AT_A_TIME))]
                sent = self.socket.sendmsg(views)
                while sent:
                    view, keeper = outgoing.popleft()
                    if sent < len(view):
                        outgoing.appendleft((view[sent:], keeper))
                        break
                    sent -= len(view)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionEndedError(_reason(error)) from error
        return True

    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    def receive(self) -> list[tuple[Any, list[P]]]:
        """Return the frames that have arrived whole, with the memory of their contents, without waiting."""
        frames: list[tuple[Any, list[P]]] = []
        try:
            for _ in range(_AT_A_TIME):
                self._read()
                self._parse(frames)
        except BlockingIOError:
            pass
        except ConnectionEndedError:
            if not frames:
                raise
        return frames

    def wait(self, seconds: float) -> bool:
        """Wait until something has arrived; False if the time ran out."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(max(seconds, 0.0) * 1000))

    def finish(self) -> None:
        """Send nothing more: the other side sees the end."""
        self._outgoing.clear()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._outgoing.clear()
        self.socket.close()

    def _read(self) -> None:
        target = self._wanted[0] if self._wanted else self._buffer
        try:
            count = self.socket.recv_into(target)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ConnectionEndedError(_reason(error)) from error
        if not count:
            raise ConnectionEndedError("it closed the connection")
        self.received += count
        if self._wanted:
            self._fill(count)
        else:
            self._incoming += memoryview(self._buffer)[:count]

    def _fill(self, count: int) -> None:
        """So much of the first run that is wanted is there."""
        view = self._wanted.popleft()
        if count < len(view):
            self._wanted.appendleft(view[count:])

    def _parse(self, frames: list[tuple[Any, list[P]]]) -> None:
        incoming, start, available = self._incoming, 0, len(self._incoming)
        while True:
            while self._wanted and start < available:  # what was read beyond the pickle belongs to the contents
                view = self._wanted[0]
                count = min(len(view), available - start)
                view[:count] = memoryview(incoming)[start : start + count]
                start += count
                self._fill(count)
            if self._wanted:
                break
            if self._message is not None:
                frames.append((self._message, self._places))
                self._message = None
            if available - start < _HEADER.size:
                break
            (length,) = _HEADER.unpack_from(incoming, start)
            end = start + _HEADER.size + length
            if end > available:
                break
            self._message, sizes = pickle.loads(memoryview(incoming)[start + _HEADER.size : end])
            self._places = [self._place(size) for size in sizes]
            self._wanted.extend(place.view for place in self._places if len(place.view))
            start = end
        if start:
            del incoming[:start]


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _close_inherited() -> None:
    for end in list(_ends):
        end.socket.close()
    _ends.clear()


os.register_at_fork(after_in_child=_close_inherited)
