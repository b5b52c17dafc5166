"""Stacks that were seen, each described once and known by its number from then on.

One table a sampler. It is bounded: when there are too many stacks, new ones are cut shorter and shorter at the leaf,
so that their time goes to a caller that is known. A stack begins below the code that runs the worker, which is the same
for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, NamedTuple

from .ownership import is_users
from .segments import Place, Segments

MOST_STACKS = 20_000
MOST_FRAMES = 20_000
LONGEST_NAME = 256


class Function(NamedTuple):
    """A function of the program, as it is told and shown."""

    name: str
    """Its qualified name."""
    file: str
    line: int
    """The first one of its definition."""
    user: bool
    """It is the user's own code, and not a library's."""


class News(NamedTuple):
    """What was described since the last time. Numbers go on from there."""

    functions: list[Function]
    frames: list[tuple[int, int]]
    """(function, line)."""
    stacks: list[tuple[int, ...]]
    """Frames, the outermost first."""


class Stacks:
    """Numbers for stacks, the same for the same stack."""

    def __init__(self, roots: frozenset[CodeType], most: int = MOST_STACKS) -> None:
        """`roots`: code from which a stack is to begin; it and what called it are left out."""
        # By identity: functions that read the same in two files are equal to Python.
        self._roots = {id(code) for code in roots}
        self._codes: list[CodeType] = [*roots]
        """Kept, so that no other code gets the identity of one of them."""
        self._most = most
        self._places: dict[tuple[int, int], int] = {}
        self._functions: dict[int, int] = {}
        self._frames: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._news = News([], [], [])
        self._segments = Segments()

    def number(self, places: Sequence[Place]) -> int:
        """The number of the stack to charge for a look at this one, given from its leaf to its root."""
        places = self._charged(places)
        frames = []
        for code, offset in places:
            if id(code) in self._roots:
                break
            frames.append(self._frame(code, offset))
        frames.reverse()
        stack = tuple(frames)
        number = self._numbers.get(stack)
        while number is None and len(self._numbers) >= self._most and stack:
            stack = stack[:-1]
            number = self._numbers.get(stack)
        if number is None:
            number = self._numbers[stack] = len(self._numbers)
            self._news.stacks.append(stack)
        return number

    def _charged(self, places: Sequence[Place]) -> Sequence[Place]:
        """See `segments`. A function that was interrupted as it was entered is not charged for the time before."""
        leaf, *callers = places
        if self._segments.begins(leaf):
            if not callers or id(callers[0][0]) in self._roots:
                return places
            self._segments.learn(callers[0], leaf[0])
            leaf, *callers = callers
        elif not self._segments.loops(leaf):
            return places
        return [*reversed(self._segments.charged(leaf)), *callers]

    def take_news(self) -> News:
        """What was described since the last call."""
        news, self._news = self._news, News([], [], [])
        return news

    def _frame(self, code: CodeType, offset: int) -> int:
        place = id(code), offset
        known = self._places.get(place)
        if known is not None:
            return known
        function = self._functions.get(id(code))
        if function is None:
            function = self._functions[id(code)] = len(self._functions)
            self._codes.append(code)
            self._news.functions.append(_described(code))
        frame = function, _line(code, offset)
        number = self._frames.get(frame)
        if number is None:
            number = self._frames[frame] = len(self._frames)
            self._news.frames.append(frame)
        if len(self._places) < MOST_FRAMES:
            self._places[place] = number
        return number


def codes_of(*functions: Callable[..., Any]) -> frozenset[CodeType]:
    """The code of functions, and of the comprehensions in them."""
    codes = {function.__code__ for function in functions}
    return frozenset(codes | {part for code in codes for part in code.co_consts if isinstance(part, CodeType)})


def _described(code: CodeType) -> Function:
    name, file = (_text(each) for each in (code.co_qualname, code.co_filename))
    return Function(name, file, max(code.co_firstlineno, 0), is_users(code.co_filename))


def _text(text: str) -> str:
    """What a message may carry: a file's name need not be valid Unicode. Of a long one, the end tells more."""
    return text.encode("utf-8", "backslashreplace").decode()[-LONGEST_NAME:]


def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end:
            return line or code.co_firstlineno
    return code.co_firstlineno
