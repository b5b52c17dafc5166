"""pprof's protocol buffer, gzipped. Written by hand: it has few fields, and they never change their numbers."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..tree import PHASES, Tree

if TYPE_CHECKING:
    from ..profile import Profile


def pprof(profile: Profile) -> bytes:
    """One sample for every stack of a worker in a phase, which are its labels."""
    tree, texts = profile.tree, _Texts()
    locations = _Locations(tree)
    samples = b""
    for (worker, phase, node), (wall, processor) in tree.weights.items():
        path = [locations.number(each.function, each.line) for each in reversed(tree.path(node))]
        labels = _message(3, _int(1, texts.number("phase")) + _int(2, texts.number(PHASES[phase])))
        labels += _message(3, _int(1, texts.number("worker")) + _int(3, worker))
        samples += _message(2, _packed(1, path) + _packed(2, (wall, processor)) + labels)
    nanoseconds = texts.number("nanoseconds")
    types = [_int(1, texts.number(name)) + _int(2, nanoseconds) for name in ("wall", "cpu")]
    described = locations.described(texts)
    period = _int(1, texts.number("wall")) + _int(2, nanoseconds)
    whole = b"".join(_message(1, each) for each in types) + samples + described
    whole += b"".join(_message(6, text.encode()) for text in texts.known)
    whole += _int(9, int(profile.began * 1e9)) + _int(10, int(profile.seconds * 1e9))
    whole += _message(11, period) + _int(12, int(1e9 / profile.rate))
    return gzip.compress(whole, mtime=0)


class _Texts:
    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))


class _Locations:
    """Lines of functions; both are numbered from 1."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._numbers: dict[tuple[int, int], int] = {}

    def number(self, function: int, line: int) -> int:
        return self._numbers.setdefault((function, line), len(self._numbers) + 1)

    def described(self, texts: _Texts) -> bytes:
        whole = b""
        for (function, line), number in self._numbers.items():
            whole += _message(4, _int(1, number) + _message(4, _int(1, function + 1) + _int(2, line)))
        for number, called in enumerate(self._tree.functions, 1):
            name, file = texts.number(called.name), texts.number(called.file)
            fields = number, name, name, file, called.line
            whole += _message(5, b"".join(_int(field, value) for field, value in enumerate(fields, 1)))
        return whole


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _int(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _packed(field: int, numbers: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, numbers)))
