"""Call trees for tests: drawn by Hypothesis, or with costs that are known."""

from __future__ import annotations

from hypothesis import strategies as st
from penstock.profiling.profile import Profile
from penstock.profiling.stacks import Function
from penstock.profiling.tree import PHASES, ROOT, Tree

MS = 1_000_000

Calls = list[tuple[int, int, list[tuple[int, int]], int, int]]
"""(worker, phase, [(function, line), …], wall ms, processor ms)."""

calls: st.SearchStrategy[Calls] = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, len(PHASES) - 1),
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=6),
        st.integers(1, 500),
        st.integers(0, 500),
    ),
    max_size=40,
)


def function(number: int) -> Function:
    return Function(f"f{number}", f"/home/me/part{number}.py", 10 * number, number % 2 == 0)


def grow(tree: Tree, some: Calls) -> None:
    for worker, phase, path, wall, processor in some:
        node = ROOT
        for number, line in path:
            node = tree.node(node, tree.function(function(number)), line)
        tree.add(worker, phase, node, wall * MS, processor * MS)


def profile_of(some: Calls, seconds: float = 10.0) -> Profile:
    profile = Profile("p", 1_789_000_000.0, 50.0)
    profile.seconds = seconds
    grow(profile.tree, some)
    return profile


Seen = dict[tuple[int, str, tuple[tuple[str, int], ...]], tuple[int, int]]


def seen(tree: Tree) -> Seen:
    """(worker, phase, path) → ms, whatever numbers the tree gave."""
    found: Seen = {}
    for (worker, phase, node), (wall, processor) in tree.weights.items():
        path = tuple((tree.functions[each.function].name, each.line) for each in tree.path(node))
        key = worker, PHASES[phase], path
        before = found.get(key, (0, 0))
        found[key] = before[0] + wall // MS, before[1] + processor // MS
    return found
