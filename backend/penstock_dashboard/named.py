"""Messages as people who script want them: every field by its name.

On the wires of loaders and of the page, structs of which there are many travel as arrays. Over HTTP they are objects:
each such struct, and each that holds one, has a twin here with the same fields and without arrays. `to_named` makes
the twin, which is what is encoded and described in OpenAPI; `from_named` gives the struct back to whoever reads it.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType

T = TypeVar("T")


def named(kind: Any) -> Any:
    """The type that a type is over HTTP: the same if there is no array in it."""
    return _mended(kind)


@functools.cache
def _mended(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _twin(kind) if _has(kind, _is_array) else kind
    origin, inside = get_origin(kind), get_args(kind)
    if not inside or origin is typing.Literal:
        return kind
    if origin is typing.Annotated:
        return typing.Annotated[named(inside[0]), *kind.__metadata__]
    mended = tuple(map(named, inside))
    if origin in (Union, types.UnionType):
        return Union[mended]  # noqa: UP007 (made of a tuple)
    return origin[mended]


def to_named(value: Any) -> Any:
    """A struct, or a list of them, with names for everything."""
    if isinstance(value, list):
        return [to_named(each) for each in value]
    return _across(value, named(type(value)))


def from_named(value: Any, kind: type[T]) -> T:
    """What `to_named` was given. `value` is of the type `named(kind)`."""
    if isinstance(value, list):
        (inside,) = get_args(kind)
        return typing.cast("T", [_across(each, inside) for each in value])
    return typing.cast("T", _across(value, kind))


def _across(value: Any, kind: Any) -> Any:
    """The same fields in a struct of another type."""
    if type(value) is kind:
        return value
    if not _has(kind, _is_intricate):
        return msgspec.convert(value, kind, from_attributes=True)
    # msgspec would take a field that is left out for an object without attributes, and does not find tags in structs.
    found = {name: getattr(value, name) for name in kind.__struct_fields__}
    hints = _hints(kind)
    return kind(**{name: _field(each, hints[name]) for name, each in found.items() if each is not UNSET})


def _field(value: Any, kind: Any) -> Any:
    if isinstance(value, Struct):
        inside = (each for each in (kind, *get_args(kind)) if _is_struct(each))
        return _across(value, next(each for each in inside if each.__name__ == type(value).__name__))
    return msgspec.convert(value, kind, from_attributes=True)


@functools.cache
def _twin(kind: type[Struct]) -> type[Struct]:
    fields: list[tuple[str, Any, Any]] = []
    hints = _hints(kind)
    for each in msgspec.structs.fields(kind):
        default: Any = msgspec.NODEFAULT
        if each.default is not msgspec.NODEFAULT:
            default = to_named(each.default) if isinstance(each.default, Struct) else each.default
        elif each.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=_made_by(each.default_factory))
        fields.append((each.name, named(hints[each.name]), default))
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [field if field[2] is not msgspec.NODEFAULT else field[:2] for field in fields],
        namespace={"__doc__": kind.__doc__},
        frozen=True,
        tag=config.tag,
        tag_field=config.tag_field if config.tag is not None else None,
    )


def _made_by(factory: Any) -> Any:
    """A default that is made anew each time, by name too."""
    return lambda: to_named(made) if isinstance(made := factory(), Struct) else made


@functools.cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _is_array(kind: Any) -> bool:
    return _is_struct(kind) and bool(kind.__struct_config__.array_like)


def _is_intricate(kind: Any) -> bool:
    """A field that may be left out, or one of several structs."""
    return kind is UnsetType or sum(map(_is_struct, get_args(kind))) > 1


@functools.cache
def _has(kind: Any, what: Any) -> bool:
    """Whether a type is such a one, or is made of one."""
    if what(kind):
        return True
    inside = _hints(kind).values() if _is_struct(kind) else get_args(kind)
    return any(_has(each, what) for each in inside if isinstance(each, typing.Hashable))
