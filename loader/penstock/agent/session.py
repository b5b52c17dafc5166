"""A session: the process on an agent's machine that has the workers of one pool, and relays between them and training.

It is what a conductor is to its crew, with the decisions made elsewhere: training's orders are calls of a
`ProcessCrew`, and what that reports goes back. The dataset is unpickled in the crew's zygote only, never here.

How everything ends:

1. When training has had its workers leave, or its end of the connection closes, whatever closed it, `run` leaves its
   loop; `ProcessCrew.end` then has the zygote kill and reap what is left of the workers, and reaps the zygote. The
   session's own end of the connection closes last, with the process: when training sees that, nothing is left.
2. A machine that can no longer be reached says nothing. Then the system closes the connection: it asks for a sign of
   life every few seconds (keepalive), and does not wait for ever for what was sent to be taken.
3. The agent holds a pipe, the lifeline; its end, whatever ended the agent, is the session's end.
4. If the session itself is killed, its zygote sees the end of its channel, and kills the workers (see `zygote`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import signal
import socket
import time
import traceback
from typing import Any

import torch

from ..failures import Failure
from ..pool.crews import reports
from ..pool.crews.board import FETCHING, SENDING, Word
from ..pool.crews.crew import Order
from ..pool.crews.processes import ProcessCrew, ProcessWorker
from ..pool.inbox import Inbox
from ..pool.window import Task
from ..profiling.sampler import Chunk
from ..seeding import Bases
from . import messages as m
from .luggage import Luggage, Trunk
from .wire import ConnectionEndedError, Wire

BEAT = 0.25
"""Seconds between two beats, in which nothing else need be sent."""
FULL_BEAT = 4
"""Every so many beats what the system says of workers is told, too."""
RECHECK = 0.001
"""Seconds after which a worker that had not begun its next task is looked at again,"""
MOST_RECHECKS = 20
"""so many times."""
GONE_AFTER = 25
"""Seconds after which the system closes a connection to a machine that can no longer be reached."""


class _Relay:
    """A profile's sink that sends what a worker saw to training."""

    def __init__(self, wire: Wire[Trunk], key: int, order: int) -> None:
        self._wire = wire
        self._key = key
        self._order = order

    def sampled(self, source: Any, chunk: Chunk) -> None:  # noqa: ARG002
        self._wire.send(m.pack(m.Sampled(self._key, self._order, chunk)))

    def gone(self, source: Any) -> None:
        """Training sees that the worker is gone."""

    def look_at_this_thread(self, worker: int, words: Any, places: tuple[int, int] = (0, 1)) -> None:
        """There are no worker threads here."""


