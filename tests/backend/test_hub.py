"""The overview of many loaders: made some rows at a time, and whole all the same."""

from __future__ import annotations

import asyncio

import msgspec
from penstock.protocol import Overview
from penstock_dashboard.hub import AT_ONCE, Hub
from penstock_dashboard.registry import Registry
from penstock_dashboard.settings import Limits, Timing
from penstock_dashboard.store.database import Claim

from tests.backend.harness import make_hello

MANY = 5 * AT_ONCE


def ranks(text: str | None) -> list[int]:
    assert text is not None
    return sorted(row.identity.rank for row in msgspec.json.decode(text, type=Overview).rows)


def test_others_have_their_turn_while_rows_are_encoded_and_no_change_is_lost() -> None:
    asyncio.run(_others_have_their_turn())


async def _others_have_their_turn() -> None:
    registry = Registry(Limits(), Timing())
    entries = [registry.welcome(make_hello(rank=rank), Claim(rank + 1, 1, 1, -1)) for rank in range(MANY)]
    hub = Hub(registry, Limits())
    first, late = hub.join().viewer, hub.join().viewer
    first.overview = first.overview_due = True
    assert ranks(hub.overview(first)) == list(range(MANY))
    for entry in entries:
        hub.changed(entry)
    ticking = asyncio.create_task(hub.tick())
    await asyncio.sleep(0)
    assert not ticking.done(), "the loop is not held for all rows"
    # Meanwhile one changes whose row is made already, one goes, and somebody comes who has nothing yet.
    hub.changed(entries[0])
    registry.forget(entries[1])
    hub.removed(entries[1])
    late.overview = late.overview_due = True
    present = [rank for rank in range(MANY) if rank != 1]
    assert ranks(hub.overview(late)) == present
    await ticking
    first.overview_due = True
    told = hub.overview(first)
    assert ranks(told) == present
    assert msgspec.json.decode(told or "", type=Overview).removed == [entries[1].id]
    hub.changed(entries[2])
    await hub.tick()
    assert ranks(hub.overview(first)) == [2]
    assert 2 in ranks(hub.overview(late))
    await hub.tick()
    assert hub.overview(first) is None
