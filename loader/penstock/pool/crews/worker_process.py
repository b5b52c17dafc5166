"""A worker process: takes tasks, fetches, collates, and sends batches.

It blocks only on its channel. Between two batches it looks at its control words on the board, so that pausing,
retiring and abandoning an epoch take effect at once, whatever lies in its index queue. Finished batches are sent
together when they come fast.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections import deque
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from ... import seeding
from ...collating import serve_torch
from ...failures import Failure, UnpicklableError, describe_unpicklable
from ...fetching import IterableFetcher, MapFetcher
from ...making import ROOTS as BELOW
from ...making import BatchMaker
from ...profiling.sampler import Chunk
from ...profiling.stacks import codes_of
from ...ready import serve
from ...tolerating import TolerantFetcher
from ..tasks import Recipe
from .board import Board, Recorder, Word
from .channel import Channel, ChannelClosedError
from .codec import Encoded, Encoder
from .crew import Order
from .messages import Adopt, Batches, Birth, Goodbye, Hello, Message, Sampled, SharedSeed, Tasks, pack, unpack
from .sampling import SelfSampling
from .shards import Shards
from .slots import SlotStore

LINGER = 500_000
"""Time for which a finished batch waits for company before it is sent, ns. If the next batch takes longer than that,
a thread sends what is finished, after RESCUE seconds at the most."""
RESCUE = 0.005
ADOPT = -2
"""In place of a batch index: not a task, but a shard that is to be read from now on."""
MOST_PENDING = 1 << 16
"""Bytes of finished inline batches that are sent together at the most."""


class WorkerProcess:
    def __init__(self, recipe: Recipe, birth: Birth, channel: Channel, board: Board) -> None:
        self._recipe = recipe
        self._birth = birth
        self._channel = channel
        self._board = board
        self._row = board.row(birth.worker)
        self._recorder = Recorder(self._row)
        self._slots = SlotStore()
        self._encoder = Encoder(self._slots)
        self._maker = BatchMaker(
            recipe.auto_collation,
            recipe.collate_fn,
            recipe.record_samples,
            self._recorder,
            self._recorder.costs,
            self._allocate,
            recipe.tolerance,
        )
        self._tasks: deque[tuple[int, int, int, Any, int]] = deque()
        self._finished: list[tuple[Any, ...]] = []
        self._pending_bytes = 0
        self._pending_since = 0
        self._sending = threading.Lock()
        self._pending = threading.Event()
        self._rescuer: threading.Thread | None = None
        self._epoch = -1
        self._fetcher: MapFetcher | TolerantFetcher | None = None
        self._shards = Shards(recipe, birth) if recipe.iterable else None
        self._bases: seeding.Bases | None = None
        self._shared_seeds: dict[int, int] = {}
        """Epoch → the seed of DataPipes, from the second epoch of a persistent worker on."""
        self._broken: Failure | None = None
        self._ended: set[int] = set()
        self._sampling = SelfSampling(self._row, birth.worker, ROOTS, self._send_sampled)

    def run(self) -> None:
        """Work until told to leave or until training is gone."""
        self._row[Word.PID] = os.getpid()
        try:
            if self._row[Word.CONTROL] == Order.LEAVE:  # it is not wanted any more, before it was born
                self._leave()
                return
            self._initialize()
            self._channel.send(pack(Hello()))
            while self._step():
                pass
        except ChannelClosedError:
            return
        finally:
            with contextlib.suppress(ChannelClosedError):
                self._sampling.stop()

    def _initialize(self) -> None:
        birth, recipe = self._birth, self._recipe
        seeding.seed_worker(birth.base_seed, birth.worker)
        dataset = recipe.dataset
        if recipe.shared_seed is not None:
            generator = torch.Generator().manual_seed(recipe.shared_seed)
            dataset = recipe.dataset = torch.utils.data.graph_settings.apply_random_seed(dataset, generator)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=birth.worker,
            num_workers=birth.num_workers,
            seed=birth.base_seed + birth.worker,
            dataset=dataset,
        )
        serve_torch(self._encoder.allocate)
        serve(self._allocate)
        if self._shards is not None:
            self._shards.keep_pristine()
        before = None if recipe.worker_init_fn is None or recipe.iterable else seeding.marks()
        try:
            if recipe.worker_init_fn is not None:
                recipe.worker_init_fn(birth.worker)
        except Exception as error:
            where = f"in DataLoader worker process {birth.worker}"
            self._broken = Failure.capture(error, where, "worker_init_fn", birth.worker)
        if before is None:
            self._bases = seeding.Bases(birth.base_seed, birth.base_seed, birth.base_seed)
        elif birth.worker == 0:
            self._board.publish_bases(seeding.Bases.after(birth.base_seed, before, seeding.marks()))

    def _step(self) -> bool:
        control = self._row[Word.CONTROL]
        if self._row[Word.PROFILE] != self._sampling.word:
            self._sampling.follow()
        if control == Order.LEAVE:
            self._leave()
            return False
        if control == Order.HOLD or not self._tasks:
            self._flush()
            if control == Order.HOLD:
                self._recorder.paused()
            else:
                self._recorder.idle()
            self._handle(unpack(self._channel.receive()))
            return True
        if self._bases is None and not self._learn_bases():
            return True
        epoch, batch, shard, indices, number = self._tasks.popleft()
        if epoch != self._row[Word.EPOCH] or number < self._row[Word.RECALLED]:
            if batch != ADOPT:
                self._skip()
            return True
        if epoch != self._epoch:
            self._begin(epoch)
        if batch == ADOPT and self._shards is not None:
            self._ended.discard(shard)
            self._shards.adopt(shard, indices)
        else:
            self._work(epoch, batch, shard, indices)
        return True

    def _handle(self, message: Message) -> None:
        match message:
            case Tasks(tasks, returned, spoiled, trim):
                self._tasks.extend(tasks)
                self._slots.release(returned)
                self._slots.forget(spoiled)
                if trim:
                    self._slots.trim()
            case Adopt(epoch, shard, state):
                # What was asked of this shard when it was last here is void.
                for task in [task for task in self._tasks if task[2] == shard]:
                    self._tasks.remove(task)
                    if task[1] != ADOPT:
                        self._skip()
                # In turn: a batch of this shard may be under way.
                self._tasks.append((epoch, ADOPT, shard, state, sys.maxsize))
            case SharedSeed(epoch, seed):
                self._shared_seeds = {epoch: seed}

    def _skip(self) -> None:
        """Answer a task that nobody wants done any more."""
        self._recorder.skip()
        now = self._recorder.moment()
        self._keep((-1, -1, -1, None, None, 0, now, now, now, now, -1, 0, None, None, None, -1, -1), now, now)

    def _leave(self) -> None:
        self._recorder.retiring()
        self._sampling.stop()
        self._flush()
        self._channel.send(pack(Goodbye()))

    def _begin(self, epoch: int) -> None:
        """Start an epoch: iterators over iterable-style datasets are made anew."""
        self._epoch = epoch
        self._ended.clear()
        shared_seed = self._shared_seeds.get(epoch)
        if shared_seed is not None:
            generator = torch.Generator().manual_seed(shared_seed)
            torch.utils.data.graph_settings.apply_random_seed(self._recipe.dataset, generator)
        if self._shards is not None:
            self._shards.clear()
        else:
            self._maker.seeder = seeding.BatchSeeder(self._bases or self._birth.base_seed, epoch)

    def _learn_bases(self) -> bool:
        """Look for what the first worker's `worker_init_fn` seeded; False, after a moment, if it is not done yet."""
        self._bases = self._board.bases()
        if self._bases is None:
            time.sleep(0.001)
        return self._bases is not None

    def _map_fetcher(self) -> MapFetcher | TolerantFetcher:
        recipe = self._recipe
        if self._fetcher is None and recipe.tolerance is not None:
            self._fetcher = TolerantFetcher(
                recipe.dataset, recipe.auto_collation, recipe.tolerance, self._birth.base_seed
            )
            self._fetcher.mark = self._recorder.sample
        elif self._fetcher is None:
            recorded, memory = bool(recipe.record_samples), self._maker.memory
            self._fetcher = MapFetcher(recipe.dataset, recipe.auto_collation, recorded, memory)
        return self._fetcher

    def _prepare(self) -> None:
        """Get a slot for the batch under way, if one is at hand."""
        if not self._encoder.prepare():
            # Slots that training gave back may lie in the channel, behind tasks that are not due yet.
            self._receive_ready()
            self._encoder.prepare()

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Memory in the slot of the batch under way, while it is fetched or collated."""
        self._prepare()
        return self._encoder.allocate(shape, dtype)

    def _work(self, epoch: int, batch: int, shard: int, indices: Any) -> None:
        recorder, maker = self._recorder, self._maker
        maker.start(batch)
        where = f"in DataLoader worker process {self._birth.worker}"
        encoded: Encoded | None = None
        samples: Any = None
        state: Any = None
        failure: Failure | None = self._broken
        if failure is None and shard not in self._ended:
            try:
                fetcher: MapFetcher | TolerantFetcher | IterableFetcher
                if self._shards is not None:
                    fetcher = self._shards.fetcher(shard)
                    indices = range(self._recipe.batch_size or 1)
                else:
                    fetcher = self._map_fetcher()
                if isinstance(fetcher, TolerantFetcher):
                    fetcher.epoch = epoch
                where += f", batch {batch}"
                samples = maker.fetch(fetcher, indices)
                self._prepare()
                encoded = self._encode(maker.collate(samples))
                if self._shards is not None:
                    state = self._shards.state(shard)
            except StopIteration as error:
                if shard < 0:
                    failure = Failure.capture(error, where, "dataset", self._birth.worker)
            except Exception as error:
                stage = "dataset" if samples is None else "collate_fn"
                sample = maker.failed_sample()
                failure = Failure.capture(error, where + maker.failed_at(), stage, self._birth.worker, sample)
            if failure is not None and self._shards is not None:
                with contextlib.suppress(Exception):  # the failure is what counts
                    state = self._shards.state(shard)
            if encoded is None:
                self._encoder.abandon()
                if shard >= 0 and failure is None:
                    self._ended.add(shard)
                    if self._recipe.persistent and self._shards is not None:
                        state = self._shards.final_state(shard)
        if encoded is None and failure is None:
            sent = recorder.no_batch()
        else:
            sent = recorder.encode_done(maker.samples, 0 if encoded is None else encoded.nbytes)
        fields = (
            epoch, batch, shard, encoded and tuple(encoded), failure, maker.samples,
            recorder.started, recorder.fetched, recorder.collated, sent, *maker.slow, state, maker.bad or None,
            recorder.effort.processor, recorder.effort.queued,
        )  # fmt: skip
        self._keep(fields, recorder.started, sent, 0 if encoded is None else len(encoded.inline))

    def _encode(self, data: Any) -> Encoded:
        try:
            return self._encoder.encode(data)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            culprit = describe_unpicklable(data, "batch", lambda part: pickle.dumps(part, 5))
            raise UnpicklableError(f"the batch cannot be sent to training: {culprit}: {error}") from error

    def _keep(self, fields: tuple[Any, ...], start: int, sent: int, nbytes: int = 0) -> None:
        """Send an answer, soon: the fields of a `Batch` as a plain tuple, which pickles several times faster."""
        with self._sending:
            if not self._finished:
                self._pending_since = start
            self._finished.append(fields)
        self._pending_bytes += nbytes
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

    def _receive_ready(self) -> None:
        for packed in self._channel.receive_ready():
            self._handle(unpack(packed))


ROOTS = BELOW | codes_of(WorkerProcess.run, WorkerProcess._step, WorkerProcess._work)
"""Code below which a profile's stacks begin."""
