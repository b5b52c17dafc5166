"""Over HTTP everything has a name: what travels as an array elsewhere comes as an object, and comes back whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from penstock.protocol import (
    Config,
    Errors,
    Event,
    Identity,
    LoaderDetail,
    LoaderRow,
    ProfileFunction,
    ProfilePart,
    ProfileWeights,
    Quarantined,
    Rates,
    Snapshot,
    Span,
    Spans,
    Stall,
    StoredEvent,
    Worker,
)
from penstock_dashboard.named import from_named, named, to_named

ROW = LoaderRow("r:0:t", Identity("r", "t"), "connected", "running", 1.0, 1.0, rates=Rates(2.0, 128.0))
FULL = Snapshot(
    1,
    2.0,
    "running",
    workers=[Worker(0, 100, "idle"), Worker(1, 101, "fetching", 7)],
    errors=Errors(1, 1.0, "ValueError: 7"),
    unknown=["queues"],
    quarantined=[Quarantined("17")],
)
EVENTS: list[Event] = [
    Stall(1.0, 7, 3, 0, 11),
    Spans(1.0, 1.0, [Span(0, 0, 1, 2, 3, 4, 5, 6)]),
    ProfilePart(
        1.0,
        "p",
        0,
        functions=[ProfileFunction("f", "a.py", 1, True)],
        weights=[ProfileWeights(0, "fetch", [1], [2], [3])],
    ),
]


def arrays(value: Any) -> list[Any]:
    """Lists in which things of several kinds lie side by side: positions that somebody would have to count."""
    if isinstance(value, dict):
        return [found for each in value.values() for found in arrays(each)]
    if not isinstance(value, list):
        return []
    kinds = {type(each) for each in value}
    here = [value] if len(kinds) > 1 else []
    return here + [found for each in value for found in arrays(each)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (ROW, LoaderRow),
        ([ROW, ROW], list[LoaderRow]),
        (LoaderDetail(ROW, Config(), {}, 200_000, FULL), LoaderDetail),
        (LoaderDetail(ROW, Config(), {}, 200_000, Snapshot(1, 2.0, "idle")), LoaderDetail),
        (LoaderDetail(ROW, Config(), {}, 200_000), LoaderDetail),
        *(([StoredEvent(1, "r:0:t", event, "words")], list[StoredEvent]) for event in EVENTS),
    ],
)
def test_it_comes_back_as_it_was(value: Any, kind: Any) -> None:
    sent = msgspec.json.encode(to_named(value))
    assert not arrays(msgspec.json.decode(sent))
    assert from_named(msgspec.json.decode(sent, type=named(kind)), kind) == value


def test_fields_have_their_names() -> None:
    sent = msgspec.json.decode(msgspec.json.encode(to_named(LoaderDetail(ROW, Config(), {}, 1, FULL))))
    assert sent["row"]["rates"]["samples"] == 128.0
    assert [worker["state"] for worker in sent["snapshot"]["workers"]] == ["idle", "fetching"]
    assert sent["snapshot"]["errors"]["text"] == "ValueError: 7"
    assert "hang" not in sent["snapshot"], "what is left out stays left out"
    assert sent["snapshot"]["times"]["compute_us"] == 0
