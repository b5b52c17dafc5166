"""Framed messages and descriptors over a Unix socket.

A frame is a length and a pickle. Descriptors ride on the frame's first byte; the receiver keeps them in a queue from
which whoever reads the frame takes as many as it names. Where the system may lose a descriptor that is closed before
the other side has it (macOS), the sender keeps it until an empty frame says that it has arrived. Every end made here
is remembered, and closed in every process that is forked from this one: a forgotten copy of an end would keep the other
side from ever seeing the end of file by which it learns that we are gone.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import select
import socket
import struct
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..signals import emptied

_HEADER = struct.Struct("<I")
_MOST_DESCRIPTORS = 64
_CHUNK = 1 << 18
_ANCILLARY = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_ACKNOWLEDGE = not _CLOSE_ON_EXEC
"""The systems that need it are those without that flag."""
_ARRIVED = _HEADER.pack(0)

_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end. The conductor's ends do not block; a worker's and the zygote's do."""

    def __init__(self, sock: socket.socket, *, blocking: bool) -> None:
        self.socket = sock
        self._blocking = blocking
        sock.setblocking(blocking)
        self.descriptors: deque[int] = deque()
        """Descriptors that arrived and have not been taken."""
        self._incoming = bytearray()
        self.outgoing: deque[tuple[memoryview, list[int]]] = deque()
        """What the socket did not take yet, with its descriptors."""
        self._unconfirmed: deque[list[int]] = deque()
        """Descriptors that were sent and, as far as we know, have not arrived."""
        self._buffer = bytearray(_CHUNK)
        _ends.add(self)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: object, descriptors: list[int] | None = None) -> None:
        """Send a message. A non-blocking end keeps what the socket does not take; see `flush`."""
        self.send_pickled(pickle.dumps(message, 5), descriptors)

    def send_pickled(self, payload: bytes, descriptors: list[int] | None = None) -> None:
        frame = memoryview(_HEADER.pack(len(payload)) + payload)
        if not self._blocking:
            self.outgoing.append((frame, [os.dup(each) for each in descriptors or ()]))
            self.flush()
            return
        try:
            if descriptors:
                if _ACKNOWLEDGE:
                    self._unconfirmed.append([os.dup(each) for each in descriptors])
                frame = frame[self.socket.sendmsg([frame], [_rights(descriptors)]) :]
            self.socket.sendall(frame)
        except OSError as error:
            raise ChannelClosedError from error

    def flush(self) -> bool:
        """Send what is kept; False if the socket is full."""
        try:
            while self.outgoing:
                frame, descriptors = self.outgoing[0]
                sent = self.socket.sendmsg([frame], [_rights(descriptors)] if descriptors else [])
                # Off the list before they are closed: a fork at this moment closes in the child what is listed.
                if sent < len(frame):
                    self.outgoing[0] = (frame[sent:], [])
                else:
                    self.outgoing.popleft()
                if _ACKNOWLEDGE and descriptors:
                    self._unconfirmed.append(descriptors)
                else:
                    _close(descriptors)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosedError from error
        return True

    def receive(self) -> Any:
        """Wait for one message."""
        while True:
            for message in self._frames(1):
                return message
            self._read(0)

    def receive_ready(self) -> list[Any]:
        """Return the messages that have arrived, without waiting."""
        messages = self._frames()
        try:
            self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return messages
        except ChannelClosedError:
            if messages:
                return messages
            raise
        return messages + self._frames()

    def drain(self) -> list[Any]:
        """Return everything that the other side, which is gone, has sent."""
        messages: list[Any] = []
        try:
            while True:
                self._read(socket.MSG_DONTWAIT)
                messages += self._frames()
        except (BlockingIOError, ChannelClosedError):
            return messages + self._frames()

    def wait(self, seconds: float | None) -> bool:
        """Wait until something has arrived; False if the time ran out."""
        return bool(self._incoming) or is_readable(self.socket, seconds)

    def finish(self) -> None:
        """Send nothing more, not even what is kept: the other side sees the end, and can still say something itself."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self._forget_outgoing()

    def close(self) -> None:
        self.socket.close()
        _close(emptied(self.descriptors))
        self._forget_outgoing()
        for descriptors in emptied(self._unconfirmed):
            _close(descriptors)

    def _forget_outgoing(self) -> None:
        for _, descriptors in emptied(self.outgoing):
            _close(descriptors)

    def _read(self, flags: int) -> None:
        try:
            count, ancillary, _, _ = self.socket.recvmsg_into([self._buffer], _ANCILLARY, flags | _CLOSE_ON_EXEC)
        except ConnectionResetError as error:
            raise ChannelClosedError from error
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self._keep(received)
        if count == 0:
            raise ChannelClosedError
        self._incoming += memoryview(self._buffer)[:count]

    def _keep(self, received: array.array[int]) -> None:
        self.descriptors.extend(received)
        if not _CLOSE_ON_EXEC:
            for each in received:
                os.set_inheritable(each, False)
        if _ACKNOWLEDGE:
            if self._blocking:
                with contextlib.suppress(OSError):  # its end is seen by reading
                    self.socket.sendall(_ARRIVED)
            else:
                self.outgoing.append((memoryview(_ARRIVED), []))
                with contextlib.suppress(ChannelClosedError):
                    self.flush()

    def _frames(self, most: int | None = None) -> list[Any]:
        incoming = self._incoming
        messages: list[Any] = []
        start = 0
        available = len(incoming)
        while available - start >= _HEADER.size and (most is None or len(messages) < most):
            (length,) = _HEADER.unpack_from(incoming, start)
            end = start + _HEADER.size + length
            if end > available:
                break
            if length:
                messages.append(pickle.loads(memoryview(incoming)[start + _HEADER.size : end]))
            else:
                _close(self._unconfirmed.popleft())
            start = end
        if start:
            del incoming[:start]
        return messages


def is_readable(readable: int | socket.socket, seconds: float | None = 0.0) -> bool:
    """Wait until there is something to read, or an end. Unlike select.select, with descriptors above 1023 too."""
    poll = select.poll()
    poll.register(readable, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(seconds, 0.0) * 1000))


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        with contextlib.suppress(OSError):  # in a forked child: it was just being closed
            os.close(each)


def _rights(descriptors: list[int]) -> tuple[int, int, array.array[int]]:
    return (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def _close_inherited() -> None:
    for end in list(_ends):
        end.close()
    _ends.clear()


os.register_at_fork(after_in_child=_close_inherited)
