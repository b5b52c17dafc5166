"""One websocket to the backend, driven by one thread that never waits in it.

`websockets` brings the protocol without IO; the socket does not block; TLS, where there is any, works between the two
in memory. So bytes go one way through three plain stages, and the other way back:

    message ─▶ websocket ─▶ (TLS) ─▶ outgoing buffer ─▶ socket

The thread polls for what `interest()` says and calls `advance()` when the socket is ready. Only the look-up of a host
name may take its time; it happens in the constructor, and numeric addresses need none.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import socket
import ssl
from collections import deque
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from ..protocol import MAX_MESSAGE
from .address import Address

CHUNK = 1 << 12
"""Bytes read at a time: what comes in them is worked through before anybody can say stop."""
ROOM = 1 << 16
"""Bytes that may wait for the socket before the next message is put behind them."""
KERNEL_BUFFER = 1 << 18
"""So that a backend that stops reading is noticed soon, and costs no more memory than is stated."""

# Not registered with logging: what goes wrong is told by the publisher, once.
_silent = logging.Logger("penstock.websocket", logging.CRITICAL + 1)


class Lost(Exception):
    """The connection is over, or never came up."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        """Problems of one kind are told once."""


class Connection:
    """One connection to a dashboard, from the first packet on. Nothing in it waits."""

    def __init__(self, address: Address) -> None:
        self.opened = False
        """The websocket handshake is done: messages may be sent."""
        uri = parse_uri(address.websocket)
        self._host, self._secure = uri.host, uri.secure
        self._protocol = ClientProtocol(uri, max_size=MAX_MESSAGE, logger=_silent)
        self._token = address.token
        self._tls: ssl.SSLObject | None = None
        self._shaken = False
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._outgoing = bytearray()
        self._fragments: list[bytes] = []
        self._connecting = True
        self._candidates = deque(_look_up(uri.host, uri.port))
        self._socket = self._begin("no address")

    # -- for the thread that drives it ----------------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    def interest(self, reading: bool = True) -> int:
        """What to poll for. Without `reading`, the other side has to wait."""
        if self._connecting:
            return select.POLLOUT
        return (select.POLLIN if reading else 0) | (select.POLLOUT if self._outgoing else 0)

    @property
    def has_room(self) -> bool:
        """Another message may be sent."""
        return self.opened and self._protocol.state is State.OPEN and len(self._outgoing) < ROOM

    @property
    def idle(self) -> bool:
        """Everything sent has gone to the kernel."""
        return not self._outgoing

    def send(self, message: bytes) -> None:
        self._protocol.send_binary(message)
        self._collect()

    def ping(self) -> None:
        self._protocol.send_ping(b"")
        self._collect()

    def advance(self, reading: bool = True) -> tuple[list[bytes | str], int]:
        """Do what can be done without waiting; returns the messages that came, and how many bytes were read."""
        try:
            if self._connecting and not self._is_connected():
                return [], 0
            if self._protocol.state in (State.CLOSING, State.CLOSED):
                raise self._closed()
            self._flush()
            data = self._read() if reading else None
            messages: list[bytes | str] = []
            if data:
                messages = self._understand(data)
            elif data is not None:
                self._ended()
            self._flush()
        except ssl.SSLError as error:
            raise Lost("tls", f"TLS failed: {error}") from None
        except OSError as error:
            raise Lost("lost", f"the connection was lost: {error.strerror or error}") from None
        return messages, len(data or b"")

    def close(self) -> None:
        """Say that nothing more follows, as far as that is possible at once."""
        if self.opened and self._protocol.state is State.OPEN:
            try:
                self._protocol.send_close(1000)
                self._collect()
                self._flush()
            except (OSError, ssl.SSLError):
                pass  # it is over in any case
        self.abandon()

    def abandon(self) -> None:
        """Close this process's descriptor and say nothing: after a fork the connection belongs to the parent."""
        self._socket.close()

    # -- TCP ------------------------------------------------------------------------------------------------

    def _begin(self, reason: str) -> socket.socket:
        """Begin to connect to the next address that is left."""
        while self._candidates:
            family, where = self._candidates.popleft()
            attempt = socket.socket(family, socket.SOCK_STREAM)
            attempt.setblocking(False)
            attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
            code = attempt.connect_ex(where)
            if code in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                return attempt
            reason = os.strerror(code)
            attempt.close()
        raise Lost("unreachable", reason)

    def _is_connected(self) -> bool:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._socket.close()
            self._socket = self._begin(os.strerror(code))
            return False
        try:
            self._socket.getpeername()
        except OSError:
            return False  # woken for another reason: still under way
        self._connecting = False
        if self._secure:
            context = _tls_context()
            self._tls = context.wrap_bio(self._tls_in, self._tls_out, server_hostname=self._host)
            self._shake_hands()
        else:
            self._request()
        return True

    def _read(self) -> bytes | None:
        """What has come; empty at the end of the stream; None if nothing has come."""
        try:
            return self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return None

    def flush(self) -> None:
        """Give the kernel what it takes."""
        try:
            self._flush()
        except OSError as error:
            raise Lost("lost", f"the connection was lost: {error.strerror or error}") from None

    def _flush(self) -> None:
        while self._outgoing:
            try:
                sent = self._socket.send(self._outgoing)
            except (BlockingIOError, InterruptedError):
                return
            del self._outgoing[:sent]

    # -- TLS ------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            self._shaken = True
            self._request()
        finally:
            self._outgoing += self._tls_out.read()

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        self._tls_in.write(data)
        if not self._shaken:
            self._shake_hands()
        plain = bytearray()
        try:
            while self._shaken and (part := self._tls.read(CHUNK)):
                plain += part
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        self._outgoing += self._tls_out.read()
        return bytes(plain)

    # -- websocket ------------------------------------------------------------------------------------------

    def _request(self) -> None:
        request = self._protocol.connect()
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        request.headers["User-Agent"] = "penstock"
        self._protocol.send_request(request)
        self._collect()

    def _collect(self) -> None:
        """Move what the protocol wants to send to the outgoing buffer."""
        for data in self._protocol.data_to_send():
            if self._tls is None:
                self._outgoing += data
            elif data:  # an empty one stands for the end of the stream
                rest = memoryview(data)
                while rest:
                    rest = rest[self._tls.write(rest) :]
                self._outgoing += self._tls_out.read()

    def _understand(self, data: bytes) -> list[bytes | str]:
        if self._tls is not None:
            data = self._decrypt(data)
            if not data:
                return []
        self._protocol.receive_data(data)
        self._collect()
        messages: list[bytes | str] = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._add_frame(event, messages)
        if self._protocol.handshake_exc is not None:
            raise _refusal(self._protocol.handshake_exc)
        self.opened = self._protocol.state is not State.CONNECTING
        if self._protocol.state not in (State.CONNECTING, State.OPEN) and not messages:
            raise self._closed()
        return messages

    def _add_frame(self, frame: Frame, messages: list[bytes | str]) -> None:
        if frame.opcode is Opcode.TEXT:
            messages.append("")  # nothing in the protocol is text: what it says does not matter
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                messages.append(b"".join(self._fragments))
                self._fragments.clear()

    def _ended(self) -> None:
        if self._protocol.state in (State.CONNECTING, State.OPEN):
            self._protocol.receive_eof()
        if self._protocol.handshake_exc is not None:
            raise _refusal(self._protocol.handshake_exc)
        raise self._closed()

    def _closed(self) -> Lost:
        self._flush()  # the answer to a close frame, if the socket takes it at once
        close = self._protocol.close_rcvd
        if close is not None:
            why = f"{close.code} {close.reason}".rstrip()
            return Lost("closed", f"the dashboard closed the connection ({why})")
        error = self._protocol.parser_exc
        if error is None or isinstance(error, EOFError):
            return Lost("lost", "the connection was lost")
        return Lost("garbled", f"the other side does not keep to the protocol: {error}")


def _refusal(error: Exception) -> Lost:
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        hint = {401: ": no valid token", 403: ": this token or host name may not publish", 404: ": no dashboard there"}
        return Lost(f"http-{status}", f"the server answered with HTTP status {status}{hint.get(status, '')}")
    if isinstance(error.__cause__, EOFError):
        return Lost("lost", "the connection was lost during the handshake")
    return Lost("garbled", f"this is not a dashboard: {error}")


def _look_up(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Lost("unreachable", f"the name {host} cannot be looked up: {reason}") from None
    return [(family, where) for family, _, _, _, where in found]


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Reading all certificates takes a while: once per process."""
    return ssl.create_default_context()
