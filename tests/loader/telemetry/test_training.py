"""Real pools, watched by servers that misbehave and by one that does not: training never notices."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
import torch.utils.data
from penstock import DataLoader
from penstock.protocol import Command, Pause, Resize

from tests.loader.support import Samples
from tests.loader.telemetry.conftest import Bad
from tests.loader.telemetry.misbehaviours import (
    Behaviour,
    answers_403,
    dies_after_the_welcome,
    falls_silent,
    floods,
    never_answers,
    sends_10_mb,
    sends_garbage_after_the_welcome,
)
from tests.loader.telemetry.servers import GoodServer, until

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

MISBEHAVIOURS = [
    answers_403,
    dies_after_the_welcome,
    falls_silent,
    floods,
    never_answers,
    sends_10_mb,
    sends_garbage_after_the_welcome,
]


def make(engine: Any, **more: Any) -> Any:
    return engine(Samples("tensor", 60), batch_size=4, shuffle=True, **more)


def seeded(loader: Any, epochs: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [batch for _ in range(epochs) for batch in loader]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("behave", MISBEHAVIOURS)
def test_the_stream_is_the_same_whatever_the_server_does(behave: Behaviour, bad: Bad) -> None:
    raw = bad(behave)
    expected = seeded(make(torch.utils.data.DataLoader))
    loader = make(DataLoader, num_workers=2, monitor=raw.url, publish_interval=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(seeded(loader), expected)
    until(lambda: raw.met)
    loader._penstock.publisher.close(0.1)
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_good_server_sees_everything(server: GoodServer, workers: int) -> None:
    loader = make(DataLoader, num_workers=workers, monitor=server.url, publish_interval=0.02, name="seen")
    assert same(seeded(loader), seeded(make(torch.utils.data.DataLoader)))
    loader.close()
    until(lambda: server.only.said_goodbye)
    last = server.only.snapshots[-1]
    assert (last.batches, last.samples, last.epoch) == (30, 120, 1)
    assert server.only.hello.identity.name == "seen"
    assert server.only.holes == []


def test_a_loader_that_nobody_holds_says_goodbye(server: GoodServer) -> None:
    loader = make(DataLoader, num_workers=1, monitor=server.url, publish_interval=0.02)
    next(iter(loader))
    until(lambda: server.only.snapshots)
    del loader
    gc.collect()
    until(lambda: server.only.said_goodbye)


def test_commands_from_the_dashboard_change_the_pool_and_not_the_stream(server: GoodServer) -> None:
    expected = seeded(make(torch.utils.data.DataLoader))
    loader = make(DataLoader, num_workers=1, monitor=server.url, publish_interval=0.02)
    torch.manual_seed(3)
    received = []
    for number, batch in enumerate(item for _ in range(2) for item in loader):
        received.append(batch)
        if number == 2:
            until(lambda: server.sockets)
            server.send(Command("grow", Resize(3)))
            until(lambda: any(o.command == "grow" and o.state == "applied" for o in server.only.outcomes))
    assert same(received, expected)
    (applied,) = (o for o in server.only.outcomes if o.command == "grow" and o.state == "applied")
    assert applied.actual == 3
    loader.close()


def test_a_loader_that_takes_no_commands_rejects_them(server: GoodServer) -> None:
    loader = make(DataLoader, num_workers=1, monitor=server.url, publish_interval=0.02, allow_control=False)
    iterator = iter(loader)
    next(iterator)
    until(lambda: server.sockets)
    server.send(Command("stop", Pause()))
    until(lambda: server.only.outcomes)
    assert server.only.outcomes[0].state == "rejected"
    assert len(list(iterator)) == 14
    loader.close()
