"""What functions and lines cost, read off a call tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from .stacks import Function
from .tree import ROOT, Clock, Node, Phase, Tree

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one function, or one line of it, costs."""

    function: str
    """Its qualified name."""
    file: str
    line: int
    """The line; of a whole function, the first of its definition."""
    user: bool
    """It is the user's own code, and not a library's."""
    own: float
    """Seconds in which it was at work itself."""
    total: float
    """Seconds in which it, or what it had called, was at work."""


@dataclass(frozen=True, slots=True)
class Hottest:
    """The function of the user's that costs most, with the libraries that it calls."""

    function: str
    """Its qualified name."""
    file: str
    line: int
    """Its most costly line."""
    share: float
    """Its part, 0 to 1, of the time in which workers make batches."""
    line_share: float
    """That line's part of it."""
    clock: Clock


def by_function(tree: Tree, clock: Clock, phase: Phase | None, worker: int | None) -> list[Cost]:
    """All functions, the one with the most own time first."""
    rows = _sum_up(tree, tree.own(clock, phase, worker), lambda node: node.function)
    costs = []
    for number, (own, total) in rows.items():
        function = tree.functions[number]
        costs.append(Cost(function.name, function.file, function.line, function.user, own / 1e9, total / 1e9))
    return sorted(costs, key=_order)


def by_line(tree: Tree, clock: Clock, phase: Phase | None, worker: int | None) -> list[Cost]:
    """All lines, the one with the most own time first."""
    rows = _sum_up(tree, tree.own(clock, phase, worker), lambda node: (node.function, node.line))
    costs = []
    for (number, line), (own, total) in rows.items():
        function = tree.functions[number]
        costs.append(Cost(function.name, function.file, line, function.user, own / 1e9, total / 1e9))
    return sorted(costs, key=_order)


def hottest(tree: Tree, clock: Clock = "wall", phase: Phase | None = None) -> Hottest | None:
    """Where the user could make samples cheaper. None: nothing was seen in code of the user's.

    Time in a library is charged to the line of the user's that called it: that is the one to change.
    """
    own = tree.own(clock, phase)
    functions: dict[int, int] = {}
    lines: dict[tuple[int, int], int] = {}
    for leaf, weight in own.items():
        node = next((tree.nodes[each] for each in tree.ancestors(leaf) if _users(tree, tree.nodes[each])), None)
        if node is not None:
            functions[node.function] = functions.get(node.function, 0) + weight
            place = node.function, node.line
            lines[place] = lines.get(place, 0) + weight
    if not functions:
        return None
    total = sum(own.values())
    number = max(functions, key=functions.__getitem__)
    _, line = max((place for place in lines if place[0] == number), key=lines.__getitem__)
    function: Function = tree.functions[number]
    share, line_share = functions[number] / total, lines[number, line] / total
    return Hottest(function.name, function.file, line, share, line_share, clock)


def _users(tree: Tree, node: Node) -> bool:
    return tree.functions[node.function].user


def _order(cost: Cost) -> tuple[float, float, str, int]:
    return -cost.own, -cost.total, cost.function, cost.line


def _sum_up(tree: Tree, own: dict[int, int], key: Callable[[Node], Key]) -> dict[Key, tuple[int, int]]:
    """Key → ns of its own, ns in all. What calls itself counts once."""
    rows: dict[Key, tuple[int, int]] = {}
    for leaf, weight in own.items():
        if leaf == ROOT:
            continue
        mine = key(tree.nodes[leaf])
        for each in {key(tree.nodes[ancestor]) for ancestor in tree.ancestors(leaf)}:
            before = rows.get(each, (0, 0))
            rows[each] = before[0] + (weight if each == mine else 0), before[1] + weight
    return rows
