"""The placer where nodes fail, or are slow, just as agents are started there, which no cluster does on demand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.agent import placer as module
from penstock.agent.placer import Placer, Settings, _Node


class Call:
    """What the placer asked of an actor: `answer` is called when it wants to know."""

    def __init__(self, answer: Callable[[], str] | None) -> None:
        """None: the answer is still to come."""
        self.answer = answer


class Cluster:
    """What the placer asks of Ray: reservations are made at once, one on each node."""

    def __init__(self) -> None:
        self.room = 1
        """Nodes."""
        self.groups: list[Any] = []
        self.util = SimpleNamespace(
            placement_group=self._reserve,
            remove_placement_group=self.groups.remove,
            placement_group_table=lambda: {
                group.id.hex(): {"state": "CREATED", "bundles_to_node_id": {0: f"node {number}"}}
                for number, group in enumerate(self.groups[: self.room])
            },
        )

    def init(self, **_: object) -> None: ...

    def _reserve(self, *_: object, **__: object) -> Any:
        group = SimpleNamespace(id=len(self.groups).to_bytes(4, "big"))
        self.groups.append(group)
        return group

    def wait(self, calls: list[Call], **_: object) -> tuple[list[Call], list[Call]]:
        return [call for call in calls if call.answer is not None], [call for call in calls if call.answer is None]

    def get(self, call: Call) -> str:
        assert call.answer is not None
        return call.answer()

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.0}

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}] * self.room


ACTOR = SimpleNamespace(wait=SimpleNamespace(remote=lambda: Call(None)))
"""Its agent does not end."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(module, "AGAIN", 0.0)
    return cluster


def run(placer: Placer, looks: int, want: int, each_look: Callable[[int], object] = lambda _: None) -> None:
    """Have it look so many times; `each_look` is called before, with their number."""
    orders: list[dict[str, Any] | None] = [{"want": want}, *[{}] * (looks - 1), None]

    def get(timeout: float) -> dict[str, Any] | None:
        del timeout
        each_look(looks + 1 - len(orders))
        return orders.pop(0)

    placer.run(SimpleNamespace(get=get))  # type: ignore[arg-type]


def test_a_place_on_which_no_agent_could_be_started_is_asked_for_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    placer = Placer(Settings("auto", "token", {"CPU": 1.0}), said.append)
    attempts: list[str] = []

    def die() -> str:
        raise RuntimeError("the node died")

    def start(name: str) -> _Node:
        """The first fails at once, the second a little later."""
        attempts.append(name)
        if len(attempts) == 1:
            die()
        return _Node(ACTOR, Call(die if len(attempts) == 2 else lambda: "10.0.0.7:1"))

    monkeypatch.setattr(placer, "_start", start)
    run(placer, looks=6, want=1)
    assert len(attempts) == 3 and len(cluster.groups) == 1, "what failed was given back"
    assert [*said[0]] == ["short"] and "the node died" in said[0]["short"]
    assert said[-1] == {"agent": "10.0.0.7:1", "room": 1}


def test_nobody_waits_for_a_node_on_which_the_agent_starts_slowly(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything said to be missing before it has started: training would begin without it."""
    said: list[dict[str, Any]] = []
    placer = Placer(Settings("auto", "token", {"CPU": 1.0}), said.append)
    cluster.room, slow = 2, Call(None)
    quick = Call(lambda: "10.0.0.8:1")
    monkeypatch.setattr(module, "SHORT_AFTER", 0.0)
    monkeypatch.setattr(placer, "_start", lambda name: _Node(ACTOR, slow if name == "node 0" else quick))

    def each_look(number: int) -> None:
        if number == 4:
            assert said == [{"agent": "10.0.0.8:1", "room": 1}]
            slow.answer = lambda: "10.0.0.7:1"

    run(placer, looks=6, want=3, each_look=each_look)
    assert said[1] == {"agent": "10.0.0.7:1", "room": 1}
    assert said[2]["short"].startswith("1 workers have no place") and len(said) == 3
