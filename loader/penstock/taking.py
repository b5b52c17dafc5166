"""Taking items from iterators and queues, so that nothing is asked twice and nothing is lost.

`islice`, `zip` and `for` call `iter()` on what they are given. Torch calls it once and then only `next()`, and users
have iterators whose `__iter__` starts over. `by_next` makes one that can be given to `islice`.

A signal handler that raises does so after any call in Python code: also between `queue.popleft()`, which has taken an
item, and the assignment that would have kept it. It never does so within one call into C, nor between two assignments
of attributes. So what must not be lost is moved from place to place by one call into C (`list.extend` over an iterator
that is made of C code), and what is done in Python after that can be done again, or contains no call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat, starmap
from typing import Any, TypeVar

T = TypeVar("T")


def by_signal_handler(error: BaseException) -> bool:
    """Did a signal handler raise it, whatever was under way when the signal came?"""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def is_interruption(error: BaseException) -> bool:
    """Did it come from outside: from a signal handler, or as Ctrl-C?"""
    return not isinstance(error, Exception) or by_signal_handler(error)


def _code(handler: Any) -> object:
    """The code of a function, of a method, or of an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = type(handler).__dict__.get("__call__", handler)
    return getattr(handler, "__code__", handler)


_HEAP_TYPE = 1 << 9
"""Of `type.__flags__`: the class was made at run time, by Python code as a rule."""


def is_python(iterator: Iterator[object]) -> bool:
    """May it be of a class that was written in Python? Generators, and iterators of lists, are not."""
    return bool(type(iterator).__flags__ & _HEAP_TYPE)


def by_next(iterator: Iterator[T]) -> Iterator[T]:
    """The items of an iterator, on which `iter()` is not called again."""
    if not is_python(iterator):
        return iterator
    return starmap(iterator.__next__, repeat(()))


def popping(pop: Callable[[], T], count: int) -> Iterator[T]:
    """What so many calls of `pop` return, a method of a list or deque: for `extend`, which moves it in one step."""
    return starmap(pop, repeat((), count))
