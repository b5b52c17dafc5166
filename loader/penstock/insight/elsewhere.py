"""Workers on other machines: they use processors there, and what comes from there passes a network. Pure.

What they use is none of this machine's, so it is counted apart: sums that only grow, over workers and machines that
come and go.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from ..protocol import Machine, MachineRates, Snapshot, Worker
from .numbers import busy_us
from .words import micros, percent, plural, size


class Traffic(NamedTuple):
    """What grows, over all other machines and the workers there."""

    busy_us: int = 0
    """Time at batches."""
    processor_ms: int = 0
    queued_ms: int = 0
    received_kib: int = 0
    full_ms: float = 0.0
    """Time in which the network took no more; a machine counts as much as it has workers."""
    processors: int = 0
    """Processors of those that can be reached: does not grow."""
    workers: int = 0
    """Workers there: does not grow, either."""


WINDOW = 5.0
"""Seconds over which rates are taken,"""
SPACING = 0.9
"""from moments so many seconds apart."""


class TrafficMeter:
    """Adds up what the snapshots of one loader say of other machines."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, dict[str, Machine]]] = deque(maxlen=8)
        """Machines by their names, at moments of the last seconds."""
        self._sums = Traffic()
        self._workers: dict[tuple[int, int], Worker] = {}
        self._machines: dict[str, Machine] = {}
        self._listed: list[Machine] = []

    def take(self, snapshot: Snapshot, machines: list[Machine]) -> Traffic:
        """The next snapshot, and the machines in it."""
        there = snapshot.elsewhere()
        workers = {(worker.id, worker.pid): worker for worker in snapshot.workers if worker.id in there}
        busy, processor, queued, received, full = self._sums[:5]
        for which, worker in workers.items():
            before = self._workers.get(which)
            if before is not None:
                busy += max(busy_us(worker) - busy_us(before), 0)
                processor += max(worker.cpu_ms - before.cpu_ms, 0)
                queued += max(worker.queued_ms - before.queued_ms, 0)
        for machine in machines:
            known = self._machines.get(machine.name)
            if known is not None and machine.received_kib >= known.received_kib:
                received += machine.received_kib - known.received_kib
                full += max(machine.full_ms - known.full_ms, 0) * len(machine.workers) / max(len(there), 1)
        processors = sum(machine.processors for machine in machines)
        self._workers, self._machines = workers, {machine.name: machine for machine in machines}
        self._listed = machines
        self._keep(snapshot.at)
        self._sums = Traffic(busy, processor, queued, received, full, processors, len(there))
        return self._sums

    def rates(self, at: float) -> list[MachineRates]:
        """What came from each machine over the last seconds; `at`: the moment of the snapshot that was taken last."""
        rates = [(machine, self._rate(machine, at)) for machine in self._listed]
        return [replace(rate, text=_in_words(machine, rate)[:256]) for machine, rate in rates]

    def _keep(self, at: float) -> None:
        past = self._past
        if past and at < past[-1][0]:
            past.clear()  # the clock was set back
        if not past or at - past[-1][0] >= SPACING:
            past.append((at, self._machines))
        while len(past) > 1 and at - past[1][0] >= WINDOW:
            past.popleft()

    def _rate(self, machine: Machine, at: float) -> MachineRates:
        for moment, known in self._past:
            before = known.get(machine.name)
            if at - moment < SPACING or before is None or machine.received_kib < before.received_kib:
                continue  # too near, or its sums began anew with its pool
            seconds = at - moment
            full = max(machine.full_ms - before.full_ms, 0) / 1e3 / seconds
            received = (machine.received_kib - before.received_kib) * 1024 / seconds
            return MachineRates(float(f"{received:.4g}"), float(f"{min(full, 1.0):.4g}"))
        return MachineRates()


def _in_words(machine: Machine, rate: MachineRates) -> str:
    if not machine.processors:
        return f"{machine.name}: cannot be reached, and is dialed{_lost(machine)}"
    there = plural(len(machine.workers), "worker")
    came = f"{size(machine.received_kib * 1024)} so far" if rate.bytes is None else f"{size(rate.bytes)}/s"
    full = "" if not rate.full else f", the network full {percent(rate.full)} of the time"
    way = f", a batch {micros(machine.way_us)} on the way" if machine.way_us else ""
    return f"{machine.name}: {there} on {plural(machine.processors, 'processor')}, {came}{full}{way}{_lost(machine)}"


def _lost(machine: Machine) -> str:
    return f", {plural(machine.lost, 'task')} lost on the way" if machine.lost else ""
