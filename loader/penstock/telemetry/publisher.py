"""A daemon thread that publishes a source and takes commands for it. Training never waits for it.

It wakes once an interval, takes what has happened since, and a snapshot if the pace that the backend wants has one
(`pace.py`), and gives to the connection what the connection takes without waiting. Everything else is kept for later,
within bounds: about 4 MiB of messages (`outbox.py`), 256 answers, and a connection's buffers, each of about a message
(1 MiB) at most.

How it ends:
1. `close()`, the end of the interpreter, or a source that is gone makes it `finishing`: a last snapshot, the last
   events and a goodbye go to the outbox, and a time limit is set.
2. It ends when the goodbye is acknowledged, when the time is over, or when the connection is lost and cannot be had
   back at once.
3. `close()` waits for that, but only up to the limit; the thread is a daemon, so nobody else ever waits for it.
4. A forked child has no such thread. It closes its copies of the descriptors and is not a publisher any more.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
import weakref
from collections import deque

import msgspec

from .. import __version__
from ..protocol import (
    PROTOCOL,
    Ack,
    Command,
    Hello,
    Identity,
    Outcome,
    Pace,
    Refused,
    Welcome,
)
from . import exits
from .address import AnyAddress, resolve
from .attention import Attention
from .backoff import Backoff
from .commands import BadCommand, CommandDesk, decode
from .complaints import Complaints
from .connection import Connection, Lost
from .errors import uncaught
from .gathering import Gatherer
from .identity import make_identity
from .outbox import Answers, Outbox
from .pace import Pacer
from .source import Source, check_interval

INTERVAL = 0.2
"""Seconds between two looks at the loader; each is published if somebody watches."""
EXIT_FLUSH = 2.0
"""Seconds that the end of the process may wait for what is still to be sent."""
FAREWELL = 10.0
"""The same when only the loader is gone: nobody waits then."""
LINGER = 1.0
"""Seconds from when a loader is gone in the midst of an epoch until that is told. If an exception unwinds, the process
says that it failed within them; nobody waits meanwhile."""
HANDSHAKE = 10.0
"""Seconds within which a new connection must be welcomed."""
SILENCE = 20.0
"""After so many seconds without a word the backend is asked for one; after as many more the connection is given up."""
LOADS_APART = 5.0
"""Seconds between two messages of what replay needs to know,"""
LOADS_RARER = 30.0
"""and while the backend wants to hear little."""
EVENTS_APART = 0.05
"""Seconds between two looks for events, however often `wake` is called."""

FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
"""Signals that mean this very thread."""

log = logging.getLogger("penstock")

_active: weakref.WeakSet[Publisher] = weakref.WeakSet()
_numbers = itertools.count()
"""In the order in which publishers are made."""


class Publisher:
    """Publishes one source in a thread of its own."""

    def __init__(self, source: Source, address: AnyAddress, interval: float = INTERVAL, *, identity: Identity) -> None:
        self.identity = identity
        self._number = next(_numbers)
        self.finishing = False
        """The goodbye is on its way."""
        self._source = source
        self._address = address
        self._interval = check_interval(interval)
        self._outbox = Outbox()
        self._answers = Answers()
        self._outcomes: deque[Outcome] = deque(maxlen=1024)
        """Where other threads put outcomes."""
        self._desk = CommandDesk(source, self._outcome)
        self._backoff = Backoff()
        self._encoder = msgspec.msgpack.Encoder()
        self._tell = Complaints(identity.name)
        self._pacer = Pacer(self._interval)
        self._gatherer = Gatherer(source, self._outbox, self._tell, self._pacer)
        self._connection: Connection | None = None
        self._welcomed = False
        self._connect_at = 0.0
        self._deadline = 0.0
        self._heard = 0.0
        self._pinged = False
        self._attention = Attention()
        self._sample_at = 0.0
        self._events_at = 0.0
        self._load_at = 0.0
        self._events_wanted = False
        self._rung = False
        self._end_by: float | None = None
        self._gone_at: float | None = None
        """When the source was seen to be gone."""
        self._goodbye = -1
        self._owner = os.getpid()
        self._thread: threading.Thread | None = None
        self._bell: socket.socket | None = None
        self._ear: socket.socket | None = None

    # -- for everybody else ---------------------------------------------------------------------------------

    def start(self) -> None:
        if self._thread is not None or self._owner != os.getpid():
            return
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        _active.add(self)
        self._thread = threading.Thread(target=self._run, name=f"penstock-publisher-{self.identity.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there may be no more threads
            self._thread = None
            self._leave()
            raise

    def wake(self) -> None:
        """Look for events soon. Cheap, and may be called from any thread."""
        self._events_wanted = True
        self._ring()

    def _ring(self) -> None:
        if not self._rung and self._bell is not None:
            self._rung = True
            with contextlib.suppress(OSError):  # full: it will wake; closed: nobody is there to wake
                self._bell.send(b"\0")

    def close(self, flush: float = EXIT_FLUSH) -> None:
        """Send what is left and say goodbye, within `flush` seconds."""
        self._finish_within(flush)
        self._join(time.monotonic() + flush)

    def _finish_within(self, seconds: float) -> None:
        end = time.monotonic() + max(seconds, 0.0)
        self._end_by = end if self._end_by is None else min(self._end_by, end)
        self._ring()

    def _join(self, until: float) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self._owner == os.getpid():
            thread.join(max(until - time.monotonic(), 0.0))

    def _outcome(self, outcome: Outcome) -> None:
        """A step of a command, from any thread."""
        self._outcomes.append(outcome)
        self._ring()

    def _abandon(self) -> None:
        """This is a forked child."""
        self._unhang_bell()
        if self._connection is not None:
            self._connection.abandon()

    def _unhang_bell(self) -> None:
        for end in (self._bell, self._ear):
            if end is not None:
                end.close()

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        # A signal that the kernel gave to this thread would not wake the main thread, where Python handles it: Ctrl-C,
        # and torch's notice that a worker died, would wait for the end of whatever the main thread waits for.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
        try:
            while not self._is_done(time.monotonic()):
                try:
                    self._turn(time.monotonic())
                except Lost as lost:
                    self._lose(lost)
                except Exception as error:
                    log.debug("the publisher of %s failed", self.identity.name, exc_info=True)
                    self._lose(Lost("bug", f"{type(error).__name__}: {error}"))
                    time.sleep(min(self._interval, INTERVAL))  # whatever it is, it must not become a busy loop
        finally:
            self._leave()

    def _turn(self, now: float) -> None:
        self._observe(now)
        self._stay_connected(now)
        self._speak()
        self._listen(self._wait(now))

    def _observe(self, now: float) -> None:
        """Put events, and a snapshot if the pace has one now, into the outbox when it is time."""
        if self.finishing:
            return
        gone = self._source.gone
        if gone and self._gone_at is None:
            self._gone_at = now
        ending = self._end_by is not None or gone
        if self._lingers(now):
            self._sample_at = self._events_at = now + INTERVAL / 4
            return
        due = now >= self._sample_at
        if due or ending or (self._events_wanted and now >= self._events_at):
            self._events_wanted = False
            self._events_at = now + EVENTS_APART
            self._gatherer.add_events()
        if due or ending:
            self._desk.reopen()
            self._sample_at += self._interval
            if self._sample_at <= now:
                self._sample_at = now + self._interval
            self._gatherer.look(now, last=ending)
        if ending:
            self.finishing = True
            if self._end_by is None:
                self._end_by = now + FAREWELL
            self._goodbye = self._gatherer.add_goodbye()
            self._connect_at = min(self._connect_at, now)

    def _lingers(self, now: float) -> bool:
        """The source is gone, and it is not known yet how that is to be told."""
        if self._gone_at is None or self._end_by is not None:
            return False
        if now >= self._gone_at + LINGER or not self._source.was_interrupted:
            return False
        # The process that has made another one since goes on.
        return not any(other._number > self._number for other in self._namesakes())

    # -- the connection -------------------------------------------------------------------------------------

    def _stay_connected(self, now: float) -> None:
        if self._connection is None:
            if now >= self._connect_at:
                self._connect(now)
        elif not self._welcomed:
            if now >= self._deadline:
                raise Lost("slow", f"no welcome came within {HANDSHAKE:.0f} s")
        elif now >= self._heard + 2 * SILENCE:
            raise Lost("silent", f"nothing was heard for {2 * SILENCE:.0f} s")
        elif now >= self._heard + SILENCE and not self._pinged and self._connection.has_room:
            self._connection.ping()
            self._pinged = True

    def _connect(self, now: float) -> None:
        if self._has_predecessor():
            self._connect_at = now + 0.05
            return
        address = self._address.find()
        if address is None:
            self._connect_at = now + self._interval
            return
        self._connect_at = now  # should the constructor raise, `_lose` sets it
        self._deadline = now + HANDSHAKE
        self._welcomed = False
        self._connection = Connection(address)

    def _has_predecessor(self) -> bool:
        """A loader of the same name is still saying goodbye: were we faster, the backend would not listen to it.

        Only one that was there before: if both are gone, they must not wait for each other.
        """
        return any(
            other._number < self._number and (other.finishing or other._source.gone) for other in self._namesakes()
        )

    def _namesakes(self) -> list[Publisher]:
        """The others whose loaders have the same name."""
        this = self.identity
        return [
            other
            for other in list(_active)
            if other is not self
            and (other.identity.run, other.identity.rank, other.identity.name) == (this.run, this.rank, this.name)
        ]

    def _lose(self, lost: Lost) -> None:
        now = time.monotonic()
        if lost.kind != "lost" or not self._welcomed:
            # A connection that was good and is lost comes back as a rule; only if it does not is that worth a word.
            self._tell(
                lost.kind,
                "the dashboard at %s cannot be used: %s. Training goes on; trying again in the background.",
                self._address.url,
                lost,
            )
        was_welcomed, self._welcomed = self._welcomed, False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._connect_at = now + (self._backoff.another() if self._address.others else self._backoff.failed(now))
        if self.finishing and not was_welcomed:
            self._end_by = now  # there is nobody to say goodbye to

    def _wait(self, now: float) -> bool:
        """Until there is something to do; True: the connection is ready."""
        until = now + SILENCE / 4 if self._end_by is None else self._end_by
        poll = select.poll()
        assert self._ear is not None
        poll.register(self._ear, select.POLLIN)
        connection = self._connection
        if connection is None:
            until = min(until, self._connect_at)
        else:
            listening = self._may_listen(connection, now)
            if interest := connection.interest(listening):
                poll.register(connection, interest)
            if not listening:
                until = min(until, self._attention.back_at())
            if not self._welcomed:
                until = min(until, self._deadline)
        if not self.finishing:
            until = min(until, self._sample_at, self._events_at if self._events_wanted else self._sample_at)
        ready = False
        for descriptor, _ in poll.poll(max(until - time.monotonic(), 0.0) * 1000 + 0.5):
            if descriptor == self._ear.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._ear.recv(64)
                self._rung = False  # in this order: a ring in between finds the bell up, and we look around next
            else:
                ready = True
        return ready

    def _may_listen(self, connection: Connection, now: float) -> bool:
        """The handshake is always followed: it is short, or too long and given up."""
        return self._attention.left(now) or not connection.opened

    def _listen(self, ready: bool) -> None:
        connection = self._connection
        if connection is None or not ready:
            return
        began = time.thread_time()
        try:
            self._hear(connection)
        finally:
            if connection.opened:
                self._attention.spend(time.thread_time() - began)

    def _hear(self, connection: Connection) -> None:
        was_open = connection.opened
        messages, size = connection.advance(self._may_listen(connection, time.monotonic()))
        if connection.opened and not was_open:
            connection.send(self._encoder.encode(self._hello()))
            connection.flush()
        if size:
            self._heard = time.monotonic()
            self._pinged = False
        for data in messages:
            self._receive(data)

    def _speak(self) -> None:
        """Give the connection what it takes."""
        while self._outcomes:
            self._answers.add(self._encoder.encode(self._outcomes.popleft()))
        connection = self._connection
        if connection is None or not self._welcomed:
            return
        sent = False
        now = time.monotonic()
        if now >= self._load_at and connection.has_room and not self.finishing:
            self._load_at = now + max(LOADS_RARER if self._pacer.slow else LOADS_APART, self._interval)
            load = self._gatherer.load()
            if load is not None:
                connection.send(load)
                sent = True
        while connection.has_room:
            message = self._answers.take(self._outbox.last_sent) or self._outbox.take()
            if message is None:
                break
            connection.send(message)
            sent = True
        if sent:
            connection.flush()

    # -- the conversation -----------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        torch = sys.modules.get("torch")
        versions = {"penstock": __version__, "python": platform.python_version()}
        if torch is not None:
            versions["torch"] = str(torch.__version__)
        return Hello(
            PROTOCOL,
            self.identity,
            self._source.config(),
            int(self._interval * 1e6),
            self._source.started,
            versions,
        )

    def _receive(self, data: bytes | str) -> None:
        try:
            message = decode(data)
        except BadCommand as bad:
            self._desk.reject(bad.command, str(bad))
            return
        if isinstance(message, Welcome):
            self._welcome(message)
        elif isinstance(message, Ack):
            self._outbox.acknowledge(message.seq)
            self._answers.acknowledge(min(message.seq, self._outbox.last_sent))
        elif isinstance(message, Command):
            self._desk.take(message)
        elif isinstance(message, Pace):
            self._follow(message.interval_us)
        elif isinstance(message, Refused):
            self._tell("refused", "the dashboard at %s refused a message: %s", self._address.url, message.reason)
        else:
            self._tell("unknown", "the dashboard at %s sent a message that is not understood", self._address.url)

    def _welcome(self, welcome: Welcome) -> None:
        if self._welcomed:
            return
        if welcome.protocol[0] != PROTOCOL[0]:
            theirs, ours = welcome.protocol[0], PROTOCOL[0]
            raise Lost("version", f"it speaks version {theirs} of the protocol, this loader version {ours}")
        self._welcomed = True
        self._backoff.succeeded(time.monotonic())
        self._address.welcomed()
        self._outbox.resume(welcome.last_seq)
        self._answers.resume()
        self._follow(welcome.interval_us)
        log.info("loader %s: publishing to %s as %s", self.identity.name, self._address.url, welcome.loader)

    def _follow(self, interval_us: int) -> None:
        """Another pace. Somebody who begins to watch is not kept waiting for what replay needs."""
        was_slow = self._pacer.slow
        self._pacer.tell(interval_us)
        if was_slow and not self._pacer.slow:
            self._load_at = 0.0

    # -- the end --------------------------------------------------------------------------------------------

    def _is_done(self, now: float) -> bool:
        if not self.finishing:
            return False
        return self._outbox.first > self._goodbye or (self._end_by is not None and now >= self._end_by)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self.finishing = True
        _active.discard(self)
        self._unhang_bell()


def publish(source: Source, monitor: bool | str | None, interval: float = INTERVAL) -> Publisher | None:
    """Publish a source to where `monitor` says; None: nowhere."""
    address = resolve(monitor)
    if address is None:
        return None
    exits.listen()
    publisher = Publisher(source, address, interval, identity=make_identity(source))
    publisher.start()
    return publisher


def _finish_all() -> None:
    """The interpreter ends: all together have the time that one has."""
    publishers = list(_active)
    error = uncaught()
    for publisher in publishers:
        if error is not None and not publisher.finishing:
            publisher._source.died_of(error)
    until = time.monotonic() + EXIT_FLUSH
    for publisher in publishers:
        publisher._finish_within(EXIT_FLUSH)
    for publisher in publishers:
        publisher._join(until)


def _abandon_all() -> None:
    for publisher in list(_active):
        publisher._abandon()
    _active.clear()


atexit.register(_finish_all)
os.register_at_fork(after_in_child=_abandon_all)
