"""speedscope's own JSON: stacks by wall and by processor time, of all workers and of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..tree import PHASES, Tree

if TYPE_CHECKING:
    from ..profile import Profile

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(profile: Profile) -> bytes:
    tree = profile.tree
    frames = _Frames(tree)
    workers = tree.workers()
    sampled = [
        _sampled(frames, tree, "all workers, wall time", 0),
        _sampled(frames, tree, "all workers, processor time", 1),
    ]
    if len(workers) > 1:
        for worker in workers:
            sampled.append(_sampled(frames, tree, f"worker {worker}, wall time", 0, worker))
            sampled.append(_sampled(frames, tree, f"worker {worker}, processor time", 1, worker))
    document = {
        "$schema": SCHEMA,
        "name": profile.title,
        "exporter": "penstock",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.described},
        "profiles": sampled,
    }
    return msgspec.json.encode(document)


class _Frames:
    """Phases and lines, each with its number."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.described: list[dict[str, str | int]] = [{"name": phase} for phase in PHASES]
        self._numbers: dict[tuple[int, int], int] = {}

    def number(self, function: int, line: int) -> int:
        place = function, line
        if place not in self._numbers:
            self._numbers[place] = len(self.described)
            named = self._tree.functions[function]
            self.described.append({"name": named.name, "file": named.file, "line": line})
        return self._numbers[place]


def _sampled(frames: _Frames, tree: Tree, name: str, clock: int, worker: int | None = None) -> dict[str, object]:
    stacks: dict[tuple[int, int], int] = {}
    for (of, phase, node), weights in tree.weights.items():
        if weights[clock] and (worker is None or of == worker):
            stacks[phase, node] = stacks.get((phase, node), 0) + weights[clock]
    samples = [
        [phase, *(frames.number(each.function, each.line) for each in tree.path(node))] for phase, node in stacks
    ]
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(stacks.values()),
        "samples": samples,
        "weights": list(stacks.values()),
    }
