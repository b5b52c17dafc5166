"""A loader that exists only as arithmetic: it fills the protocol's structs as a real pool would.

Browser tests need situations on demand (a straggling sample, a dying worker, sixteen busy lanes, a paused
pool) that a real pool on two cores cannot give. `SimulatedLoader` plays it in steps of 2 ms: workers
take tasks, batches finish out of order, wait in the reorder buffer, pass the pin stage and are yielded to a
training step of fixed length. `publisher.py` sends what it says to a real backend.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock.protocol import (
    PROTOCOL,
    Command,
    CommandEvent,
    Config,
    EpochEvent,
    Event,
    Hello,
    Identity,
    LoaderState,
    Outcome,
    Pause,
    PinStage,
    Queues,
    Resize,
    Resume,
    SampleCost,
    Snapshot,
    Span,
    Spans,
    Stall,
    Stalls,
    Times,
    Worker,
    WorkerEvent,
    WorkerState,
    action_of,
)

TICK = 0.002
PHASES: tuple[WorkerState, ...] = ("fetching", "collating", "sending")
STACK = """\
  File "train.py", line 31, in __getitem__
    image = self.decode(self.paths[index])
  File "train.py", line 22, in decode
    return np.asarray(Image.open(path).convert("RGB"))
  File ".../PIL/Image.py", line 982, in convert
    self.load()
