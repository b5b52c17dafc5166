"""A loader that is only watched: `status`, its JSON and /metrics tell unknown as unknown, never as 0."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import torch
import torch.utils.data
from penstock.telemetry.watching import watch

from tests.backend.harness import SECRETS, Running, until
from tests.backend.terminal.conftest import Call


@pytest.fixture
def watched(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A generator and a loader of torch's amidst their epochs."""
    monkeypatch.setenv("PENSTOCK_RUN", "watched")
    monkeypatch.setenv("PENSTOCK_TOKEN", SECRETS["local"])
    numbers: torch.utils.data.Dataset[int] = list(range(64))  # type: ignore[assignment]
    torch_s = torch.utils.data.DataLoader(numbers, batch_size=2, num_workers=2)
    iterators: list[Iterator[object]] = [
        iter(watch((object() for _ in range(9)), name="any", monitor=server.url, publish_interval=0.05)),
        iter(watch(torch_s, name="torch", monitor=server.url, publish_interval=0.05)),
    ]
    for iterator in iterators:
        next(iterator)
    until(lambda: len(server.get("/api/loaders", run="watched")) == 2, "both loaders")
    for loader in ("watched:0:any", "watched:0:torch"):
        until(lambda: server.get(f"/api/loaders/{loader}")["snapshot"]["batches"] == 1, f"{loader}'s batch")  # noqa: B023
    yield
    iterators.clear()


@pytest.mark.usefixtures("watched")
def test_unknown_is_not_nothing(call: Call) -> None:
    _, table, _ = call("status", "watched")
    assert re.search(r"watched/any +running +epoch 0, batch 1 +– ", table), table
    assert re.search(r"watched/torch +running +epoch 0, 1 of 32 +2 ", table), table
    _, alone, _ = call("status", "watched/any")
    assert "generator, watched" in alone and "Workers: not known from outside." in alone
    assert re.search(r"\n(– +){6}", alone), alone
    assert "in flight" not in alone and "reorder stall –" in alone
    _, alone, _ = call("status", "watched/torch")
    assert "torch DataLoader, watched" in alone and "< 1 ms" not in alone and "in flight" in alone
    for name in ("any", "torch"):
        _, told, _ = call("status", f"watched/{name}", "--json")
        (loader,) = json.loads(told)["loaders"]
        assert ("workers" in loader["snapshot"]["unknown"]) == (name == "any")
        assert ("num_workers" in loader["config"]["unknown"]) == (name == "any")


@pytest.mark.usefixtures("watched")
def test_what_is_not_known_has_no_series(server: Running) -> None:
    with server.http("viewer") as client:
        lines = client.get("/metrics?workers=1").text.splitlines()
    found = {
        name: {line.partition("{")[0] for line in lines if 'run="watched"' in line and f'loader="{name}"' in line}
        for name in ("any", "torch")
    }
    assert "penstock_loader_batches_total" in found["any"]
    for series in ("workers", "workers_target", "queue_depth", "window", "samples_total", "yielded_bytes_total"):
        assert f"penstock_loader_{series}" not in found["any"], series
        assert f"penstock_loader_{series}" in found["torch"], series
    for series in (
        "penstock_loader_finished_bytes",
        "penstock_loader_slots_bytes",
        "penstock_worker_time_seconds_total",
    ):
        assert series not in found["any"] | found["torch"], series
    kinds = {line for line in lines if "penstock_loader_time_seconds" in line and 'loader="any"' in line}
    assert not [line for line in kinds if "reorder_stall" in line] and [line for line in kinds if "starvation" in line]
