"""Training's end of the connection to one agent's session. The conductor's thread.

Whatever arrives is heeded at once and in order, also while somebody waits for a stack: reports go into the inbox, where
nobody looks before the conductor's next step.
"""

from __future__ import annotations

import dataclasses
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....agent import messages as m
from ....agent.wire import ConnectionEndedError, Wire
from ....failures import Failure
from ....seeding import Bases
from ...inbox import Inbox
from ...tasks import Batch
from .. import reports
from ..codec import Encoded
from ..slot_payload import InlinePayload
from .clock import ClockOffset
from .landing import Landed, LandedPayload, Landing
from .traffic import Traffic
from .worker import RemoteWorker

if TYPE_CHECKING:
    from .dialing import Dialed

PING = 1.0
"""Seconds between two questions whether the agent is there."""
SILENCE = 5.0
"""Seconds in which nothing is heard after which its machine is taken for lost."""
ON_THE_WAY = 0.1
"""Seconds that a stack may take from there to here."""


class Link:
    """An agent as training knows it, with its workers, while it can be reached."""

    def __init__(
        self, dialed: Dialed, inbox: Inbox, landing: Landing, traffic: Traffic, lost: Callable[[Link, str], None]
    ) -> None:
        """`lost` is called when the connection ends, with the reason."""
        self.address = dialed.address
        self.host = dialed.host
        self.cores = dialed.cores
        self.limit = 0
        """As in `Crew.limit`."""
        self.clock = ClockOffset()
        self.workers: dict[int, RemoteWorker] = {}
        self.bases: Bases | None = None
        """What the first worker has found out, if it is over there."""
        self.leaving = False
        """All workers were seen off: nothing is reported any more."""
        self.silence = "it did not answer"
        """Why the worker that was asked last did not tell its stack."""
        self.closed = False
        self._inbox = inbox
        self._lost = lost
        self._traffic = traffic
        self._wire: Wire[Landed] = Wire(dialed.socket, landing.place)
        self._heard = self._pinged = time.monotonic()
        self._congested = False
        self._question = 0
        self._answer: str | None = None
        inbox.watch(self._wire, self._hear)
        self.ping()

    def send(self, message: m.Message) -> None:
        """Send it, or keep it until there is room; whether it arrives is seen by what comes back."""
        if not self.closed:
            self._wire.send(m.pack(message))
            self._flush()

    def grow(self, worker: RemoteWorker, num_workers: int, epoch: int, order: int) -> None:
        self.workers[worker.key] = worker
        self.send(m.Grow(worker.key, worker.id, num_workers, epoch, order))

    def stack_of(self, worker: RemoteWorker, patience: float) -> str:
        """Its stack; empty if it does not answer. Waits."""
        self._question += 1
        self._answer, self.silence = None, "its machine did not answer"
        self.send(m.LookAt(worker.key, self._question, patience))
        deadline = time.monotonic() + patience + ON_THE_WAY
        while not self.closed and self._answer is None and (left := deadline - time.monotonic()) > 0:
            if self._wire.wait(left):
                self._hear(select.POLLIN)
        return self._answer or ""

    # -- is anybody there? ----------------------------------------------------------------------------------------

    def ping(self) -> None:
        self._pinged = time.monotonic()
        self.send(m.Ping(time.monotonic_ns()))

    def check(self, overslept: bool) -> None:
        """Called twice a second. `overslept`: it was not, so that what was said may not have been heard."""
        if self.closed:
            return
        now = time.monotonic()
        if overslept or self._wire.wait(0):
            self._heard = now  # what lies there is heard next
        elif now - self._heard > SILENCE:
            self._end(f"nothing was heard from it for {SILENCE:g} s")
        elif now - self._pinged >= PING:
            self.ping()

    # -- the end ------------------------------------------------------------------------------------------------

    def see_off(self) -> None:
        """Have all workers leave, and the session end."""
        self.leaving = True
        self.send(m.SeeOff())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._inbox.unwatch(self._wire)
            self._wire.close()
            for worker in self.workers.values():
                worker.end()

    def finish(self, seconds: float) -> None:
        """End our side and wait until the session has ended what it started, for so long at the most."""
        if self.closed:
            return
        self._wire.finish()
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0 and self._wire.wait(left):
                self._wire.receive()
        except ConnectionEndedError:
            pass
        self.close()

    def is_silent(self) -> bool:
        """Has it missed a few beats?"""
        return time.monotonic() - self._heard > PING

    def _end(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._lost(self, why)

    # -- what comes -----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        try:
            congested = not self._wire.flush()
        except ConnectionEndedError:
            return  # seen by reading
        if congested != self._congested:
            self._congested = congested
            self._inbox.want_room(self._wire, congested)

    def _hear(self, events: int) -> None:
        if self.closed:
            return
        if events & select.POLLOUT:
            self._flush()
        if events & ~select.POLLOUT:
            try:
                frames = self._wire.receive()
            except ConnectionEndedError as error:
                self._end(str(error))
                return
            self._heard = time.monotonic()
            self._traffic.received(self._wire.received)
            for packed, landed in frames:
                self._heed(m.unpack(packed), landed)

    def _heed(self, message: m.Message, landed: list[Landed]) -> None:
        match message:
            case m.Pong(asked, moment):
                self.clock.learn(asked, moment, time.monotonic_ns())
            case m.StackIs(question, stack, silence):
                if question == self._question:
                    self._answer, self.silence = stack, silence
            case m.Rows(rows):
                for key, row in rows:
                    if key in self.workers:
                        self.workers[key].show(row)
            case m.Beat(waits, used, full):
                self._traffic.full(full)
                self._beat(waits, used)
            case m.ShareBases(bases):
                self.bases = Bases._make(bases)
            case m.Sampled(key, order, chunk):
                if key in self.workers:
                    self.workers[key].sampled(order, chunk)
            case _ if self.leaving:
                pass
            case m.Failed(failure):
                self._inbox.put(reports.Failed(self._here(failure)))
            case m.ZygoteLost(said):
                self._inbox.put(reports.PartLost(f"zygote {self.address}", f"{said} on {self.host}"))
            case m.Arrived(key, row, batches):
                worker = self.workers[key]
                worker.show(row)
                self._inbox.put(reports.Arrived(worker, [self._received(fields, landed) for fields in batches]))
            case m.Born() | m.Up() | m.Left() | m.Died() | m.NotStarted():
                self._heed_life(message)

    def _heed_life(self, message: m.Born | m.Up | m.Left | m.Died | m.NotStarted) -> None:
        put, worker = self._inbox.put, self.workers[message.key]
        match message:
            case m.Born(_, pid):
                worker.pid = pid
                put(reports.Born(worker))
            case m.Up():
                put(reports.Up(worker))
            case m.Left(_, exitcode, costs):
                self._forget(worker)
                put(reports.Left(worker, exitcode, costs))
            case m.Died(_, exitcode, said, batch, number, blame, costs, sample):
                self._forget(worker)
                said = f"{said}, on {self.host}"
                put(reports.Died(worker, exitcode, said, batch, number, blame, costs, sample))
            case m.NotStarted(_, reason):
                self._forget(worker)
                put(reports.NotStarted(worker, f"{reason}, on {self.host}"))

    def _forget(self, worker: RemoteWorker) -> None:
        worker.end()
        del self.workers[worker.key]

    def _beat(self, waits: list[Any], used: list[Any]) -> None:
        for key, seen in waits:
            if key in self.workers:
                self.workers[key].seen_waiting(seen)
        for key, about in used:
            if key in self.workers:
                self.workers[key].now_uses(about)

    def _received(self, fields: tuple[Any, ...], landed: list[Landed]) -> Batch:
        payload: LandedPayload | InlinePayload | None = None
        if fields[3] is not None:
            encoded = Encoded._make(fields[3])
            payload = InlinePayload(encoded) if encoded.slot < 0 else LandedPayload(encoded, landed[encoded.slot])
        failure = None if fields[4] is None else self._here(fields[4])
        moments = list(map(self.clock.here, fields[6:10]))
        self._traffic.on_the_way(time.monotonic_ns() - moments[-1])
        return Batch._make((*fields[:3], payload, failure, fields[5], *moments, *fields[10:]))

    def _here(self, failure: Failure) -> Failure:
        """A failure that says where it happened."""
        return dataclasses.replace(failure, text=failure.text.replace(".\n", f" (on {self.host}).\n", 1))