"""


@dataclass
class Scenario:
    """What kind of loader it is. Times in milliseconds a batch."""

    run: str = "resnet50-cifar"
    name: str = "train"
    rank: int = 0
    world_size: int = 1
    workers: int = 4
    fetch: float = 60.0
    collate: float = 6.0
    send: float = 1.5
    pin: float = 2.0
    step: float = 9.8
    slow_every: int = 0
    """Every so many batches, one sample takes `slow` ms; 0: never."""
    slow: float = 800.0
    length: int = 2502
    batch_size: int = 64
    sample_bytes: int = 150_528
    budget: int = 1 << 30
    style: str = "map"
    control: bool = True
    pin_memory: bool = True
    seed: int = 1


@dataclass
class _Worker:
    id: int
    pid: int
    since: float
    state: WorkerState = "starting"
    batch: int = -1
    moments: list[float] = field(default_factory=list)
    """Start and the ends of the three phases of the batch in hand."""
    slowest: tuple[str, int] = ("", 0)
    batches: int = 0
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PHASES, "idle"), 0.0))
    retiring: bool = False


class SimulatedLoader:
    def __init__(self, scenario: Scenario, now: float) -> None:
        self.scenario = scenario
        self.random = random.Random(scenario.seed)
        self.now = now
        self.started = now
        self.seq = 0
        self.state: LoaderState = "running"
        self.paused = False
        self.resume_at: float | None = None
        self.target = scenario.workers
        self.pending: int | None = None
        self.epoch = 0
        self.batches = 0
        self.recoveries = 0
        self.workers: list[_Worker] = []
        self.next_pid = 48_000 + 97 * scenario.rank
        self.totals = dict.fromkeys(Times.__struct_fields__, 0.0)
        self.stall_count = 0
        self.stall_us = 0
        self.pin_us = 0
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self.base = now
        self._begin_epoch()
        for _ in range(scenario.workers):
            self._bear()

    # ------------------------------------------------------------------------------------- what it says

    def hello(self) -> Hello:
        s = self.scenario
        return Hello(
            protocol=PROTOCOL,
            identity=Identity(
                run=s.run,
                name=s.name,
                rank=s.rank,
                world_size=s.world_size,
                host=f"gpu-{s.rank // 8 + 7:02d}",
                pid=48_190 + s.rank,
                incarnation=f"{self.started:.6f}-{s.rank}-{s.name}",
            ),
            config=Config(
                dataset="CIFAR100",
                style="iterable" if s.style == "iterable" else "map",
                dataset_length=s.length * s.batch_size,
                batch_size=s.batch_size,
                sampler="RandomSampler",
                num_workers=s.workers,
                max_workers=32,
                start_method="fork",
                pin_memory=s.pin_memory,
                memory_budget=s.budget,
                control=s.control,
            ),
            started=self.started,
            versions={"penstock": "0.1.0", "torch": "2.13.0", "python": "3.12.4"},
        )

    def snapshot(self) -> Snapshot:
        s = self.scenario
        self.seq += 1
        finished = len(self.finished) + len(self.pinned) + (1 if self.pinning else 0)
        size = self.batch_bytes
        return Snapshot(
            seq=self.seq,
            at=self.now,
            state=self.state,
            epoch=self.epoch,
            batch=self.yielded,
            length=s.length,
            batches=self.batches,
            samples=self.batches * s.batch_size,
            bytes=self.batches * size,
            target=self.target,
            pending=self.pending,
            queues=Queues(
                index=min(len(self.workers), self.window - self.in_flight) if not self.paused else 0,
                in_flight=self.in_flight,
                window=self.window,
                reorder=len(self.finished),
                reorder_bytes=len(self.finished) * size,
                pin=1 if self.pinning else 0,
                data=len(self.pinned),
                slots_used=finished + len(self.workers),
                slots_free=max(0, self.window - finished),
                slots_bytes=(self.window + len(self.workers)) * size,
                finished_bytes=finished * size,
                memory_budget=s.budget,
            ),
            times=Times(**{key: int(value) for key, value in self.totals.items()}),
            epoch_times=Times(**{key: int(value) for key, value in self.epoch_totals.items()}),
            stalls=Stalls(self.stall_count, self.stall_us),
            pin=PinStage("mlock" if s.pin_memory else "off", self.batches, self.batches * size, self.pin_us),
            cost=SampleCost(self.batches * s.batch_size, 920, 1840, 4100, int(s.slow * 1e3), "91723"),
            workers=[self._describe(worker) for worker in self.workers],
            digest=f"{self.batches:016x}",
            recoveries=self.recoveries,
        )

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        if self.spans:
            spans, self.spans = self.spans, []
            events.append(Spans(at=self.now, base=self.base, spans=spans, stride=1))
        return events

    def _describe(self, worker: _Worker) -> Worker:
        busy = sum(worker.times[phase] for phase in PHASES)
        return Worker(
            id=worker.id,
            pid=worker.pid,
            state="retiring" if worker.retiring else worker.state,
            state_ms=int((self.now - worker.since) * 1e3),
            batch=worker.batch,
            index_queue=1 if worker.state in PHASES else 0,
            batches=worker.batches,
            samples=worker.batches * self.scenario.batch_size,
            sent_kib=worker.batches * self.batch_bytes >> 10,
            fetch_us=int(worker.times["fetching"] * 1e6),
            collate_us=int(worker.times["collating"] * 1e6),
            send_us=int(worker.times["sending"] * 1e6),
            idle_ms=int(worker.times["idle"] * 1e3),
            rss=(405 + worker.id * 3) << 20,
            cpu_ms=int(busy * 0.97e3),
        )

    # ---------------------------------------------------------------------------------- what it is told

    def apply(self, command: Command) -> Outcome:
        """Obey a command and say what came of it."""
        before, order = len(self.workers), command.order
        if isinstance(order, Resize):
            if self.scenario.style == "iterable":
                self.pending = order.workers
                return Outcome(command=command.id, state="pending", at=self.now, actual=before)
            self.target = order.workers
            while sum(not worker.retiring for worker in self.workers) < self.target:
                self._bear()
            for worker in [worker for worker in self.workers if not worker.retiring][self.target :]:
                worker.retiring = True
        elif isinstance(order, Pause):
            self.paused = True
            self.state = "paused"
            self.resume_at = self.now + order.resume_after if order.resume_after else None
        elif isinstance(order, Resume):
            self._resume()
        actual = sum(not worker.retiring for worker in self.workers)
        self.events.append(
            CommandEvent(
                at=self.now,
                action=action_of(order),
                state="applied",
                by=command.by or "local",
                command=command.id,
                asked=order.workers if isinstance(order, Resize) else None,
                before=before,
                actual=actual,
                at_batch=self.next_task,
                took_us=41_000,
            )
        )
        return Outcome(
            command=command.id,
            state="applied",
            at=self.now,
            actual=actual,
            at_batch=self.next_task,
            took_us=41_000,
        )

    def kill(self, worker_id: int) -> None:
        """One worker dies by SIGKILL; another takes its place and its task."""
        for worker in self.workers:
            if worker.id == worker_id:
                self.workers.remove(worker)
                self.events.append(
                    WorkerEvent(self.now, "died", worker.id, worker.pid, -9, "SIGKILL", worker.batch, True)
                )
                if worker.moments:
                    self.retries.append(worker.batch)
                self.recoveries += 1
                self._bear(worker.id)
                return

    def fail(self, reason: str) -> None:
        self.state = "failed"
        self.events.append(EpochEvent(self.now, "failed", self.epoch, self.yielded, reason))

    def finish(self) -> None:
        self.state = "finished"
        self.events.append(EpochEvent(self.now, "ended", self.epoch, self.yielded))

    # ------------------------------------------------------------------------------------- what happens

    @property
    def batch_bytes(self) -> int:
        return self.scenario.batch_size * self.scenario.sample_bytes

    @property
    def window(self) -> int:
        return max(4, min(4 * self.target, self.scenario.budget // self.batch_bytes))

    @property
    def in_flight(self) -> int:
        return self.next_task - self.yielded

    def advance(self, to: float) -> None:
        """Play until the moment `to`; a gap of more than a minute is skipped."""
        self.now = max(self.now, to - 60)
        while self.now + TICK <= to:
            self.now += TICK
            if self.state in ("running", "paused"):
                self._tick()

    def _begin_epoch(self) -> None:
        self.next_task = 0
        self.yielded = 0
        self.finished: dict[int, tuple[_Worker, tuple[str, int]]] = {}
        self.retries: list[int] = []
        self.made: dict[int, tuple[int, list[float]]] = {}
        self.pinned: list[int] = []
        self.pinning: tuple[int, float] | None = None
        self.next_pin = 0
        self.first = False
        self.computing_until = self.now
        self.stalling: tuple[float, int] | None = None
        self.epoch_totals = dict.fromkeys(Times.__struct_fields__, 0.0)
        self.events.append(EpochEvent(self.now, "started", self.epoch))

    def _resume(self) -> None:
        self.paused = False
        self.resume_at = None
        self.state = "running"

    def _bear(self, worker_id: int | None = None) -> None:
        taken = {worker.id for worker in self.workers}
        number = worker_id if worker_id is not None else next(n for n in range(2048) if n not in taken)
        self.next_pid += 1
        self.workers.append(_Worker(number, self.next_pid, self.now))
        self.workers.sort(key=lambda worker: worker.id)
        self.events.append(WorkerEvent(self.now, "born", number, self.next_pid))

    def _tick(self) -> None:
        if self.resume_at is not None and self.now >= self.resume_at:
            self._resume()
        for worker in list(self.workers):
            self._work(worker)
        self._pin()
        self._train()

    def _enter(self, worker: _Worker, state: WorkerState) -> None:
        if worker.state != state:
            worker.state = state
            worker.since = self.now

    def _work(self, worker: _Worker) -> None:
        if worker.state == "starting":
            if self.now - worker.since > 0.03:
                self._enter(worker, "idle")
            return
        if not worker.moments:
            worker.times["idle"] += TICK
            if worker.retiring:
                self.workers.remove(worker)
                self.events.append(WorkerEvent(self.now, "retired", worker.id, worker.pid))
            elif self.paused:
                self._enter(worker, "paused")
            elif self.retries or (
                self.next_task < self.scenario.length and self.next_task < self.yielded + self.window
            ):
                self._take(worker)
            else:
                self._enter(worker, "idle")
            return
        if worker.state in PHASES:
            worker.times[worker.state] += TICK
        done = sum(self.now >= moment for moment in worker.moments[1:])
        if done < len(PHASES):
            self._enter(worker, PHASES[done])
            return
        self.finished[worker.batch] = (worker, worker.slowest)
        worker.batches += 1
        self.made[worker.batch] = (worker.id, worker.moments)
        worker.moments = []
        worker.times["idle"] += TICK
        self._enter(worker, "idle")

    def _take(self, worker: _Worker) -> None:
        s = self.scenario
        if self.retries:
            worker.batch = self.retries.pop(0)
        else:
            worker.batch = self.next_task
            self.next_task += 1
        fetch = s.fetch * self.random.lognormvariate(0, 0.12)
        worker.slowest = (str(self.random.randrange(s.length * s.batch_size)), int(fetch * 40))
        if s.slow_every and worker.batch % s.slow_every == s.slow_every - 1:
            fetch += s.slow
            worker.slowest = (worker.slowest[0], int(s.slow * 1e3))
        start = self.now
        fetched = start + fetch / 1e3
        collated = fetched + s.collate * self.random.uniform(0.8, 1.3) / 1e3
        worker.moments = [start, fetched, collated, collated + s.send / 1e3]
        self._enter(worker, "fetching")

    def _pin(self) -> None:
        if self.pinning is not None:
            batch, until = self.pinning
            if self.now < until:
                return
            self.pinned.append(batch)
            self.pinning = None
        if self.next_pin in self.finished:
            del self.finished[self.next_pin]
            length = self.scenario.pin if self.scenario.pin_memory else 0.0
            self.pinning = (self.next_pin, self.now + length / 1e3)
            self.pin_us += int(length * 1e3)
            self.next_pin += 1
            self.first = True

    def _train(self) -> None:
        if self.now < self.computing_until:
            self._spend("compute_us")
            return
        if self.pinned:
            self._end_stall()
            self._yield(self.pinned.pop(0))
            self.computing_until = self.now + self.scenario.step * self.random.uniform(0.95, 1.05) / 1e3
            self._spend("compute_us")
            return
        if self.yielded >= self.scenario.length:
            self.events.append(EpochEvent(self.now, "ended", self.epoch, self.yielded))
            self.epoch += 1
            if self.pending is not None:
                self.target, self.pending = self.pending, None
            self._begin_epoch()
            return
        if self.pinning:
            self._end_stall()
            self._spend("pin_wait_us")
        elif self.finished:
            if self.stalling is None:
                self.stalling = (self.now, self.next_pin)
            self.held_back = len(self.finished)
            self.culprit = next((w for w in self.workers if w.moments and w.batch == self.next_pin), None)
            self._spend("reorder_stall_us")
        elif self.paused:
            self._spend("paused_us")
        elif not self.first:
            self._spend("startup_us")
        else:
            self._spend("starvation_us")

    def _yield(self, batch: int) -> None:
        self.yielded += 1
        self.batches += 1
        worker, moments = self.made.pop(batch)
        start, fetched, collated, sent = (self._micro(moment) for moment in moments)
        self.spans.append(Span(worker, self.epoch, batch, start, fetched, collated, sent, self._micro(self.now)))

    def _micro(self, moment: float) -> int:
        return int((moment - self.base) * 1e6)

    def _spend(self, kind: str) -> None:
        self.totals[kind] += TICK * 1e6
        self.epoch_totals[kind] += TICK * 1e6

    def _end_stall(self) -> None:
        if self.stalling is None:
            return
        began, batch = self.stalling
        self.stalling = None
        length = int((self.now - began) * 1e6)
        self.stall_count += 1
        self.stall_us += length
        culprit = self.culprit
        self.events.append(
            Stall(
                at=began,
                us=length,
                held_back=self.held_back,
                epoch=self.epoch,
                batch=batch,
                worker=culprit.id if culprit else -1,
                slowest_index=culprit.slowest[0] if culprit else "",
                slowest_us=culprit.slowest[1] if culprit else 0,
                stack=STACK if length > 500_000 else "",
            )
        )
