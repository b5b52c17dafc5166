"""The terminal says what the dashboard says: both are held to the cases in `frontend/tests/diagnosis.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock.protocol import Config, Queues, Rates, Snapshot, Stall, Times, Worker
from penstock_dashboard.terminal.diagnosis import Diagnosis, Evidence, diagnose

CASES = json.loads((Path(__file__).parents[3] / "frontend" / "tests" / "diagnosis.json").read_text())

COMPUTING = {
    "compute": 1.0,
    "starvation": 0.0,
    "reorder_stall": 0.0,
    "pin_wait": 0.0,
    "paused": 0.0,
    "startup": 0.0,
    "sampler": 0,
}


def evidence(some: dict[str, Any]) -> Evidence:
    """What a case leaves out is as in `frontend/tests/builders.ts`."""
    given = dict(some.get("snapshot", {}))
    workers = given.pop("workers", [{"id": n, "pid": 100 + n, "batch": 101 + n} for n in range(4)])
    base: dict[str, Any] = {"batch": 100, "length": 1000, "batches": 100, "target": 4, "state": "running"}
    snapshot = Snapshot(
        seq=1,
        at=1000.0,
        queues=Queues(**{"window": 16, "in_flight": 8, **given.pop("queues", {})}),
        epoch_times=Times(**given.pop("epoch_times", {})),
        workers=[Worker(**{"pid": 100, "state": "fetching", **worker}) for worker in workers],
        **{**base, **given},
    )
    stall = {"at": 990.0, "us": 0, "held_back": 9, "epoch": 0, "batch": 100, "worker": 2}
    sample = {"slowest_index": "91723", "slowest_us": 790_000}
    return Evidence(
        snapshot,
        Config(**{"num_workers": 4, "max_workers": 32, **some.get("config", {})}),
        some.get("presence", "connected"),
        some.get("shares", COMPUTING),
        Rates(**{"batches": 60.0, "busy": 2.0, "workers": 4.0, **some.get("rates", {})}),
        [Stall(**{**stall, **sample, **each}) for each in some.get("stalls", [])],
        some.get("silence", 0.2),
        some.get("failure", ""),
    )


@pytest.mark.parametrize("case", CASES, ids=[case["title"] for case in CASES])
def test_the_terminal_says_what_the_dashboard_says(case: dict[str, Any]) -> None:
    assert diagnose(evidence(case["evidence"])) == msgspec.convert(case["said"], Diagnosis)
