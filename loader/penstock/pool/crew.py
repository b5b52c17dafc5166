"""The worker processes of a pool and the sockets to them. Only the conductor's thread touches it."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterator
from typing import Any

from .board import FETCHING, HOLD, LEAVE, RUN, SENDING, Board, Word
from .channel import ChannelClosedError
from .nursery import Nursery
from .roster import Roster, WorkerHandle
from .signals import Doorbell
from .tasks import Birth


class Crew:
    def __init__(self, board: Board, base_seed: int) -> None:
        self.board = board
        self.roster = Roster(board.rows)
        self.nursery: Nursery | None = None
        self.doorbell = Doorbell()
        self.interrupted_at = -math.inf
        """When Ctrl-C was pressed, as far as the zygote saw it."""
        self.holding = False
        """Workers are told to hold."""
        self._base_seed = base_seed
        self._poll = select.poll()
        self._by_descriptor: dict[int, WorkerHandle] = {}
        self._poll.register(self.doorbell, select.POLLIN)

    def wait(self, milliseconds: float | None) -> Iterator[WorkerHandle | Nursery]:
        """Sleep until something happens; yields whoever has sent something."""
        for descriptor, events in self._poll.poll(milliseconds):
            if descriptor == self.doorbell.fileno():
                self.doorbell.clear()
            elif self.nursery is not None and descriptor == self.nursery.channel.fileno():
                if events & select.POLLOUT:
                    self._flush_nursery(self.nursery)
                if events & ~select.POLLOUT:
                    yield self.nursery
            elif (worker := self._by_descriptor.get(descriptor)) is not None:
                if events & select.POLLOUT:
                    self._flush(worker)
                if events & ~select.POLLOUT:
                    yield worker

    def join(self, nursery: Nursery) -> None:
        """From now on workers are forked from this zygote."""
        self.lose_zygote()
        self.nursery = nursery
        self._poll.register(nursery.channel, select.POLLIN)

    def lose_zygote(self) -> None:
        """The zygote is gone."""
        if self.nursery is not None:
            self._poll.unregister(self.nursery.channel)
            self.nursery.end()
            self.nursery = None

    def grow(self, num_workers: int, epoch: int) -> bool:
        """Fork a worker, one of `num_workers` as far as its dataset is told; False if that is not possible now."""
        number = self.roster.free_id()
        if number is None or self.nursery is None:
            return False
        row = self.board.row(number)
        self.board.clear(number)
        row[Word.CONTROL] = HOLD if self.holding else RUN
        row[Word.EPOCH] = epoch
        key = self.roster.new_key()
        try:
            channel = self.nursery.fork(key, Birth(number, self._base_seed, num_workers))
        except ChannelClosedError:
            return False
        self._flush_nursery(self.nursery)
        worker = WorkerHandle(key, number, channel)
        self.roster.add(worker)
        self._by_descriptor[channel.fileno()] = worker
        self._poll.register(channel, select.POLLIN)
        return True

    def retire(self, worker: WorkerHandle) -> None:
        """Let a worker finish its batch, send its tasks back, and go."""
        worker.leaving = True
        self._steer(worker, LEAVE)

    def hold(self, holding: bool) -> None:
        """Let all workers finish their batch and hold, or go on."""
        self.holding = holding
        for worker in self.roster:
            if not worker.leaving:
                self._steer(worker, HOLD if holding else RUN)

    def set_epoch(self, number: int, shared_seed: int | None) -> None:
        """Tasks of other epochs are skipped from now on. `shared_seed` is for DataPipes."""
        for row in range(self.board.rows):
            self.board.row(row)[Word.EPOCH] = number
        if shared_seed is not None:
            for worker in self.roster:
                self.send(worker, ("seed", number, shared_seed))

    def send(self, worker: WorkerHandle, message: Any) -> None:
        if worker.closed:
            return  # its death is reported by the zygote
        try:
            worker.channel.send(message)
        except ChannelClosedError:
            return
        self._watch(worker)

    def receive(self, worker: WorkerHandle) -> list[Any]:
        """What a worker has sent; its channel is closed when that has reached its end."""
        try:
            return worker.channel.receive_ready()
        except ChannelClosedError:
            self.close(worker)
            return []

    def receive_rest(self, worker: WorkerHandle) -> list[Any]:
        """Everything that a dead worker has sent."""
        return [] if worker.closed else worker.channel.drain()

    def busy(self, worker: WorkerHandle) -> int:
        """The batch that a worker is at; -1: none."""
        row = self.board.row(worker.id)
        return row[Word.BATCH] if FETCHING <= row[Word.STATE] <= SENDING else -1

    def costs(self) -> dict[int, list[int]]:
        """Id of each worker → the counts of its sample times so far."""
        return {worker.id: self.costs_of(worker) for worker in self.roster}

    def costs_of(self, worker: WorkerHandle) -> list[int]:
        return self.board.row(worker.id)[Word.COST :].tolist()

    def started(self, worker: WorkerHandle) -> int:
        """How many tasks a worker has taken up."""
        return self.board.row(worker.id)[Word.STARTED]

    def time_at_batch(self, worker: WorkerHandle) -> int:
        """For how long a worker has been at its batch, or at a step of it, ns."""
        return time.monotonic_ns() - self.board.row(worker.id)[Word.SINCE] if self.busy(worker) >= 0 else 0

    def recall(self, worker: WorkerHandle) -> None:
        """Have a worker skip what it has been handed and has not started."""
        self.board.row(worker.id)[Word.RECALLED] = worker.dispatched

    def any_busy(self) -> bool:
        """Has a worker taken a task up and not answered it? Its state would say so a little later than its answer."""
        return any(self.started(each) > each.dispatched - each.outstanding for each in self.roster)

    def close(self, worker: WorkerHandle) -> None:
        if not worker.closed:
            worker.closed = True
            self._poll.unregister(worker.channel)
            del self._by_descriptor[worker.channel.fileno()]
            worker.channel.close()

    def forget(self, worker: WorkerHandle) -> None:
        """The process is gone."""
        self.close(worker)
        self.roster.remove(worker)
        self.board.row(worker.id)[Word.STATE] = 0

    def dismiss(self) -> None:
        """Have all workers leave. See point 2 of the conductor's argument."""
        for worker in self.roster:
            self.board.row(worker.id)[Word.CONTROL] = LEAVE
            worker.channel.finish()
            self._watch(worker)  # nothing is kept for it any more

    def see_off(self, milliseconds: float) -> bool:
        """Wait a little for workers to leave; False when there is nobody left to wait for."""
        if self.nursery is None or not any((worker.pid or worker.up) and not worker.closed for worker in self.roster):
            return False
        for sender in self.wait(milliseconds):
            if isinstance(sender, WorkerHandle):
                self.receive(sender)
                continue
            try:
                messages = sender.channel.receive_ready()
            except ChannelClosedError:
                return False  # and the workers die with the zygote
            for operation, *rest in messages:
                if operation == "interrupted":
                    self.interrupted_at = time.monotonic()
                elif operation == "forked" and (worker := self.roster.get(rest[0])) is not None:
                    self.roster.note_fork(worker, rest[1])
                elif operation == "exited" and (worker := self.roster.get(rest[0])) is not None:
                    self.roster.note_exit(worker, rest[1], rest[2])
                    self.close(worker)
        return True

    def end(self) -> None:
        """End what is left, and wait for the system to take the processes apart."""
        for worker in self.roster:
            self.close(worker)
            self.roster.remove(worker)
        if self.nursery is not None:
            self.nursery.end()
            self.nursery = None
        self.doorbell.close()

    def _steer(self, worker: WorkerHandle, control: int) -> None:
        self.board.row(worker.id)[Word.CONTROL] = control
        self.send(worker, ("look",))

    def _flush(self, worker: WorkerHandle) -> None:
        try:
            worker.channel.flush()
        except ChannelClosedError:
            return
        self._watch(worker)

    def _flush_nursery(self, nursery: Nursery) -> None:
        """Many births may be asked for before the zygote is up and reads."""
        try:
            done = nursery.channel.flush()
        except ChannelClosedError:
            done = True  # its death is seen by reading
        self._poll.modify(nursery.channel, select.POLLIN | (0 if done else select.POLLOUT))

    def _watch(self, worker: WorkerHandle) -> None:
        """Wait for room in the socket only while something is kept for it."""
        wanted = worker.channel.has_outgoing()
        if wanted != worker.congested and not worker.closed:
            worker.congested = wanted
            self._poll.modify(worker.channel, select.POLLIN | (select.POLLOUT if wanted else 0))
