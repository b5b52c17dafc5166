"""The placer: the process beside training in which Ray lives. Never in training: Ray ends its process with the head.

It reserves a place for every worker (a placement group of one bundle), has one agent started on each node that has
some, all side by side, and tells training their addresses. Lines of JSON come on standard input and go to what was
standard output. When the input ends, so does the placer, and Ray then ends its actors and gives the places back.

What it is told: first `Settings`, then how many places there should be (`{"want": 3}`), or how many of each agent's
are used, and the others may go (`{"used": {"10.0.0.7:4711": 2}}`). What it says: `ready`, or `failed` and why;
`agent`, with its address and how many places it has, whenever that changes; `gone`, an agent has ended; `short`, what
is missing.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

LOOK = 0.2
"""Seconds between two looks at what has changed."""
SHORT_AFTER = 3.0
"""Seconds after which a place that is not to be had is said to be missing;"""
TO_RESERVE = 15.0
"""or so many, if there seems to be room for it: Ray may just be slow."""
TO_ANSWER = 5.0
"""Seconds that the cluster's head has to answer."""
AGAIN = 5.0
"""Seconds after which a place is asked for again on which no agent could be started."""
TO_END = 3.0
"""Seconds for giving everything back."""
TO_START = 120.0
"""Seconds that an agent has to start: it takes 5, and many times that on a machine that is busy."""


@dataclass
class Settings:
    """What is asked of Ray for each worker, and how it is reached."""

    address: str
    token: str
    bundle: dict[str, float]
    """What each worker needs, as Ray names it."""
    runtime_env: dict[str, Any] | None = None


@dataclass
class _Node:
    actor: Any
    asked: Any
    """Of the actor's call that returns its agent's address."""
    since: float = field(default_factory=time.monotonic)
    """When the actor was asked for, s of the monotonic clock."""
    address: str = ""
    """Of the agent; empty: it is still to start."""
    ended: Any = None
    """Of the actor's call that returns when its agent has ended."""
    groups: list[Any] = field(default_factory=list)


