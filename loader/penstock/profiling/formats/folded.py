"""Folded stacks, a line each: `phase;caller;callee µs`, as flamegraph.pl and others read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..tree import PHASES, Node, Tree

if TYPE_CHECKING:
    from ..profile import Profile


def folded(profile: Profile) -> bytes:
    """By wall time, all workers together."""
    tree = profile.tree
    lines: dict[str, int] = {}
    for (_, phase, node), (wall, _) in tree.weights.items():
        stack = ";".join([PHASES[phase], *(_name(tree, each) for each in tree.path(node))])
        lines[stack] = lines.get(stack, 0) + wall
    return "".join(f"{stack} {wall // 1000}\n" for stack, wall in sorted(lines.items())).encode()


def _name(tree: Tree, node: Node) -> str:
    function = tree.functions[node.function]
    return f"{function.name} ({function.file}:{node.line})".replace(";", ":").replace("\n", " ")
