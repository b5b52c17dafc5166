"""Saved profiles are what speedscope, pprof and flame graph scripts read, and say what the profile says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from penstock.profiling.formats import format_for
from penstock.profiling.formats.folded import folded
from penstock.profiling.formats.pprof import pprof
from penstock.profiling.formats.speedscope import speedscope
from penstock.profiling.profile import Profile

from tests.loader.profiling.trees import MS, Calls, calls, profile_of, seen


def check_speedscope(document: Any) -> None:
    """What speedscope's published schema demands of a file with sampled profiles."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert set(document) <= {"$schema", "shared", "profiles", "name", "activeProfileIndex", "exporter"}
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    for frame in frames:
        assert set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame["name"], str)
        assert isinstance(frame.get("file", ""), str)
        assert isinstance(frame.get("line", 0), int)
    for profile in document["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert profile["type"] == "sampled"
        assert profile["unit"] in {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= index < len(frames) for stack in profile["samples"] for index in stack)
        assert all(weight >= 0 for weight in profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])


@given(calls)
def test_speedscope(some: Calls) -> None:
    profile = profile_of(some)
    document = json.loads(speedscope(profile))
    check_speedscope(document)
    frames = document["shared"]["frames"]
    for sampled, clock in zip(document["profiles"], (0, 1), strict=False):
        told: dict[Any, int] = {}
        for stack, weight in zip(sampled["samples"], sampled["weights"], strict=True):
            phase, *path = (frames[index] for index in stack)
            key = phase["name"], tuple((frame["name"], frame["line"]) for frame in path)
            told[key] = told.get(key, 0) + weight // MS
        assert told == _together(profile, clock)


@given(calls)
def test_pprof(some: Calls) -> None:
    profile = profile_of(some)
    message = _decoded(gzip.decompress(pprof(profile)))
    texts = [text.decode() for text in message[6]]
    functions = {}
    for raw in message.get(5, []):
        fields = _decoded(raw)
        functions[fields[1][0]] = texts[fields[2][0]], texts[fields[4][0]]
    locations = {}
    for raw in message.get(4, []):
        fields = _decoded(raw)
        line = _decoded(fields[4][0])
        locations[fields[1][0]] = functions[line[1][0]][0], line[2][0]
    told: dict[Any, tuple[int, int]] = {}
    for raw in message.get(2, []):
        fields = _decoded(raw)
        labels = [_decoded(label) for label in fields[3]]
        named = {texts[label[1][0]]: label for label in labels}
        path = tuple(locations[number] for number in reversed(_varints(fields[1][0])))
        wall, processor = _varints(fields[2][0])
        told[named["worker"][3][0], texts[named["phase"][2][0]], path] = wall // MS, processor // MS
    assert told == seen(profile.tree)
    types = [_decoded(each) for each in message[1]]
    assert [(texts[each[1][0]], texts[each[2][0]]) for each in types] == [
        ("wall", "nanoseconds"),
        ("cpu", "nanoseconds"),
    ]
    assert message[10] == [10_000_000_000]


@given(calls)
def test_folded(some: Calls) -> None:
    profile = profile_of(some)
    told: dict[Any, int] = {}
    for line in folded(profile).decode().splitlines():
        stack, _, weight = line.rpartition(" ")
        phase, *path = stack.split(";")
        key = phase, tuple(_named(frame) for frame in path)
        told[key] = told.get(key, 0) + int(weight) // 1000
    assert told == _together(profile, 0)


def test_the_ending_of_the_name_says_what_is_saved(tmp_path: Path) -> None:
    profile = profile_of([(0, 0, [(1, 2)], 5, 5)])
    for name, write in (("x.speedscope.json", speedscope), ("x.folded", folded), ("x.pb.gz", pprof)):
        profile.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == write(profile)
    with pytest.raises(ValueError, match=r"'x\.svg'"):
        format_for("x.svg")


def _together(profile: Profile, clock: int) -> dict[Any, int]:
    """(phase, path) → ms, of all workers."""
    found: dict[Any, int] = {}
    for (_, phase, path), weights in seen(profile.tree).items():
        if weights[clock]:
            found[phase, path] = found.get((phase, path), 0) + weights[clock]
    return found


def _named(frame: str) -> tuple[str, int]:
    name, _, place = frame.partition(" (")
    return name, int(place.rstrip(")").rpartition(":")[2])


def _decoded(message: bytes) -> dict[int, list[Any]]:
    """A protocol buffer: field → values, in order."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value: Any
        value, at = _varint(message, at)
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        else:
            assert key & 7 == 0
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _varints(packed: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(packed):
        number, at = _varint(packed, at)
        numbers.append(number)
    return numbers