class Placer:
    """Everything is called in the main thread."""

    def __init__(self, settings: Settings, say: Any) -> None:
        import ray

        self._ray: Any = ray
        self._settings = settings
        self._say = say
        self._nodes: dict[str, _Node] = {}
        self._pending: list[Any] = []
        """Reservations that Ray has not made yet."""
        self._since = time.monotonic()
        """Since when none was made although some are pending."""
        self._short = self._said_short = ""
        """What is missing, and what was last said of that."""
        self._owed = 0
        """Places that were reserved and given back, because no agent could be started there."""
        self._again_at = 0.0
        """When they are asked for again, s of the monotonic clock."""
        _check_reachable(settings.address)
        ray.init(address=settings.address, log_to_driver=False, configure_logging=False, namespace="penstock")

    def run(self, orders: queue.Queue[dict[str, Any] | None]) -> None:
        """Serve until training is gone."""
        while True:
            try:
                order = orders.get(timeout=LOOK)
            except queue.Empty:
                order = {}
            if order is None:
                return
            if "want" in order:
                self._want(int(order["want"]))
            if "used" in order:
                self._release(order["used"])
            self._look_at_starts()
            self._look_at_agents()
            if self._owed and time.monotonic() >= self._again_at:
                self._want(self._reserved() + self._owed)
            self._look_at_reservations()
            self._say_short()

    def end(self) -> None:
        """Give everything back, now: Ray would do so a little later."""
        self._release({})
        for node in self._nodes.values():
            self._ray.kill(node.actor)
        self._ray.shutdown()

    def _want(self, places: int) -> None:
        missing = places - self._reserved()
        self._owed = 0
        if missing > 0 and not self._pending:
            self._since = time.monotonic()
        for _ in range(missing):
            self._pending.append(self._ray.util.placement_group([self._settings.bundle], strategy="SPREAD"))
        self._short = self._said_short = ""

    def _reserved(self) -> int:
        """Places that Ray has reserved, or was asked to."""
        return len(self._pending) + sum(len(node.groups) for node in self._nodes.values())

    def _release(self, used: dict[str, int]) -> None:
        self._owed = 0
        for group in self._pending:
            self._ray.util.remove_placement_group(group)
        self._pending.clear()
        for node in self._nodes.values():
            while len(node.groups) > used.get(node.address, 0):
                self._ray.util.remove_placement_group(node.groups.pop())
            self._tell(node)

    def _look_at_reservations(self) -> None:
        if not self._pending:
            return
        table = self._ray.util.placement_group_table()
        made = [(group, about) for group in self._pending if (about := table.get(group.id.hex())) is not None]
        made = [(group, about) for group, about in made if about["state"] == "CREATED"]
        if made:
            self._since, self._short = time.monotonic(), ""
        for group, about in made:
            self._pending.remove(group)
            self._settle(group, next(iter(about["bundles_to_node_id"].values())))
        if not made and (waited := time.monotonic() - self._since) > SHORT_AFTER:
            left = self._ray.available_resources()
            spare = {name: left.get(name, 0.0) for name in self._settings.bundle}
            if waited > TO_RESERVE or any(spare[name] < needed for name, needed in self._settings.bundle.items()):
                self._short = (
                    f"{len(self._pending)} workers have no place in the Ray cluster: each needs "
                    f"{_words(self._settings.bundle)}, and {_words(spare)} is left on "
                    f"{len([node for node in self._ray.nodes() if node['Alive']])} nodes"
                )

    def _settle(self, group: Any, name: str) -> None:
        """A place was reserved on this node."""
        node = self._nodes.get(name)
        if node is None:
            try:
                node = self._nodes[name] = self._start(name)
            except Exception as error:  # whatever Ray raises for a node that dies, or lacks what is needed
                self._cannot_start(name, [group], error)
                return
        node.groups.append(group)
        self._tell(node)

    def _cannot_start(self, name: str, groups: list[Any], why: Exception) -> None:
        """Places of which nothing came are given back, and asked for again later."""
        for group in groups:
            self._ray.util.remove_placement_group(group)
        self._owed += len(groups)
        self._again_at = time.monotonic() + AGAIN
        self._short = f"no agent could be started on the Ray node {name}: {why}"

    def _start(self, name: str) -> _Node:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from .place import Place

        host = next(str(node["NodeManagerAddress"]) for node in self._ray.nodes() if node["NodeID"] == name)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 2}
        if self._settings.runtime_env is not None:
            options["runtime_env"] = self._settings.runtime_env
        strategy = NodeAffinitySchedulingStrategy(name, soft=False)
        actor = self._ray.remote(Place).options(scheduling_strategy=strategy, **options)
        place = actor.remote(self._settings.token, host)
        return _Node(place, place.address.remote())

    def _look_at_starts(self) -> None:
        """Those that have started since are told of."""
        for name, node in [(name, node) for name, node in self._nodes.items() if not _has_started(node)]:
            try:
                if self._ray.wait([node.asked], timeout=0)[0]:
                    node.address = str(self._ray.get(node.asked))
                    node.ended = node.actor.wait.remote()
                    self._tell(node)
                elif time.monotonic() - node.since > TO_START:
                    self._ray.kill(node.actor)
                    raise TimeoutError(f"it takes longer than {TO_START:g} s")
            except Exception as error:  # the same as where it was asked for
                del self._nodes[name]
                self._cannot_start(name, node.groups, error)

    def _look_at_agents(self) -> None:
        """Places of an agent that has ended are asked for again, wherever Ray finds them."""
        names = {node.ended: name for name, node in self._nodes.items() if _has_started(node)}
        if not names:
            return
        for ended in self._ray.wait(list(names), num_returns=len(names), timeout=0)[0]:
            node = self._nodes.pop(names[ended])
            try:
                why = f"it ended with exit code {self._ray.get(ended)}"
            except Exception as error:  # the actor, its worker process, or its node died
                why = str(error).splitlines()[0]
            self._say({"gone": node.address, "why": why})
            for group in node.groups:
                self._ray.util.remove_placement_group(group)
            self._want(self._reserved() + self._owed + len(node.groups))

    def _tell(self, node: _Node) -> None:
        if _has_started(node):
            self._say({"agent": node.address, "room": len(node.groups)})

    def _say_short(self) -> None:
        """Once, and when nobody is about to start any more: training goes on with what there is then."""
        if self._short and self._short != self._said_short and all(map(_has_started, self._nodes.values())):
            self._said_short = self._short
            self._say({"short": self._short})


def _has_started(node: _Node) -> bool:
    return bool(node.address)


def _check_reachable(address: str) -> None:
    """Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=TO_ANSWER).close()


def _words(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def main() -> int:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed here

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=output, flush=True)

    settings = Settings(**json.loads(sys.stdin.readline()))
    try:
        placer = Placer(settings, say)
    except Exception as error:  # Ray is not there, or not to be reached
        say({"failed": f"{type(error).__name__}: {error}"})
        return 1
    say({"ready": True})
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        orders.put(None)

    threading.Thread(target=listen, daemon=True).start()
    placer.run(orders)
    sys.stdout.flush()
    threading.Timer(TO_END, os._exit, [0]).start()  # a head that is gone is not waited for
    placer.end()
    os._exit(0)  # Ray's own exit handlers have nothing more to do


if __name__ == "__main__":
    sys.exit(main())
