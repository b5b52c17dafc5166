"""A profile travels in parts that add up to it, in bounded bytes: what is lost is detail, never time."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.profiling.latest import LatestProfile
from penstock.profiling.parts import PartWriter, allowed, apart
from penstock.profiling.profile import Profile
from penstock.profiling.tree import Tree
from penstock.protocol import Event, ProfilePart

from tests.loader.profiling.trees import Calls, calls, function, grow, seen


def write(writer: PartWriter, seconds: float, *, ended: bool = False) -> ProfilePart:
    """A part as it arrives: through both encodings."""
    part = writer.write("p", 0.0, 0.0, seconds, 50.0, ended=ended)
    event = msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=Event)
    stored = msgspec.json.decode(msgspec.json.encode(event), type=Event)
    assert isinstance(stored, ProfilePart)
    return stored


@given(st.lists(calls, max_size=5))
def test_parts_add_up_to_the_tree(growth: list[Calls]) -> None:
    tree, idle = Tree(), {0: 0}
    writer = PartWriter(tree, idle)
    parts = [write(writer, 0.0)]
    for number, some in enumerate(growth, 1):
        grow(tree, some)
        idle[0] += 1_500_000
        parts.append(write(writer, float(number)))
    profile = Profile.from_parts(parts)
    assert seen(profile.tree) == seen(tree)
    assert profile.idle.get(0, 0) == idle[0] // 1_000_000 * 1_000_000
    assert [part.part for part in parts] == list(range(len(parts)))
    assert profile.seconds == len(growth)


def test_rounding_to_milliseconds_loses_nothing_that_adds_up() -> None:
    tree = Tree()
    node = tree.node(-1, tree.function(function(0)), 1)
    other = tree.node(-1, tree.function(function(1)), 1)
    for each in (node, other):
        tree.add(0, 0, each, 19_600_000, 600_000)
    part = write(PartWriter(tree, {}), 1.0)
    assert sum(part.weights[0].wall_ms) == 39
    assert sum(part.weights[0].processor_ms) == 1


def test_a_minute_of_sixteen_workers_and_countless_stacks_fits_into_300_kb_and_keeps_its_time() -> None:
    """Half of the looks are at three hot stacks, the rest at 20,000 others, 14 frames deep."""
    chance = random.Random(0)
    tree = Tree()
    writer = PartWriter(tree, {})
    functions = [tree.function(function(number)) for number in range(300)]
    ways = [[(chance.choice(functions), chance.randrange(1, 400)) for _ in range(14)] for _ in range(20_000)]
    parts, told = [], 0.0
    for second in range(1, 61):
        for worker in range(16):
            for _ in range(50):
                way = ways[chance.randrange(3)] if chance.random() < 0.5 else chance.choice(ways)
                node = -1
                for called, line in way:
                    node = tree.node(node, called, line)
                tree.add(worker, 0, node, 20_000_000, 10_000_000)
        if second - told >= apart(told) or second == 60:
            told = float(second)
            parts.append(write(writer, told, ended=second == 60))
    stored = sum(len(msgspec.json.encode(part)) for part in parts)
    assert stored <= allowed(60) == 300_000
    profile = Profile.from_parts(parts)
    assert profile.total() == pytest.approx(16 * 60)
    assert profile.total("processor") == pytest.approx(16 * 30)
    hot = [row for row in profile.lines() if row.own >= 0.1 * 16 * 60]
    assert len(hot) == 3


def test_parts_with_one_missing_are_refused() -> None:
    tree = Tree()
    writer = PartWriter(tree, {})
    grow(tree, [(0, 0, [(1, 1)], 5, 5)])
    write(writer, 1.0)
    grow(tree, [(0, 0, [(1, 1)], 5, 5)])
    with pytest.raises(ValueError, match="missing"):
        Profile.from_parts([write(writer, 2.0)])
    with pytest.raises(ValueError, match="at least one"):
        Profile.from_parts([])


def test_the_latest_profile_follows_its_parts_and_gives_up_when_one_is_missing() -> None:
    tree, latest = Tree(), LatestProfile()
    writer = PartWriter(tree, {})
    parts = []
    for number in range(3):
        grow(tree, [(0, 0, [(2, number + 1)], 500, 5)])
        parts.append(write(writer, float(number)))
    latest.note(parts[1])
    assert latest.profile is None
    for count, part in enumerate(parts, 1):
        latest.note(part)
        assert latest.profile is not None
        assert latest.profile.total() == 0.5 * count
    latest.note(parts[0])
    latest.note(parts[2])
    assert latest.profile is None
