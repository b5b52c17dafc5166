"""Workers that are processes on this machine: forked from a zygote, with their batches in shared memory."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from ...failures import signal_name
from ...seeding import Bases
from ...stack import why_silent
from ...usage import Used, Waits, used_by, waits_for
from ..inbox import Inbox
from ..memory import create_segment
from ..signals import emptied
from ..tasks import Batch
from .board import PROFILE_ORDER, Board, Word, size_of_board
from .board_worker import BoardWorker, parcels
from .channel import Channel, ChannelClosedError
from .codec import Encoded
from .crew import Crew, Memory, Order, Worker
from .handles import ProcessHandle
from .messages import (
    Batches,
    Birth,
    CtrlC,
    Exited,
    Forked,
    Goodbye,
    Hello,
    Look,
    Message,
    NotForked,
    NotReady,
    Sampled,
    SharedSeed,
    Tasks,
    pack,
    unpack,
)  # fmt: skip
from .nursery import Nursery
from .parcel import Packed
from .reports import Arrived, Born, CrewLost, Died, Failed, Interrupted, Left, NotStarted, Up
from .slot_payload import InlinePayload, SlotPayload
from .slots import SlotTable

if TYPE_CHECKING:
    from ...profiling.sampler import Chunk
    from ...profiling.session import Sink
    from ..tasks import Recipe
    from ..window import Task


class ProcessWorker(BoardWorker):
    """A worker process as the conductor sees it: its row on the board, its channel, and the slots it has announced."""

    def __init__(self, crew: ProcessCrew, key: int, number: int, channel: Channel) -> None:
        super().__init__(key, number, crew.board.row(number))
        self._crew = crew
        self.channel = channel
        self.slots = SlotTable()
        self.said_goodbye = False
        self._order = 0
        self._sinks: dict[int, Sink] = {}
        """Order to sample → where what is seen goes."""
        self.congested = False
        """The socket does not take more at the moment."""

    def unread(self) -> int:
        return self.slots.unread()

    def restock(self) -> None:
        if self.slots.is_short():
            self.send(Tasks([], *self.slots.collect(), self._crew.trim))

    def give(self, epoch: int, tasks: list[Task]) -> None:
        self.send(Tasks(parcels(epoch, tasks), *self.slots.collect(), self._crew.trim))

    def send(self, message: Message) -> None:
        if not self.closed:
            try:
                self.channel.send(pack(message))
            except ChannelClosedError:
                return
            self._crew.watch_room(self)

    def kill(self) -> bool:
        nursery = self._crew.nursery
        if nursery is None:
            return False
        nursery.signal(self.key, signal.SIGKILL)
        return True

    def used(self) -> Used:
        return used_by(self.pid) if self.pid else Used()

    def waits_for(self) -> Waits | None:
        return waits_for(self.pid) if self.pid and self.at() >= 0 else None

    def profile(self, rate: float, sink: Sink) -> None:
        self._order += 1
        if rate:
            self._sinks[self._order] = sink
        self.row[Word.PROFILE] = self._order * PROFILE_ORDER + int(rate * 1000)
        self.send(Look())

    def sampled(self, order: int, chunk: Chunk) -> None:
        """It was seen there."""
        sink = self._sinks.get(order)
        if sink is not None:
            sink.sampled((self.key, order), chunk)
            if chunk.last:
                del self._sinks[order]

    def end_samples(self) -> None:
        """Nothing more comes."""
        for order, sink in self._sinks.items():
            sink.gone((self.key, order))
        self._sinks.clear()

    def stack(self, patience: float) -> str:
        nursery = self._crew.nursery
        return "" if nursery is None else nursery.stack_of(self.key, patience)

    def why_silent(self) -> str:
        return why_silent(self.pid)


class ProcessCrew(Crew):
    """The worker processes of a pool, and the zygote from which they are forked."""

    name = "the loader's zygote"

    def __init__(self, inbox: Inbox, context: BaseContext, base_seed: int, rows: int, local: int | None = None) -> None:
        """`context` decides how the zygote is started; `rows`: ids of workers are below it. With `local`, those from
        that id on are another crew's."""
        self._most = rows if local is None else local
        self._inbox = inbox
        self._context = context
        self._base_seed = base_seed
        self._descriptor = create_segment(size_of_board(rows))
        self._revived: deque[Nursery] = deque()
        """Zygotes that the iterating thread has started, until the conductor's takes them over."""
        self._over = False
        self._ending = threading.Lock()
        """Held while `_over` is set, and while the board's descriptor is copied: a pool may be closed in any thread."""
        try:
            self.board = Board(self._descriptor, rows)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.nursery: Nursery | None = None
        self.trim = False
        """Free slots take too much memory."""
        self._workers: dict[int, ProcessWorker] = {}
        self._seeing_off = False
        self._pids: dict[int, int] = {}
        """Id → pid of the last process that had it."""
        self._exits: dict[int, int] = {}
        """Pid → exit code."""

    # -- the zygote -----------------------------------------------------------------------------------------

    def revive(self, recipe: Recipe | Packed) -> None:
        with self._ending:
            if self._over:
                return  # whoever waits for its batches is told that the pool was closed
            descriptor = os.dup(self._descriptor)
        try:
            nursery = Nursery(self._context, recipe, self.board.rows, descriptor)
        finally:
            os.close(descriptor)
        self._revived.append(nursery)
        if self._over:
            self._end_revived()

    def _take_over(self) -> None:
        """Fork workers from the newest zygote from now on."""
        for nursery in emptied(self._revived):
            self._lose_nursery()
            self.nursery = nursery
            self._inbox.watch(nursery.channel, self._hear_zygote)

    def _lose_nursery(self) -> None:
        nursery, self.nursery = self.nursery, None
        if nursery is not None:
            self._inbox.unwatch(nursery.channel)
            nursery.end()

    def _hear_zygote(self, events: int) -> None:
        nursery = self.nursery
        if nursery is None:
            return
        if events & select.POLLOUT:
            self._flush_zygote(nursery)
        if not events & ~select.POLLOUT:
            return
        try:
            messages = nursery.channel.receive_ready()
        except ChannelClosedError:
            self._zygote_gone(nursery)
            return
        for packed in messages:
            self._heed_zygote(unpack(packed))

    def _heed_zygote(self, message: Message) -> None:
        put = self._inbox.put
        match message:
            case CtrlC():
                put(Interrupted())
            case NotReady(failure):
                put(Failed(failure))
            case Forked(key, pid) if key in self._workers:
                worker = self._workers[key]
                worker.pid = self._pids[worker.id] = pid
                if not self._seeing_off:
                    put(Born(worker))
            case Exited(key, pid, exitcode) if key in self._workers:
                worker = self._workers[key]
                worker.pid, self._exits[pid] = pid, exitcode
                if self._seeing_off:
                    self._close(worker)
                else:
                    self._gone(worker, exitcode)
            case NotForked(key, reason) if key in self._workers:
                worker = self._workers[key]
                self._forget(worker)
                put(NotStarted(worker, f"a worker process could not be started: {reason}"))

    def _zygote_gone(self, nursery: Nursery) -> None:
        """The workers die with it."""
        self._lose_nursery()
        if not self._seeing_off:
            self._inbox.put(CrewLost(self, f"{self.name} (pid {nursery.pid}) died"))
            for worker in list(self._workers.values()):
                self._gone(worker, -9, blame=False)

    def _flush_zygote(self, nursery: Nursery) -> None:
        """Many births may be asked for before the zygote is up and reads."""
        try:
            done = nursery.channel.flush()
        except ChannelClosedError:
            done = True  # its death is seen by reading
        self._inbox.want_room(nursery.channel, not done)

    # -- workers --------------------------------------------------------------------------------------------

    def grow(self, key: int, number: int, num_workers: int, epoch: int, order: Order) -> Worker | None:
        self._take_over()
        if self.nursery is None or number >= self._most:
            return None
        self.board.clear(number)
        row = self.board.row(number)
        row[Word.CONTROL], row[Word.EPOCH] = order, epoch
        try:
            channel = self.nursery.fork(key, Birth(number, self._base_seed, num_workers))
        except ChannelClosedError:
            return None
        self._flush_zygote(self.nursery)
        worker = self._workers[key] = ProcessWorker(self, key, number, channel)
        self._inbox.watch(channel, partial(self._hear, worker))
        return worker

    def begin_epoch(self, number: int, shared_seed: int | None) -> None:
        for row in range(self.board.rows):
            self.board.row(row)[Word.EPOCH] = number
        if shared_seed is not None:
            for worker in self._workers.values():
                worker.send(SharedSeed(number, shared_seed))

    def bases(self) -> Bases | None:
        return self.board.bases()

    def share_bases(self, bases: Bases) -> None:
        self.board.publish_bases(bases)

    def limit(self, nbytes: int) -> None:
        self.trim = sum([worker.slots.ours() for worker in self._workers.values()]) > nbytes

    def memory(self) -> Memory:
        tables = [worker.slots for worker in list(self._workers.values())]
        used = sum(table.used for table in tables)
        slots = sum(len(table) for table in tables)
        return Memory(used, max(slots - used, 0), sum(table.bytes for table in tables))

    def handles(self) -> list[Any]:
        here = {worker.id for worker in list(self._workers.values())}
        return [
            ProcessHandle(pid, f"loader-worker-{number}", self._exits)
            for number, pid in sorted(self._pids.items())
            if number in here or not here
        ]

    def _hear(self, worker: ProcessWorker, events: int) -> None:
        if events & select.POLLOUT:
            try:
                worker.channel.flush()
                self.watch_room(worker)
            except ChannelClosedError:
                pass  # seen by reading
        if events & ~select.POLLOUT:
            try:
                messages = worker.channel.receive_ready()
            except ChannelClosedError:
                self._close(worker)  # its end is told by the zygote
                return
            self._heed(worker, messages)

    def _heed(self, worker: ProcessWorker, messages: list[Any]) -> None:
        for packed in messages:
            match unpack(packed):
                case Sampled(order, chunk):
                    worker.sampled(order, chunk)
                case _ if self._seeing_off:
                    pass
                case Batches(announced, dropped, batches):
                    slots = worker.slots
                    for number, size in announced:
                        slots.add(number, size, worker.channel.descriptors.popleft())
                    for number in dropped:
                        slots.drop(number)
                    self._inbox.put(Arrived(worker, [_received(slots, fields) for fields in batches]))
                case Hello():
                    self._inbox.put(Up(worker))
                case Goodbye():
                    worker.said_goodbye = True

    def _gone(self, worker: ProcessWorker, exitcode: int, *, blame: bool = True) -> None:
        """A worker's process has ended: report what it had sent, and then its end."""
        if not worker.closed:
            self._heed(worker, worker.channel.drain())
        batch, costs, (sample, _) = worker.at(), worker.costs(), worker.sample()
        number = worker.started() - 1 if batch >= 0 and blame else -1
        self.board.clear(worker.id)
        self._forget(worker)
        if worker.said_goodbye:
            self._inbox.put(Left(worker, exitcode, costs))
        else:
            self._inbox.put(Died(worker, exitcode, _obituary(worker, exitcode), batch, number, blame, costs, sample))

    def _close(self, worker: ProcessWorker) -> None:
        if not worker.closed:
            worker.closed = True
            worker.end_samples()
            self._inbox.unwatch(worker.channel)
            worker.channel.close()

    def _forget(self, worker: ProcessWorker) -> None:
        """The process is gone."""
        self._close(worker)
        self._workers.pop(worker.key, None)
        worker.row[Word.STATE] = 0

    def watch_room(self, worker: ProcessWorker) -> None:
        """Wait for room in the socket only while something is kept for it."""
        wanted = bool(worker.channel.outgoing)
        if wanted != worker.congested and not worker.closed:
            worker.congested = wanted
            self._inbox.want_room(worker.channel, wanted)

    # -- the end: see point 2 of the conductor's argument ------------------------------------------------------

    def see_off(self) -> None:
        self._seeing_off = True
        for worker in self._workers.values():
            worker.row[Word.CONTROL] = Order.LEAVE
            worker.channel.finish()
            self.watch_room(worker)  # nothing is kept for it any more

    def lingers(self) -> bool:
        if self.nursery is None:
            return False
        return any((worker.pid or worker.up) and not worker.closed for worker in self._workers.values())

    def end(self) -> None:
        held = self._ending.acquire(timeout=1.0)  # not for ever: a signal handler may close a pool that holds it
        over, self._over = self._over, True
        if held:
            self._ending.release()
        if over:
            return
        for worker in list(self._workers.values()):
            self._forget(worker)
        self._lose_nursery()
        self._end_revived()
        os.close(self._descriptor)

    def _end_revived(self) -> None:
        for nursery in emptied(self._revived):
            nursery.end()


def _received(slots: SlotTable, fields: tuple[Any, ...]) -> Batch:
    payload: SlotPayload | InlinePayload | None = None
    if fields[3] is not None:
        encoded = Encoded._make(fields[3])
        if encoded.slot >= 0:
            slots.fill()
            payload = SlotPayload(slots, encoded)
        else:
            payload = InlinePayload(encoded)
    return Batch._make((*fields[:3], payload, *fields[4:]))


def _obituary(worker: ProcessWorker, exitcode: int) -> str:
    name = signal_name(exitcode)
    cause = f"signal {name}" if name else f"exit code {exitcode}"
    message = f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly: worker {worker.id}, {cause}"
    if name:  # torch's words, for those who look for them
        words = signal.strsignal(-exitcode)
        message = f"DataLoader worker (pid {worker.pid}) is killed by signal: {words}. {message}"
    return message
