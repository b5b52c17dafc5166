"""The call tree of a profile: every way by which a line was reached, with the time that was seen there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, get_args

from .sampler import Chunk
from .stacks import Function

Phase = Literal["fetch", "collate", "send"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""What a worker does with a batch: get its samples, make one of them, put it where training finds it."""
Clock = Literal["wall", "processor"]
"""wall: time that passed. processor: time in which the thread ran on a processor."""

ROOT = -1
MOST_NODES = 100_000
"""In a tree; what would be deeper then is charged to the caller."""


class Node(NamedTuple):
    """One call in the tree: a function, called from the parent's line."""

    parent: int
    """The caller; ROOT: none."""
    function: int
    """Its number in `Tree.functions`."""
    line: int
    """The line of the function at which it was seen."""


class Tree:
    """A call tree, with the time that was seen at each of its nodes."""

    def __init__(self) -> None:
        self.functions: list[Function] = []
        self.nodes: list[Node] = []
        """Every node comes after its parent."""
        self.weights: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(worker, phase, node) → ns that were seen just there, by wall and by processor time. A phase is its number in
        `PHASES`; at node ROOT is what was seen in our own code only."""
        self._functions: dict[Function, int] = {}
        self._nodes: dict[Node, int] = {}

    def function(self, function: Function) -> int:
        """The function's number."""
        number = self._functions.setdefault(function, len(self.functions))
        if number == len(self.functions):
            self.functions.append(function)
        return number

    def node(self, parent: int, function: int, line: int) -> int:
        """The number of a call from there."""
        node = Node(parent, function, line)
        if len(self.nodes) >= MOST_NODES and node not in self._nodes:
            return parent
        number = self._nodes.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number

    def add(self, worker: int, phase: int, node: int, wall: int, processor: int) -> None:
        key = worker, phase, node
        before = self.weights.get(key, (0, 0))
        self.weights[key] = before[0] + wall, before[1] + processor

    def own(self, clock: Clock = "wall", phase: Phase | None = None, worker: int | None = None) -> dict[int, int]:
        """Node → ns seen just there, of all phases and workers or of one."""
        which = 0 if clock == "wall" else 1
        wanted = None if phase is None else PHASES.index(phase)
        chosen: dict[int, int] = {}
        for (of, during, node), weights in self.weights.items():
            if (worker is None or of == worker) and (wanted is None or during == wanted) and weights[which]:
                chosen[node] = chosen.get(node, 0) + weights[which]
        return chosen

    def path(self, node: int) -> list[Node]:
        """From the root to this node."""
        nodes = []
        while node != ROOT:
            nodes.append(self.nodes[node])
            node = nodes[-1].parent
        return nodes[::-1]

    def ancestors(self, node: int) -> Iterator[int]:
        """The node itself, its caller, and so on."""
        while node != ROOT:
            yield node
            node = self.nodes[node].parent

    def workers(self) -> list[int]:
        return sorted({worker for worker, _, _ in self.weights})


class Intake:
    """What one sampler sends of one worker, on its way into a tree: numbers there are not numbers here."""

    def __init__(self, tree: Tree, idle: dict[int, int], phases: dict[int, int]) -> None:
        """`idle`: worker → ns without work, added to. `phases`: state on the board → phase."""
        self._tree = tree
        self._idle = idle
        self._phases = phases
        self._functions: list[int] = []
        self._frames: list[tuple[int, int]] = []
        self._stacks: list[int] = []

    def take(self, chunk: Chunk) -> Iterable[tuple[int, int, int]]:
        """Add a chunk. Returns (moment, node, ns) of every look at a worker that had something to do."""
        tree = self._tree
        self._functions += map(tree.function, chunk.news.functions)
        self._frames += [(self._functions[function], line) for function, line in chunk.news.frames]
        self._stacks += map(self._leaf, chunk.news.stacks)
        seen = []
        for look in chunk.rows():
            phase = self._phases.get(look.state)
            if phase is None or look.stack < 0:
                self._idle[chunk.worker] = self._idle.get(chunk.worker, 0) + look.wall
                continue
            node = self._stacks[look.stack]
            tree.add(chunk.worker, phase, node, look.wall, look.processor)
            seen.append((look.moment, node, look.wall))
        return seen

    def _leaf(self, stack: tuple[int, ...]) -> int:
        node = ROOT
        for frame in stack:
            node = self._tree.node(node, *self._frames[frame])
        return node
