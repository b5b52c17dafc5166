"""A Ray cluster of several raylets on this machine, for tests and benchmarks. To be run in `apart` only.

The head has no processors, so that workers are on another node than training: their batches cross from one to the
other, as between machines.
"""

from __future__ import annotations

import os
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.patience import PATIENCE

STORE = 256 << 20
"""Bytes of each node's object store, if nothing else is asked for."""


class RayCluster:
    """A head and some nodes. It ends with the namespace of processes that it is in, if not by `end`."""

    def __init__(self, nodes: int, processors: int, store: int = STORE) -> None:
        """`processors`: that each node says it has. `store`: bytes of each one's object store."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Processes that nobody needs yet take time from those who are waited for.
        os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(shutdown_at_exit=False)
        # None is waited for by itself: Ray does so for 30 s only, which is little on a busy machine.
        self._add(0, store, include_dashboard=False, no_monitor=True)
        self.nodes = [self._add(processors, store) for _ in range(nodes)]
        self._cluster.wait_for_nodes(timeout=PATIENCE)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def kill_head(self) -> None:
        """The process that knows of all nodes."""
        head = _process(self._cluster.head_node, "gcs_server")
        head.kill()
        head.wait()

    def raylet(self, node: Any) -> psutil.Process:
        """A node's own process. All that the node has ends with it, once it is reaped."""
        return _process(node, "raylet")

    def lose(self, node: Any) -> None:
        """Kill and reap all of a node's own processes."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        """Kill and reap everything."""
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def _add(self, processors: int, store: int, **options: Any) -> Any:
        return self._cluster.add_node(wait=False, num_cpus=processors, object_store_memory=store, **options)


def _process(node: Any, kind: str) -> psutil.Process:
    return psutil.Process(node.all_processes[kind][0].process.pid)
