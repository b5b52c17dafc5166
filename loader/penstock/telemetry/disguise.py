"""How something that is watched stays what it was, to all who look at it.

Most objects become, in place, of a subclass made on the spot: `isinstance`, attributes, methods and those who hold it
already see the same object. Where that is not possible (a list, a generator, a class with slots) or not wise (a
metaclass may do anything with a new class), a stand-in takes its place: attributes, operators and `isinstance` go
through to the thing. A copy or a pickle of either is of the thing as it was, and is not watched.
"""

from __future__ import annotations

import abc
import functools
import typing
from collections.abc import Callable, Iterator
from typing import Any, Protocol

MARK = "_penstock"
"""The attribute that holds the `Onlooker`."""

_CLASS: Any = object.__dict__["__class__"]
"""Sets an object's class even where its own class has a property of that name, as Accelerate's loaders have."""

_PASSED_ON = (
    *("__len__", "__length_hint__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__reversed__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__", "__call__", "__array__"),
    *("__str__", "__repr__", "__format__", "__dir__", "__enter__", "__exit__", "__add__", "__radd__", "__mul__"),
    *("__rmul__", "__sub__", "__and__", "__or__", "__ror__", "__copy__", "__deepcopy__", "__getstate__"),
    *("__reduce__", "__reduce_ex__"),
)
"""Methods that Python looks up in the class: a stand-in needs each that the thing has."""


class Onlooker(Protocol):
    """Who is told. No method raises an error of its own, nor changes what it is given."""

    def begin(self, iterator: Iterator[Any]) -> Any:
        """`iter()` of the thing gave an iterator; returns what the caller gets."""

    def restart(self) -> None:
        """`iter()` of the thing gave the thing itself."""

    def take(self, advance: Callable[[], Any]) -> Any:
        """`next()` of the thing was called, and `advance` does it; returns or raises what that does."""

    def told(self, length: int) -> None:
        """`len()` of the thing gave this."""


def is_iterable(thing: object) -> bool:
    """As `iter()` sees it, without calling it."""
    kind = type(thing)
    return getattr(kind, "__iter__", None) is not None if hasattr(kind, "__iter__") else hasattr(kind, "__getitem__")


def onlooker_of(thing: object) -> Any:
    """Who watches this already; None: nobody."""
    if isinstance(type(thing), _StandInType):
        return object.__getattribute__(thing, MARK)
    return (attributes_of(thing) or {}).get(MARK)


def disguise(thing: Any, onlooker: Onlooker) -> Any:
    """The thing, watched; or a stand-in for it."""
    return thing if disguise_in_place(thing, onlooker) else stand_in(thing, onlooker)


def disguise_in_place(thing: Any, onlooker: Onlooker) -> bool:
    """Whether the thing itself could be made to tell the onlooker."""
    plain: Any = type(thing)
    attributes = attributes_of(thing)
    if type(plain) not in (type, abc.ABCMeta) or not isinstance(attributes, dict) or not plain.__weakrefoffset__:
        return False
    try:
        _CLASS.__set__(thing, _watched(plain))
    except TypeError:  # its memory is laid out in another way
        return False
    attributes[MARK] = onlooker
    return True


def stand_in(thing: Any, onlooker: Onlooker) -> Any:
    """Something that behaves as the thing does, watched."""
    plain: Any = type(thing)
    return _stand_in_for(plain)(thing, onlooker)


def attributes_of(thing: object) -> Any:
    """An object's own attributes, past whatever its class does when attributes are asked for."""
    try:
        return object.__getattribute__(thing, "__dict__")
    except (AttributeError, TypeError):
        return None


# -- in place -----------------------------------------------------------------------------------------------


class _Nothing:
    """Laid out as most objects are."""


def _hears_of_subclasses(plain: Any) -> bool:
    hears = getattr(plain.__init_subclass__, "__func__", None)  # of those written in C there are none
    return hears not in (None, getattr(typing.Generic.__init_subclass__, "__func__", None))