class Session:
    """The workers of one pool, and the connection to its training."""

    def __init__(self, sock: socket.socket, lifeline: int) -> None:
        """The other side has proved who it is, and has been told who we are."""
        keep_alive(sock)
        self._wire: Wire[Trunk] = Wire(sock, Trunk)
        self._lifeline = lifeline
        self._inbox = Inbox()
        self._crew: ProcessCrew | None = None
        self._luggage: Luggage | None = None
        self._workers: dict[int, ProcessWorker] = {}
        self._births: list[m.Grow] = []
        """Workers that could not be asked for yet, because the zygote has just died."""
        self._told: dict[int, bytes] = {}
        """Key → the row that was told last."""
        self._rechecks: dict[int, int] = {}
        """Key of each worker that had not begun its next task → how often it may still be looked at."""
        self._beats = 0
        self._beat_at = 0.0
        self._losses = self._max_retries = 0
        self._leaving = self._over = self._congested = False
        self._full = self._full_since = 0
        """Time in which the network took no more, ns, and since when it takes none."""

    def run(self) -> None:
        """Serve until training or the agent is gone."""
        self._inbox.watch(self._wire, self._hear)
        self._inbox.watch(_Descriptor(self._lifeline), self._agent_gone)
        try:
            while not self._over and not (self._leaving and not self._lingers()):
                for report in self._inbox.wait(self._patience()):
                    self._relay(report)
                for birth in list(self._births):
                    self._grow(birth)
                self._tell()
                self._flush()
        except ConnectionEndedError:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        try:
            if self._crew is not None:
                self._crew.end()
        finally:
            self._inbox.close()
            self._wire.close()

    def _agent_gone(self, events: int) -> None:  # noqa: ARG002
        self._over = True

    def _lingers(self) -> bool:
        return self._crew is not None and self._crew.lingers()

    def _patience(self) -> float:
        """How long to sleep at the most, ms."""
        if self._rechecks:
            return RECHECK * 1000
        return max(self._beat_at + BEAT - time.monotonic(), 0.0) * 1000 + 1

    # -- from training ------------------------------------------------------------------------------------------

    def _hear(self, events: int) -> None:
        if events & ~select.POLLOUT:
            for packed, places in self._wire.receive():
                self._heed(m.unpack(packed), places)

    def _flush(self) -> None:
        congested = not self._wire.flush()
        if congested != self._congested:
            now = time.monotonic_ns()
            self._full, self._full_since = self._full_until(now), now
            self._congested = congested
            self._inbox.want_room(self._wire, congested)

    def _full_until(self, now: int) -> int:
        """Time in which the network took no more, up to this moment."""
        return self._full + (now - self._full_since if self._congested else 0)

    def _heed(self, message: m.Message, places: list[Trunk]) -> None:
        crew = self._crew
        match message:
            case m.Begin(pickled, origin, base_seed, rows, max_retries):
                self._luggage = Luggage(pickled, [place.view for place in places], origin)
                self._max_retries = max_retries
                self._crew = ProcessCrew(self._inbox, multiprocessing.get_context("fork"), base_seed, rows)
                self._crew.revive(self._luggage)
            case m.Ping(moment):
                self._wire.send(m.pack(m.Pong(moment, time.monotonic_ns())))
            case _ if crew is None:
                raise ConnectionEndedError("training did not begin with the dataset")
            case m.Grow():
                self._births.append(message)
            case m.StartEpoch(number, shared_seed):
                crew.begin_epoch(number, shared_seed)
            case m.ShareBases(bases):
                crew.share_bases(Bases._make(bases))
            case m.SeeOff():
                self._leaving = True
                self._births.clear()
                crew.see_off()
            case m.Give(key) | m.AdoptShard(key) | m.Steer(key) | m.Recall(key) | m.End(key) | m.Profile(key):
                if key in self._workers:
                    self._command(crew, self._workers[key], message)
                elif isinstance(message, m.Steer):  # it is not born yet, or else its end is on the way to training
                    order = message.order
                    self._births = [each._replace(order=order) if each.key == key else each for each in self._births]
            case m.LookAt(key, question, patience):
                self._look_at(key, question, patience)

    def _command(self, crew: ProcessCrew, worker: ProcessWorker, message: m.Message) -> None:
        match message:
            case m.Give(_, parcels, limit):
                crew.limit(limit)
                tasks = [Task(batch, indices, shard, number=number) for _, batch, shard, indices, number in parcels]
                worker.dispatched = parcels[-1][4] + 1
                worker.give(parcels[0][0], tasks)
            case m.AdoptShard(_, epoch, shard, state):
                worker.adopt(epoch, shard, state)
            case m.Steer(_, order):
                worker.leaving = order == Order.LEAVE
                worker.steer(Order(order))
            case m.Recall(_, dispatched):
                worker.dispatched = dispatched
                worker.recall()
            case m.End():
                worker.kill()
            case m.Profile(key, order, rate):
                worker.profile(rate, _Relay(self._wire, key, order))

    def _grow(self, birth: m.Grow) -> None:
        if self._crew is None:
            return
        key, number, num_workers, epoch, order = birth
        worker = self._crew.grow(key, number, num_workers, epoch, Order(order))
        if isinstance(worker, ProcessWorker):
            self._births.remove(birth)
            self._workers[key] = worker
            worker.leaving = order == Order.LEAVE

    def _look_at(self, key: int, question: int, patience: float) -> None:
        worker = self._workers.get(key)
        stack = "" if worker is None else worker.stack(patience)
        silence = "" if stack else "it is not there any more" if worker is None else worker.why_silent()
        self._tell_rows(list(self._workers))
        self._wire.send(m.pack(m.StackIs(question, stack, silence)))

    # -- to training --------------------------------------------------------------------------------------------

    def _relay(self, report: reports.Report) -> None:
        match report:
            case reports.Arrived(worker, batches):
                self._losses = 0
                self._send_batches(worker.key, batches)
            case reports.Born(worker):
                self._send(m.Born(worker.key, worker.pid))
            case reports.Up(worker):
                worker.up = True
                bases = None if self._crew is None else self._crew.bases()
                if bases is not None:
                    self._send(m.ShareBases(tuple(bases)))
                self._send(m.Up(worker.key))
            case reports.Left(worker, exitcode, costs):
                self._forget(worker.key)
                self._send(m.Left(worker.key, exitcode, costs))
            case reports.Died(worker):
                self._forget(worker.key)
                self._send(m.Died(worker.key, *report[1:]))
            case reports.NotStarted(worker, reason):
                self._forget(worker.key)
                self._send(m.NotStarted(worker.key, reason))
            case reports.Failed(Failure() as failure):
                self._send(m.Failed(failure))
            case reports.CrewLost(_, message):
                self._revive(message)

    def _send(self, message: m.Message) -> None:
        self._wire.send(m.pack(message))

    def _send_batches(self, key: int, batches: list[Any]) -> None:
        contents: list[tuple[memoryview, object]] = []
        sent = []
        for batch in batches:
            fields = tuple(batch)
            if batch.payload is not None:
                structure, buffers, inline, view, nbytes = batch.payload.carried()
                place = -1
                if view is not None:
                    place = len(contents)
                    contents.append((view, batch.payload))
                fields = (*fields[:3], (structure, buffers, inline, place, nbytes), *fields[4:])
            sent.append(fields)
        row = self._row(key)
        self._wire.send(m.pack(m.Arrived(key, row, sent)), contents)
        self._told[key] = row
        self._rechecks[key] = MOST_RECHECKS

    def _revive(self, message: str) -> None:
        """Start the zygote again; this process is one that may be forked from."""
        self._losses += 1
        if self._crew is None or self._luggage is None:
            return
        if self._losses > self._max_retries:
            error = RuntimeError(f"{message}, {self._losses} times without a batch in between")
            self._send(m.Failed(Failure.capture(error, f"on {socket.gethostname()}")))
            return
        self._crew.revive(self._luggage)
        self._send(m.ZygoteLost(message))

    def _forget(self, key: int) -> None:
        self._workers.pop(key, None)
        self._told.pop(key, None)
        self._rechecks.pop(key, None)

    # -- how far workers are ------------------------------------------------------------------------------------

    def _row(self, key: int) -> bytes:
        worker = self._workers.get(key)
        return b"" if worker is None else worker.row[Word.STATE :].tobytes()

    def _tell(self) -> None:
        """What a worker is at is told soon after its batches, and all workers are looked at with every beat."""
        self._tell_rows([key for key in self._rechecks if self._is_settled(key)])
        now = time.monotonic()
        if now - self._beat_at < BEAT:
            return
        self._beat_at = now
        self._beats += 1
        self._tell_rows(list(self._workers))
        waits = [(key, waits) for key, worker in self._workers.items() if (waits := worker.waits_for()) is not None]
        full = self._beats % FULL_BEAT == 0
        used = [(key, each.used()) for key, each in self._workers.items()] if full else []
        self._send(m.Beat(waits, used, self._full_until(time.monotonic_ns())))

    def _is_settled(self, key: int) -> bool:
        """Has it begun the next task, or is there none, or has it been looked at often enough?"""
        worker = self._workers.get(key)
        self._rechecks[key] -= 1
        if worker is None or self._rechecks[key] <= 0 or worker.started() >= worker.dispatched:
            return True
        return FETCHING <= worker.row[Word.STATE] < SENDING

    def _tell_rows(self, keys: list[int]) -> None:
        changed = []
        for key in keys:
            self._rechecks.pop(key, None)
            row = self._row(key)
            if row and row != self._told.get(key):
                self._told[key] = row
                changed.append((key, row))
        if changed:
            self._send(m.Rows(changed))


class _Descriptor:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


def keep_alive(sock: socket.socket) -> None:
    """See point 2 above. Where the system has no such option, its own times hold."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = GONE_AFTER // 5
    times = {"KEEPIDLE": every, "KEEPINTVL": every, "KEEPCNT": 4, "USER_TIMEOUT": GONE_AFTER * 1000}
    for name, amount in times.items():
        if hasattr(socket, f"TCP_{name}"):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), amount)


def run_session(sock: socket.socket, lifeline: int) -> None:
    """Entry of a session's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent sees it, and ends its sessions
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    try:
        Session(sock, lifeline).run()
    except Exception:
        traceback.print_exc()
        raise
