"""Who holds a connection, since when, and for how much longer.

Every TCP connection takes a seat. There are three kinds, each with a number of its own, so that one cannot use up the
others' (`Limits`):

1. strangers, who have not shown a token. When their seats are full, the one who came first is hung up on: who has a
   token shows it with the first request, and needs a seat among strangers for as long as that takes;
2. guests, whose requests came with a token. Theirs are full: the one who came first goes;
3. websockets, which `routes/sockets.py` counts before it lets one in.

`sweep` is called a few times a second and hangs up on whoever is too late: with a request, with an answer that is not
read, with a close that is not answered; and on those for whom most bytes wait if all together it is too much. Nobody
is waited for: a connection that does not read cannot be closed in an orderly way.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from .settings import Limits

SEAT = "seat"
"""Where applications find the connection's seat: in the `state` of its scope."""
CLOSING = 5.0
"""Seconds that a connection has to end once we have closed it."""


class Seat:
    """One TCP connection."""

    def __init__(self, seats: Seats, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.due: float | None = None
        """When it is hung up on, unless something happens before."""
        self.answered = True
        """HTTP: nothing is being answered; the next request is waited for."""
        self.unread: float | None = None
        """A websocket: since when more bytes wait for the other side than it should have left unread."""
        self.deliver: Callable[[bytes], bool] | None = None
        """A websocket: takes a message at once, if it can; False: it must go the ordinary way, through a queue."""
        self._seats = seats

    def known(self) -> None:
        """A token came with the request."""
        self._seats.move(self, self._seats.guests)

    def upgraded(self) -> None:
        """It is a websocket from now on."""
        self.due = None
        self._seats.move(self, self._seats.websockets)

    def close_within(self, seconds: float) -> None:
        """It shall end; if it has not by then, it is hung up on."""
        due = self._seats.clock() + seconds
        self.due = due if self.due is None else min(self.due, due)

    @property
    def waiting(self) -> int:
        """Bytes that the other side has not read, beyond what the kernel took."""
        return self.transport.get_write_buffer_size()


class Seats:
    """Every connection that is open, and by when it must have got further."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.clock = clock
        self.strangers: dict[Seat, None] = {}
        """In order of arrival, as are the others."""
        self.guests: dict[Seat, None] = {}
        self.websockets: dict[Seat, None] = {}
        self.hung_up = 0
        """Connections that were hung up on, since the start."""

    def __len__(self) -> int:
        return len(self.strangers) + len(self.guests) + len(self.websockets)

    def __iter__(self) -> Iterator[Seat]:
        yield from [*self.strangers, *self.guests, *self.websockets]

    def take(self, transport: asyncio.Transport) -> Seat:
        seat = Seat(self, transport)
        seat.due = self.clock() + self.limits.handshake
        self.strangers[seat] = None
        self._make_room(self.strangers, self.limits.strangers)
        return seat

    def move(self, seat: Seat, to: dict[Seat, None]) -> None:
        """To another kind: from strangers to guests, from either to websockets, never back."""
        known = seat in self.strangers or (seat in self.guests and to is self.websockets)
        if known:
            self.leave(seat)
            to[seat] = None
            self._make_room(self.guests, self.limits.guests)

    def leave(self, seat: Seat) -> None:
        for kind in (self.strangers, self.guests, self.websockets):
            kind.pop(seat, None)

    def sweep(self) -> None:
        now = self.clock()
        total = 0
        for seat in self:
            total += seat.waiting
            if seat.transport.is_closing():
                seat.close_within(CLOSING)
            elif seat.answered and seat.due is not None and not seat.waiting:
                seat.due = min(seat.due, now + self.limits.idle)  # the answer has been read: the next request
            late = seat.unread is not None and now - seat.unread > self.limits.unread
            if late or (seat.due is not None and now > seat.due):
                self._hang_up(seat)
        if total > self.limits.unread_bytes:
            for seat in sorted(self, key=lambda seat: -seat.waiting):
                total -= seat.waiting
                self._hang_up(seat)
                if total <= self.limits.unread_bytes:
                    break

    def _make_room(self, kind: dict[Seat, None], most: int) -> None:
        while len(kind) > most:
            self._hang_up(next(iter(kind)))

    def _hang_up(self, seat: Seat) -> None:
        self.hung_up += 1
        self.leave(seat)
        connection = seat.transport.get_extra_info("socket")
        if connection is not None:  # else the kernel would go on trying to deliver what is not read
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        seat.transport.abort()


def seat_of(scope: Any) -> Seat | None:
    """The seat of a connection; None under another server than ours."""
    return cast("Seat | None", scope.get("state", {}).get(SEAT))