@functools.cache
def _watched(plain: Any) -> Any:
    """A subclass that watches. One base only: else it would be laid out differently, and no object could become one.
    An object that a library makes anew from the class of a watched one has no onlooker, and is as ever.
    """
    hears = _hears_of_subclasses(plain)
    base: Any = _Nothing if hears else plain

    class Watched(base, metaclass=type(plain)):  # type: ignore[misc,metaclass]
        def __iter__(self) -> Any:
            iterator = plain.__iter__(self) if hasattr(plain, "__iter__") else _by_index(self)
            onlooker = self.__dict__.get(MARK)
            if onlooker is None:
                return iterator
            if iterator is not self:
                return onlooker.begin(iterator)
            onlooker.restart()
            return self

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _of_plain(plain.__reduce_ex__(self, protocol), Watched, plain)

    if hears:
        Watched.__bases__ = (plain,)  # now that it exists, `__init_subclass__` is not called
    if hasattr(plain, "__next__"):
        Watched.__next__ = _next_in_place(plain)
    if hasattr(plain, "__len__"):
        Watched.__len__ = _len_in_place(plain)
    Watched.__name__, Watched.__qualname__ = plain.__name__, plain.__qualname__
    Watched.__module__, Watched.__doc__ = plain.__module__, plain.__doc__
    return Watched


def _next_in_place(plain: Any) -> Any:
    def __next__(self: Any) -> Any:
        onlooker = self.__dict__.get(MARK)
        if onlooker is None:
            return plain.__next__(self)
        return onlooker.take(functools.partial(plain.__next__, self))

    return __next__


def _len_in_place(plain: Any) -> Any:
    def __len__(self: Any) -> Any:
        length = plain.__len__(self)
        onlooker = self.__dict__.get(MARK)
        if onlooker is not None:
            onlooker.told(length)
        return length

    return __len__


def _by_index(thing: Any) -> Iterator[Any]:
    """What `iter()` does for something that has only `__getitem__`."""
    index = 0
    while True:
        try:
            item = thing[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def _of_plain(reduced: Any, watched: Any, plain: Any) -> Any:
    """What an object is pickled as, with its own class and without the onlooker."""
    if not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    # Pickle insists that two of Python's own are given the very class that the object has.
    ours = {"__newobj__": new, "__newobj_ex__": new_ex}
    make = plain if make is watched else ours.get(getattr(make, "__name__", ""), make)
    arguments = tuple(plain if each is watched else each for each in arguments)
    if rest:
        state = rest[0]
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        kept = tuple({k: v for k, v in p.items() if k != MARK} if isinstance(p, dict) else p for p in parts)
        rest[0] = kept if parts is state else kept[0]
    return make, arguments, *rest


def new(plain: Any, *arguments: Any) -> Any:
    return plain.__new__(plain, *arguments)


def new_ex(plain: Any, arguments: Any, named: Any) -> Any:
    return plain.__new__(plain, *arguments, **named)


# -- a stand-in ---------------------------------------------------------------------------------------------


class _StandInType(type):
    """Tells our stand-ins from all else, whatever they say their class is."""


@functools.cache
def _stand_in_for(plain: Any) -> Any:
    class StandIn(metaclass=_StandInType):
        __slots__ = ("__weakref__", "_penstock", "_penstock_thing")
        __doc__ = plain.__doc__
        __module__ = getattr(plain, "__module__", __name__)

        def __init__(self, thing: Any, onlooker: Onlooker) -> None:
            object.__setattr__(self, "_penstock_thing", thing)
            object.__setattr__(self, "_penstock", onlooker)

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            return self._penstock_thing.__class__

        def __iter__(self) -> Any:
            thing, onlooker = self._penstock_thing, self._penstock
            iterator = iter(thing)
            if iterator is not thing:
                return onlooker.begin(iterator)
            onlooker.restart()
            return self

        def __getattr__(self, name: str) -> Any:
            return getattr(self._penstock_thing, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self._penstock_thing, name, value)

        def __delattr__(self, name: str) -> None:
            delattr(self._penstock_thing, name)

    for name in _PASSED_ON:
        if hasattr(plain, name):
            setattr(StandIn, name, None if getattr(plain, name) is None else _passed_on(name))
    if hasattr(plain, "__next__"):
        StandIn.__next__ = _next_of_stand_in  # type: ignore[attr-defined]
    if hasattr(plain, "__len__"):
        StandIn.__len__ = _len_of_stand_in  # type: ignore[attr-defined]
    StandIn.__name__, StandIn.__qualname__ = plain.__name__, plain.__qualname__
    return StandIn


def _passed_on(name: str) -> Any:
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(self._penstock_thing, name)(*arguments, **named)

    method.__name__ = name
    return method


def _next_of_stand_in(self: Any) -> Any:
    return self._penstock.take(self._penstock_thing.__next__)


def _len_of_stand_in(self: Any) -> Any:
    length = len(self._penstock_thing)
    self._penstock.told(length)
    return length
