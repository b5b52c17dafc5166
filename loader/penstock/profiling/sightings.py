"""At which stack a worker was between two moments: for stalls and slow samples, while a profile is taken.

What samplers see comes up to half a second late, so whoever asks is told later, by the profile's own thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .tree import ROOT, Tree

KEPT = 3000
"""Looks at each worker that are kept: a minute at 50 Hz."""
OPEN = 1024
"""Questions that may wait for an answer; the oldest is forgotten."""


class Question(NamedTuple):
    """Somebody wants to know where a worker was seen in a stretch of time."""

    worker: int
    began: int
    """ns of the monotonic clock."""
    ended: int
    tell: Callable[[str], None]


class Sightings:
    """Looks of the last minute, and who wants to know about them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._looks: dict[int, deque[tuple[int, int, int]]] = {}
        """Worker → (moment, node, ns for which the look stands)."""
        self._until: dict[int, int] = {}
        """Worker → moment of the last look at it."""
        self._questions: deque[Question] = deque(maxlen=OPEN)

    def ask(self, worker: int, began: int, ended: int, tell: Callable[[str], None]) -> None:
        """Have `tell` called, soon, with the stack at which the worker was then; not at all if none was seen.

        May be called from any thread, and returns at once.
        """
        self._questions.append(Question(worker, began, ended, tell))

    def note(self, worker: int, until: int, seen: Iterable[tuple[int, int, int]]) -> None:
        """All looks up to this moment have come; these were at a worker that had something to do."""
        self._looks.setdefault(worker, deque(maxlen=KEPT)).extend(seen)
        self._until[worker] = max(until, self._until.get(worker, 0))

    def answer(self, *, last: bool = False) -> None:
        """Answer what can be answered; the last time: all."""
        for _ in range(len(self._questions)):
            question = self._questions.popleft()
            if not last and self._until.get(question.worker, 0) < question.ended:
                self._questions.append(question)
                continue
            stack = self.stack(question.worker, question.began, question.ended)
            if stack:
                question.tell(stack)

    def stack(self, worker: int, began: int, ended: int) -> str:
        """The innermost call in which at least half of that time was seen, and its callers; empty: nothing was."""
        totals: dict[int, int] = {}
        whole = 0
        for moment, leaf, weight in self._looks.get(worker, ()):
            if began <= moment <= ended:
                whole += weight
                for node in self._tree.ancestors(leaf):
                    totals[node] = totals.get(node, 0) + weight
        # Those with half of it are one way down; every node comes after its caller.
        node = max((node for node, total in totals.items() if 2 * total >= whole), default=ROOT)
        calls = [self._tree.nodes[each] for each in self._tree.ancestors(node)]
        functions = [self._tree.functions[call.function] for call in calls]
        return "\n".join(
            f'  File "{function.file}", line {call.line} in {function.name}'
            for call, function in zip(calls, functions, strict=True)
        )
