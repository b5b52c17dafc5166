"""Whose the time was that passed before a thread stopped for a look.

The interpreter lets a look in only at some instructions: where a function is entered, after a call of C code, at the
end of a loop's body. So a look that was due in between sees the next of these places, and a function with neither loop
nor call in it would never be seen: its caller would be charged for it. What is known is the stretch of instructions
that ends where the thread stopped, and it is known from the code how that stretch begins:

1. Going back from the stop, instruction by instruction, either another place where a look is let in comes first: then
   the whole stretch is of this function. Or a call of a function in Python comes first: then the stretch began in that
   function, after the last such place before its `return` (and so on, if a call is the last thing that it does).
2. Which function a call calls is learnt from looks that found it just entered. Until then the caller is charged.
3. The time of the stretch is shared out by the instructions in it, those that only move something counted less.

A stop after C code is left alone: the time was spent in that code as a rule, which counts as its caller's own.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

Place = tuple[CodeType, int]
"""Where a frame is: its code, and the offset of the instruction that it is at."""

_OPENINGS = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
"""Instructions at which a look is let in."""
_STRAYS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD"}
"""What follows these is reached from elsewhere."""
_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_FREE = {"CACHE", "PRECALL", "NOP", "EXTENDED_ARG"}
_MOVES = {"POP_TOP", "COPY", "SWAP", "PUSH_NULL", "LOAD_CONST", "LOAD_SMALL_INT"}
_WORK = 3
"""What other instructions cost, in moves."""
_DEEPEST = 3
"""Calls that are followed, one in the other's last lines."""
_MOST_RETURNS = 8
"""Returns of a function whose stretches are looked at."""
_MOST_CODES = 5_000
"""Functions whose instructions are read."""
_GOLDEN = 0.6180339887498949


class Part(NamedTuple):
    """A part of a stretch."""

    places: tuple[Place, ...]
    """From the frame in which the thread stopped to the one in which this part was."""
    cost: int


class Segments:
    """The stretches of a program, as far as they have been seen."""

    def __init__(self) -> None:
        self._callees: dict[tuple[int, int], CodeType] = {}
        """Where a function is called → the function that was called there last."""
        self._codes: dict[int, _Code] = {}
        self._parts: dict[tuple[int, int], tuple[Part, ...]] = {}
        self._turn = 0.0

    def learn(self, caller: Place, callee: CodeType) -> None:
        """The callee was just entered from there."""
        place = id(caller[0]), self._code(caller[0]).start(caller[1])
        if self._callees.get(place) is not callee:
            self._callees[place] = callee
            self._parts.clear()

    def begins(self, place: Place) -> bool:
        """Is this a function that was just entered?"""
        return self._code(place[0]).name(place[1]) == "RESUME"

    def loops(self, place: Place) -> bool:
        """Is this the end of a loop's body?"""
        return self._code(place[0]).name(place[1]).startswith(("JUMP_BACKWARD", "POP_JUMP_BACKWARD"))

    def charged(self, place: Place) -> tuple[Place, ...]:
        """Whom to charge for a look that ended there: from the frame that stopped to the one charged, in turns."""
        key = id(place[0]), place[1]
        parts = self._parts.get(key)
        if parts is None:
            parts = self._parts[key] = tuple(self._stretch(place, _DEEPEST))
        if len(parts) == 1:
            return parts[0].places
        self._turn = (self._turn + _GOLDEN) % 1.0
        left = self._turn * sum(part.cost for part in parts)
        for part in parts:
            left -= part.cost
            if left < 0:
                return part.places
        return parts[-1].places

    def _stretch(self, place: Place, depth: int) -> list[Part]:
        code = self._code(place[0])
        cost = 1
        for offset, name in code.back(place[1]):
            callee = self._callees.get((id(place[0]), offset))
            if callee is not None:
                tail = self._tail(callee, depth - 1) if depth else []
                inside = [Part(((place[0], offset), *part.places), part.cost) for part in tail]
                return [Part((place,), cost + _WORK), *inside]
            if name in _OPENINGS or name in _STRAYS:
                break
            cost += _cost(name)
        return [Part((place,), cost)]

    def _tail(self, code: CodeType, depth: int) -> list[Part]:
        """What a function does between the last place where a look is let in and its return; of several, their mean."""
        returns = self._code(code).returns[-_MOST_RETURNS:]
        parts = [part for offset in returns for part in self._stretch((code, offset), depth)]
        count = max(len(returns), 1)
        return [Part(part.places, -(-(part.cost + _WORK) // count)) for part in parts]

    def _code(self, code: CodeType) -> _Code:
        known = self._codes.get(id(code))
        if known is None:
            known = _Code.read(code) if len(self._codes) < _MOST_CODES else _Code(code, [], [])
            self._codes[id(code)] = known
        return known


class _Code(NamedTuple):
    code: CodeType
    """Kept, so that no other code gets its identity."""
    offsets: list[int]
    """Where its instructions begin."""
    names: list[str]
    """What they are called."""

    @classmethod
    def read(cls, code: CodeType) -> _Code:
        instructions = list(dis.get_instructions(code))
        return cls(code, [each.offset for each in instructions], [each.opname for each in instructions])

    @property
    def returns(self) -> list[int]:
        """Where it returns."""
        return [offset for offset, name in zip(self.offsets, self.names, strict=True) if name in _RETURNS]

    def start(self, offset: int) -> int:
        """Where the instruction begins to which this offset belongs: a frame that calls stands at its end."""
        return self.offsets[self._number(offset)] if self.offsets else offset

    def name(self, offset: int) -> str:
        return self.names[self._number(offset)] if self.offsets else ""

    def back(self, offset: int) -> Iterator[tuple[int, str]]:
        """Offsets and names of the instructions before the one there, the next one first."""
        for number in range(self._number(offset) - 1, -1, -1):
            yield self.offsets[number], self.names[number]

    def _number(self, offset: int) -> int:
        return max(bisect_right(self.offsets, offset) - 1, 0)


def _cost(name: str) -> int:
    if name in _FREE:
        return 0
    return 1 if name in _MOVES or name.startswith(("LOAD_FAST", "STORE_FAST")) else _WORK
