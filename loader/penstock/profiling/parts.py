"""A profile in parts, as it travels and is stored: each part says what was not said before.

What a profile may take is bounded, however many workers and stacks there are: `allowed` says how many bytes by when. A
part that would be larger is made to fit by charging the stacks that were seen least to their callers, from the leaf
on; what is lost is detail, never time. A part comes every second at first and less often as the profile goes on, so
that what is seen again and again is told less often.
"""

from __future__ import annotations

import msgspec

from ..protocol import ProfileFunction, ProfilePart, ProfileWeights
from .stacks import Function
from .tree import PHASES, ROOT, Tree

FIRST_BYTES = 30_000
BYTES_A_SECOND = 4_500
LONG = 60.0
"""Seconds after which a profile goes on with less:"""
LATER_BYTES_A_SECOND = 200
MOST_NODES = 4_000
"""In one part."""

Weights = dict[tuple[int, int, int], tuple[int, int]]


def allowed(seconds: float) -> int:
    """Bytes, as JSON, that the parts of a profile may have had after so long: 300 KB in its first minute."""
    return int(
        FIRST_BYTES + BYTES_A_SECOND * min(seconds, LONG) + LATER_BYTES_A_SECOND * max(seconds - LONG, 0.0)
    )  # fmt: skip


def apart(seconds: float) -> float:
    """How many seconds after the last part the next one is due, when the profile has lasted so long."""
    return min(max(1.0, seconds / 8), 60.0)


class PartWriter:
    """Writes the parts of one growing tree."""

    def __init__(self, tree: Tree, idle: dict[int, int]) -> None:
        self._tree = tree
        self._idle = idle
        self._told: Weights = {}
        self._told_idle: dict[int, int] = {}
        self._functions: dict[int, int] = {}
        """Function in the tree → its number in the parts."""
        self._nodes: dict[int, int] = {ROOT: 0}
        """Node in the tree → its number in the parts, where 0 is the root."""
        self._number = 0
        self._spent = 0

    def write(self, profile: str, at: float, began: float, seconds: float, rate: float, *, ended: bool) -> ProfilePart:
        """The next part: what was added to the tree since the last one."""
        weights = self._since()
        room = allowed(seconds) - self._spent
        for most in (len(weights), 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4):
            if most > len(weights):
                continue
            part, functions, nodes = self._part(weights, most)
            part = msgspec.structs.replace(
                part, profile=profile, at=at, began=began, seconds=seconds, rate=rate, part=self._number, ended=ended
            )
            size = len(msgspec.json.encode(part))
            if size <= room and len(part.nodes) <= 3 * MOST_NODES:
                break
        self._spent += size
        self._number += 1
        self._functions.update(functions)
        self._nodes.update(nodes)
        self._told = dict(self._tree.weights)
        self._told_idle = dict(self._idle)
        return part

    def _since(self) -> Weights:
        weights: Weights = {}
        for key, (wall, processor) in list(self._tree.weights.items()):
            before = self._told.get(key, (0, 0))
            if (wall, processor) != before:
                weights[key] = wall - before[0], processor - before[1]
        return weights

    def _part(self, weights: Weights, most: int) -> tuple[ProfilePart, dict[int, int], dict[int, int]]:
        """With so many weights at the most; and the numbers that are new in it."""
        functions, nodes = _Numbers(self._functions), _Numbers(self._nodes)
        told_functions: list[ProfileFunction] = []
        told_nodes: list[int] = []
        groups: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        for (worker, phase, node), weight in self._merged(weights, most).items():
            for each in reversed(list(self._tree.ancestors(node))):
                if each in nodes:
                    continue
                parent, function, line = self._tree.nodes[each]
                if function not in functions:
                    functions.add(function)
                    told_functions.append(ProfileFunction(*self._tree.functions[function]))
                told_nodes += (nodes[parent], functions[function], line)
                nodes.add(each)
            groups.setdefault((worker, phase), {})[nodes[node]] = weight
        told = [_group(worker, PHASES[phase], group) for (worker, phase), group in groups.items()]
        idle = []
        for worker, nanoseconds in self._idle.items():
            before = self._told_idle.get(worker, 0)
            idle.append((worker, nanoseconds // 1_000_000 - before // 1_000_000))
        part = ProfilePart(0.0, "", 0, functions=told_functions, nodes=told_nodes, weights=told, idle_ms=idle)
        return part, functions.new, nodes.new

    def _merged(self, weights: Weights, most: int) -> Weights:
        """At most so many, by charging the least to their callers; beyond that only one for each worker and phase."""
        kept = dict(weights)
        while len(kept) > most:
            least = sorted(kept, key=lambda key: kept[key][0])[: max(len(kept) - most, 1)]
            stuck = True
            for key in least:
                worker, phase, node = key
                if node == ROOT:
                    continue
                stuck = False
                wall, processor = kept.pop(key)
                caller = worker, phase, self._tree.nodes[node].parent
                before = kept.get(caller, (0, 0))
                kept[caller] = before[0] + wall, before[1] + processor
            if stuck:
                break
        return kept


class _Numbers:
    """Numbers that were given before, and those that are new, which go on from there."""

    def __init__(self, before: dict[int, int]) -> None:
        self._before = before
        self.new: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._before or key in self.new

    def __getitem__(self, key: int) -> int:
        return self._before[key] if key in self._before else self.new[key]

    def add(self, key: int) -> None:
        self.new[key] = len(self._before) + len(self.new)


def _group(worker: int, phase: str, group: dict[int, tuple[int, int]]) -> ProfileWeights:
    """In ms; what is lost by rounding one is added to the next, so that sums are right."""
    wall_ms, processor_ms = [], []
    wall_rest = processor_rest = 0
    for wall, processor in group.values():
        ms, wall_rest = divmod(wall + wall_rest, 1_000_000)
        wall_ms.append(ms)
        ms, processor_rest = divmod(processor + processor_rest, 1_000_000)
        processor_ms.append(ms)
    return ProfileWeights(worker, phase, list(group), wall_ms, processor_ms)  # type: ignore[arg-type]


class PartReader:
    """Puts parts, in order, together to a tree."""

    def __init__(self, tree: Tree, idle: dict[int, int]) -> None:
        self._tree = tree
        self._idle = idle
        self._functions: list[int] = []
        self._nodes: list[int] = [ROOT]
        self._next = 0

    def add(self, part: ProfilePart) -> None:
        """Raises ValueError if it is not the next one, or refers to what was never said."""
        tree = self._tree
        if part.part != self._next:
            raise ValueError(f"part {part.part} of profile {part.profile!r} follows one that is missing")
        self._next += 1
        try:
            for name, file, line, user in map(msgspec.structs.astuple, part.functions):
                self._functions.append(tree.function(Function(name, file, line, user)))
            for parent, function, line in zip(*[iter(part.nodes)] * 3, strict=True):
                self._nodes.append(tree.node(self._nodes[parent], self._functions[function], line))
            for group in part.weights:
                phase = PHASES.index(group.phase)
                for node, wall, processor in zip(group.nodes, group.wall_ms, group.processor_ms, strict=True):
                    tree.add(group.worker, phase, self._nodes[node], wall * 1_000_000, processor * 1_000_000)
        except IndexError:
            raise ValueError(f"part {part.part} of profile {part.profile!r} is not understood") from None
        for worker, ms in part.idle_ms:
            self._idle[worker] = self._idle.get(worker, 0) + ms * 1_000_000
