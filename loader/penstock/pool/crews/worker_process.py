"""A worker process: a workbench whose tasks come over a channel, and whose batches go into slots.

It blocks only on its channel. Finished batches are sent together when they come fast.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from typing import Any

import torch

from ...collating import serve_torch
from ...failures import UnpicklableError, describe_unpicklable
from ...profiling.sampler import Chunk
from ...profiling.stacks import codes_of
from ...ready import serve
from ...seeding import Bases
from ..tasks import Recipe
from .board import Board, Word
from .channel import Channel, ChannelClosedError
from .codec import Encoded, Encoder
from .crew import Order
from .messages import Batches, Birth, Goodbye, Hello, Message, Sampled, Tasks, pack, unpack
from .sampling import SelfSampling
from .slots import SlotStore
from .surroundings import WholeProcess
from .workbench import ROOTS as BELOW
from .workbench import Turn, Workbench

LINGER = 500_000
"""Time for which a finished batch waits for company before it is sent, ns. If the next batch takes longer than that,
a thread sends what is finished, after RESCUE seconds at the most."""
RESCUE = 0.005
MOST_PENDING = 1 << 16
"""Bytes of finished inline batches that are sent together at the most."""


class WorkerProcess(Workbench):
    """The workbench of a worker process: puts batches into slots, and sends them over its channel."""

    def __init__(self, recipe: Recipe, birth: Birth, channel: Channel, board: Board) -> None:
        self._slots = SlotStore()
        self._encoder = Encoder(self._slots)
        super().__init__(recipe, birth, board.row(birth.worker), WholeProcess(), self._allocate)
        self._channel = channel
        self._board = board
        self._finished: list[tuple[Any, ...]] = []
        self._pending_bytes = 0
        self._pending_since = 0
        self._sending = threading.Lock()
        self._pending = threading.Event()
        self._rescuer: threading.Thread | None = None
        self._sampling = SelfSampling(self._row, birth.worker, ROOTS, self._send_sampled)

    def run(self) -> None:
        """Work until told to leave or until training is gone."""
        self._row[Word.PID] = os.getpid()
        try:
            if self._row[Word.CONTROL] != Order.LEAVE:  # else it is not wanted any more, before it was born
                serve_torch(lambda: self._encoder.allocate)
                serve(self._allocate)
                self.initialize()
                self._channel.send(pack(Hello()))
            row, sampling = self._row, self._sampling
            while (turn := self.turn()) != Turn.LEAVE:
                if turn == Turn.IDLE:
                    self.heed(unpack(self._channel.receive()))
                if row[Word.PROFILE] != sampling.word:
                    sampling.follow()
            self._sampling.stop()
            self._flush()
            self._channel.send(pack(Goodbye()))
        except ChannelClosedError:
            return
        finally:
            with contextlib.suppress(ChannelClosedError):
                self._sampling.stop()

    def heed(self, message: Message) -> None:
        super().heed(message)
        if isinstance(message, Tasks):
            self._slots.release(message.returned)
            self._slots.forget(message.spoiled)
            if message.trim:
                self._slots.trim()

    def _share_bases(self, bases: Bases) -> None:
        self._board.publish_bases(bases)

    def _find_bases(self) -> Bases | None:
        bases = self._board.bases()
        if bases is None:
            time.sleep(0.001)
        return bases

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Memory in the slot of the batch under way, while it is fetched or collated."""
        self._before_collating()
        return self._encoder.allocate(shape, dtype)

    def _before_collating(self) -> None:
        """Get a slot for the batch under way."""
        if not self._encoder.prepare():
            # Slots that training gave back may lie in the channel, behind tasks that are not due yet.
            self._heed_ready()
            if not self._encoder.prepare() and not self._wait_for_slot():
                self._encoder.prepare(make=True)

    def _wait_for_slot(self) -> bool:
        """Wait until training has given one back, unless that takes longer than to make one."""
        until = time.monotonic() + self._encoder.patience()
        self._flush()
        while (left := until - time.monotonic()) > 0 and self._channel.wait(left):
            self._heed_ready()
            if self._encoder.prepare():
                return True
        return False

    def _heed_ready(self) -> None:
        for packed in self._channel.receive_ready():
            self.heed(unpack(packed))

    def _place(self, data: Any) -> Encoded:
        try:
            return self._encoder.encode(data)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            culprit = describe_unpicklable(data, "batch", lambda part: pickle.dumps(part, 5))
            raise UnpicklableError(f"the batch cannot be sent to training: {culprit}: {error}") from error

    def _not_placed(self) -> None:
        self._encoder.abandon()

    def _before_idling(self) -> None:
        self._flush()

    def _answer(self, fields: tuple[Any, ...]) -> None:
        encoded, start, sent = fields[3], fields[6], fields[9]
        if encoded is not None:
            self._pending_bytes += len(encoded.inline)
            fields = (*fields[:3], tuple(encoded), *fields[4:])  # plain tuples pickle several times faster
        with self._sending:
            if not self._finished:
                self._pending_since = start
            self._finished.append(fields)
        if sent - self._pending_since > LINGER or self._pending_bytes > MOST_PENDING:
            self._flush()
        elif not self._pending.is_set():
            self._pending.set()
            if self._rescuer is None:
                self._rescuer = threading.Thread(target=self._rescue, name="loader-rescue", daemon=True)
                self._rescuer.start()

    def _flush(self) -> None:
        if not self._finished:
            return
        slots = self._slots
        with self._sending:
            message = Batches(slots.announcements, slots.dropped, self._finished)
            self._channel.send(pack(message), slots.descriptors)
            slots.announced()
            self._finished = []
        self._pending_bytes = 0

    def _send_sampled(self, order: int, chunk: Chunk) -> None:
        with self._sending:
            self._channel.send(pack(Sampled(order, chunk)))

    def _rescue(self) -> None:
        """Send finished batches that would wait behind a slow one. Runs in a thread, from the first that waits on."""
        with contextlib.suppress(ChannelClosedError):
            while self._pending.wait():
                time.sleep(RESCUE)
                with self._sending:
                    if not self._finished:
                        self._pending.clear()
                    elif time.monotonic_ns() - self._pending_since > LINGER and not self._slots.announcements:
                        # The slots' news stay for the next message of the worker's own: only it may touch them.
                        self._channel.send(pack(Batches([], [], self._finished)))
                        self._finished = []
                        self._pending.clear()


ROOTS = BELOW | codes_of(WorkerProcess.run)
"""Code below which a profile's stacks begin."""
