"""What Prometheus scrapes. Series are made of what is known at the moment of the scrape, so those of
workers and loaders that have gone are gone as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, get_args

from msgspec import UNSET
from penstock.insight.numbers import KINDS, alive
from penstock.protocol import Limit
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from .registry import Entry
from .settings import VERSION

if TYPE_CHECKING:
    from .core import Backend

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LOADER = ("run", "rank", "loader")
LIMITS: tuple[str, ...] = get_args(Limit)
QUEUES = ("index", "in_flight", "reorder", "pin", "data")
PHASES = ("fetch", "collate", "send", "idle")


def expose(backend: Backend, entries: list[Entry], limits: dict[str, Limit], workers: bool) -> bytes:
    """The text of a scrape, with a series for every worker if that is asked for: there may be a hundred thousand.
    Snapshots are immutable, so this may run in another thread; `limits`, by loader, are what was judged before.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(backend, entries, limits, workers))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, backend: Backend, entries: list[Entry], limits: dict[str, Limit], workers: bool) -> None:
        self._backend = backend
        self._every_worker = workers
        self._limits = limits
        self._entries = [entry for entry in entries if entry.presence in ("connected", "stale")]
        self._known = len(entries)

    def collect(self) -> Iterable[Metric]:
        yield from self._own()
        yield from self._loaders()
        if self._every_worker:
            yield from self._workers()

    def describe(self) -> Iterable[Metric]:
        return []

    def _own(self) -> Iterator[Metric]:
        backend = self._backend
        info = GaugeMetricFamily("penstock_build_info", "Always 1; the version is a label.", labels=["version"])
        info.add_metric([VERSION], 1)
        yield info
        counters = backend.counters
        for name, text, number in (
            ("messages_received", "Messages from loaders.", counters.messages),
            ("received_bytes", "Bytes of messages from loaders.", counters.bytes),
            ("events_received", "Events in them.", counters.events),
            ("bad_messages", "Messages from loaders that were refused.", counters.bad_messages),
            ("repeated_messages", "Messages that had come before.", counters.repeated),
            ("refused_connections", "Websocket connections that were refused.", counters.refused_connections),
            (
                "store_dropped_bytes",
                "Bytes of records dropped before their time, for want of space.",
                backend.store.dropped,
            ),
        ):
            yield CounterMetricFamily(f"penstock_backend_{name}", text, value=number)
        for name, text, amount in (
            ("start_time_seconds", "When the backend started, Unix time.", backend.started),
            ("publishers", "Loaders that are connected.", len(backend.publishers)),
            ("viewers", "Viewers that are connected.", len(backend.viewers)),
            ("known_loaders", "Loaders that are known, gone ones included.", self._known),
            ("open_commands", "Commands under way.", backend.commands.open_count),
            ("store_in_memory", "1 if the store is in memory.", int(backend.store.in_memory)),
            ("store_degraded", "1 if the store fell back to memory.", int(bool(backend.store.warning))),
        ):
            yield GaugeMetricFamily(f"penstock_backend_{name}", text, value=amount)
        commands = CounterMetricFamily(
            "penstock_backend_commands", "Commands that have ended.", labels=["action", "state"]
        )
        for labels, number in list(backend.commands.finished.items()):
            commands.add_metric(labels, number)
        yield commands

    def _loaders(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("penstock_loader_up", "1 if connected, 0 if silent.", labels=LOADER)
        counters = {
            name: CounterMetricFamily(f"penstock_loader_{name}", text, labels=LOADER)
            for name, text in (
                ("batches", "Batches yielded."),
                ("samples", "Samples yielded."),
                ("yielded_bytes", "Bytes of tensors yielded."),
                ("reorder_stalls", "Reorder stalls that have ended."),
                ("pinned_bytes", "Bytes through the pin stage."),
                ("pin_seconds", "Time in the pin stage."),
                ("worker_recoveries", "Dead workers that were replaced."),
                ("dropped", "Messages and events that the loader dropped."),
                ("missed_messages", "Messages that never came, by their numbers."),
                ("training_cpu_seconds", "Processor time of the training process itself."),
                ("others_cpu_seconds", "Time on the processors it may use that others took."),
            )
        }
        gauges = {
            name: GaugeMetricFamily(f"penstock_loader_{name}", text, labels=LOADER)
            for name, text in (
                ("workers", "Workers alive."),
                ("workers_target", "Workers asked for."),
                ("window", "The most tasks that may be in flight."),
                ("epoch", "Number of the epoch."),
                ("slots_bytes", "Shared memory in slots."),
                ("finished_bytes", "Size of finished batches in the pipeline."),
                ("processors", "Processors that the training process may use."),
            )
        }
        times = CounterMetricFamily(
            "penstock_loader_time_seconds", "Where training's time went.", labels=(*LOADER, "kind")
        )
        queues = GaugeMetricFamily(
            "penstock_loader_queue_depth", "Tasks or batches in a stage.", labels=(*LOADER, "queue")
        )
        machines = {
            name: CounterMetricFamily(f"penstock_machine_{name}", text, labels=(*LOADER, "machine"))
            for name, text in (
                ("received_bytes", "Bytes that came from another machine with workers of the loader."),
                ("full_seconds", "Time in which batches waited there because the network took no more."),
                ("lost_tasks", "Tasks that were lost with it or on the way, and given to others."),
            )
        }
        away = {
            name: GaugeMetricFamily(f"penstock_machine_{name}", text, labels=(*LOADER, "machine"))
            for name, text in (
                ("workers", "Workers on another machine."),
                ("way_seconds", "Time of a batch from there to training, lately."),
            )
        }
        limits = GaugeMetricFamily(
            "penstock_loader_limit", "What limits training: 1 for that, 0 for all else.", labels=(*LOADER, "limit")
        )
        for entry in self._entries:
            labels = _labels(entry)
            up.add_metric(labels, entry.presence == "connected")
            snapshot = entry.snapshot
            if snapshot is None:
                continue
            # What is not known of a watched loader has no series: 0 would be taken for a measurement.
            for name, field, number in (
                ("batches", "batches", snapshot.batches),
                ("samples", "samples", snapshot.samples),
                ("yielded_bytes", "bytes", snapshot.bytes),
                ("reorder_stalls", "stalls.count", snapshot.stalls.count),
                ("pinned_bytes", "pin.bytes", snapshot.pin.bytes),
                ("pin_seconds", "pin.us", snapshot.pin.us / 1e6),
                ("worker_recoveries", "recoveries", snapshot.recoveries),
                ("dropped", "dropped", snapshot.dropped),
                ("missed_messages", "", entry.missed),
                ("training_cpu_seconds", "processors.training_ms", snapshot.processors.training_ms / 1e3),
                ("others_cpu_seconds", "processors.others_ms", snapshot.processors.others_ms / 1e3),
            ):
                if snapshot.knows(field):
                    counters[name].add_metric(labels, number)
            for name, field, amount in (
                ("workers", "workers", alive(snapshot)),
                ("workers_target", "target", snapshot.target),
                ("window", "queues.window", snapshot.queues.window),
                ("epoch", "epoch", snapshot.epoch),
                ("slots_bytes", "queues.slots_bytes", snapshot.queues.slots_bytes),
                ("finished_bytes", "queues.finished_bytes", snapshot.queues.finished_bytes),
                ("processors", "processors.allowed", snapshot.processors.allowed),
            ):
                if snapshot.knows(field):
                    gauges[name].add_metric(labels, amount)
            for kind in KINDS:
                if snapshot.knows(f"times.{kind.name}_us"):
                    times.add_metric([*labels, kind.name], getattr(snapshot.times, f"{kind.name}_us") / 1e6)
            found = [] if snapshot.machines is UNSET else snapshot.machines
            for machine in {each.name: each for each in found}.values():  # a series may appear only once
                there = [*labels, machine.name]
                machines["received_bytes"].add_metric(there, machine.received_kib * 1024)
                machines["full_seconds"].add_metric(there, machine.full_ms / 1e3)
                machines["lost_tasks"].add_metric(there, machine.lost)
                away["workers"].add_metric(there, len(machine.workers))
                away["way_seconds"].add_metric(there, machine.way_us / 1e6)
            for each in LIMITS:
                limits.add_metric([*labels, each], each == self._limits.get(entry.id))
            for queue in QUEUES:
                if snapshot.knows(f"queues.{queue}"):
                    queues.add_metric([*labels, queue], getattr(snapshot.queues, queue))
        yield from (up, *counters.values(), *gauges.values(), times, queues, limits)
        yield from (*machines.values(), *away.values())

    def _workers(self) -> Iterator[Metric]:
        labels = (*LOADER, "worker")
        batches = CounterMetricFamily("penstock_worker_batches", "Batches made by a worker.", labels=labels)
        seconds = CounterMetricFamily(
            "penstock_worker_time_seconds", "Where a worker's time went.", labels=(*labels, "phase")
        )
        cpu = CounterMetricFamily("penstock_worker_cpu_seconds", "Processor time of a worker.", labels=labels)
        queued = CounterMetricFamily(
            "penstock_worker_queued_seconds", "Time in which a worker waited for a processor.", labels=labels
        )
        rss = GaugeMetricFamily("penstock_worker_resident_memory_bytes", "Memory of a worker.", labels=labels)
        for entry in self._entries:
            snapshot = entry.snapshot
            if snapshot is None:
                continue
            knows = snapshot.knows
            living = [worker for worker in snapshot.workers if worker.state != "dead"]
            # A series may appear only once, whatever a loader says.
            for worker in {worker.id: worker for worker in living}.values():
                values = [*_labels(entry), str(worker.id)]
                batches.add_metric(values, worker.batches)
                if knows("workers.cpu_ms"):
                    cpu.add_metric(values, worker.cpu_ms / 1e3)
                if knows("workers.queued_ms"):
                    queued.add_metric(values, worker.queued_ms / 1e3)
                if knows("workers.rss"):
                    rss.add_metric(values, worker.rss)
                spent = worker.fetch_us / 1e6, worker.collate_us / 1e6, worker.send_us / 1e6, worker.idle_ms / 1e3
                for phase, amount in zip(PHASES, spent, strict=True):
                    if knows(f"workers.{phase}_{'ms' if phase == 'idle' else 'us'}"):
                        seconds.add_metric([*values, phase], amount)
        yield from (batches, seconds, cpu, queued, rss)


def _labels(entry: Entry) -> list[str]:
    identity = entry.hello.identity
    return [identity.run, str(identity.rank), identity.name]
