"""What Prometheus scrapes."""

from __future__ import annotations

from typing import get_args

from penstock.protocol import Limit, Machine, Worker
from prometheus_client.parser import text_string_to_metric_families

from tests.backend.harness import Address, Running, make_snapshot

LABELS = ("run", "rank", "loader", "worker", "kind", "queue", "phase", "action", "state", "version", "limit", "machine")


def scrape(server: Address, workers: int = 1) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name → label values → value, for the loaders of this module's run."""
    with server.http("viewer") as client:
        answer = client.get("/metrics", params={"workers": workers})
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation, f"{family.name} has no HELP"
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in LABELS if name in sample.labels)
            assert labels not in found.get(sample.name, {}), "a series appears twice"
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_names_and_units_follow_the_conventions(server: Running) -> None:
    with server.loader("prom") as loader:
        for _ in range(3):
            loader.snapshot()
        loader.acknowledged(2)
        found, in_brief = scrape(server), scrape(server, workers=0)
    key = ("prom", "0", "train")
    assert found["penstock_loader_batches_total"][key] == 4
    assert found["penstock_loader_yielded_bytes_total"][key] == 2_000_000
    assert found["penstock_loader_time_seconds_total"][*key, "starvation"] == 0.2
    assert found["penstock_loader_workers"][key] == 2
    limits = {labels[3]: number for labels, number in found["penstock_loader_limit"].items() if labels[:3] == key}
    assert set(limits) == set(get_args(Limit))
    assert sum(limits.values()) == 1
    assert found["penstock_worker_batches_total"][*key, "0"] == 2
    assert found["penstock_worker_queued_seconds_total"][*key, "0"] >= 0
    assert found["penstock_loader_others_cpu_seconds_total"][key] >= 0
    assert found["penstock_loader_processors"][key] >= 0
    assert found["penstock_backend_messages_received_total"][()] >= 3
    assert found["penstock_backend_store_degraded"][()] == 0
    assert set(in_brief) == {name for name in found if not name.startswith("penstock_worker_")}
    for name in found:
        assert name.startswith("penstock_")
        assert not name.endswith(("_us", "_us_total", "_ms"))


def test_other_machines_have_series(server: Running) -> None:
    with server.loader("spread") as loader:
        loader.snapshot(machines=[Machine("beta", [1], 8, 2048, 500, 1500, 3)])
        loader.acknowledged(0)
        found = scrape(server)
    key = ("spread", "0", "train", "beta")
    assert found["penstock_machine_workers"][key] == 1
    assert found["penstock_machine_received_bytes_total"][key] == 2 << 20
    assert found["penstock_machine_full_seconds_total"][key] == 0.5
    assert found["penstock_machine_way_seconds"][key] == 0.0015
    assert found["penstock_machine_lost_tasks_total"][key] == 3


def test_series_of_gone_workers_and_loaders_disappear(server: Running) -> None:
    key = ("going", "0", "train")
    with server.loader("going") as loader:
        loader.snapshot(workers=4)
        loader.acknowledged(0)
        assert (*key, "3") in scrape(server)["penstock_worker_batches_total"]
        dead = Worker(1, 1001, "dead")
        twice = Worker(0, 1000, "idle")
        snapshot = make_snapshot(1)
        loader.send(snapshot.__class__(1, snapshot.at, "running", workers=[twice, twice, dead]))
        loader.acknowledged(1)
        series = {labels[3] for labels in scrape(server)["penstock_worker_batches_total"] if labels[:3] == key}
        assert series == {"0"}
        loader.seq = 2
        loader.acknowledged(loader.goodbye())
    assert key not in scrape(server).get("penstock_loader_batches_total", {})
