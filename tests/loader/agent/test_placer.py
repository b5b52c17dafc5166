"""The placer where a node fails just as an agent is started there, which no cluster does on demand."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.agent import placer as module
from penstock.agent.placer import Placer, Settings


class Cluster:
    """What the placer asks of Ray: every reservation is made at once, on one node."""

    def __init__(self) -> None:
        self.groups: list[Any] = []
        self.util = SimpleNamespace(
            placement_group=self._reserve,
            remove_placement_group=self.groups.remove,
            placement_group_table=lambda: {
                group.id.hex(): {"state": "CREATED", "bundles_to_node_id": {0: "node"}} for group in self.groups
            },
        )

    def init(self, **_: object) -> None: ...

    def _reserve(self, *_: object, **__: object) -> Any:
        group = SimpleNamespace(id=len(self.groups).to_bytes(4, "big"))
        self.groups.append(group)
        return group


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(module, "AGAIN", 0.0)
    return cluster


def test_a_place_on_which_no_agent_could_be_started_is_asked_for_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    placer = Placer(Settings("auto", "token", {"CPU": 1.0}), said.append)
    attempts: list[str] = []

    def start(name: str) -> Any:
        attempts.append(name)
        if len(attempts) < 3:
            raise RuntimeError("the node died")
        return SimpleNamespace(address="10.0.0.7:1", groups=[])

    monkeypatch.setattr(placer, "_start", start)
    monkeypatch.setattr(placer, "_look_at_agents", lambda: None)
    orders: list[dict[str, Any] | None] = [{"want": 1}, {}, {}, {}, None]
    placer.run(SimpleNamespace(get=lambda timeout: orders.pop(0)))  # type: ignore[arg-type]  # noqa: ARG005
    assert len(attempts) == 3 and len(cluster.groups) == 1, "what failed was given back"
    assert [*said[0]] == ["short"] and "the node died" in said[0]["short"]
    assert said[-1] == {"agent": "10.0.0.7:1", "room": 1}
