"""What a loader is called where it is made, for one whose program gave it no name.

The innermost place that says something wins: what the loader is assigned to there (a variable, an attribute, a key, an
argument), else a text that says which part of the data it is for (`split="train"`), else the function's own name if
that says so (`get_eval_dataloader`); else the place from which that function was called.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import textwrap
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from .frames import variables

DEPTH = 10
"""How many calls outward are looked at."""

_PARTS = {
    "train": ("train", "trn", "training", "fit"),
    "val": ("val", "valid", "validation", "validate", "dev"),
    "eval": ("eval", "evaluation", "evaluate"),
    "test": ("test", "testing"),
    "predict": ("predict", "prediction", "inference", "infer"),
}
_PART_OF = {word: part for part, words in _PARTS.items() for word in words}
_SAYS_NOTHING = frozenset(
    {"loader", "loaders", "dataloader", "dataloaders", "data", "dl", "dls", "dataset", "datasets", "ds", "iterator"}
    | {"get", "make", "build", "create", "set", "setup", "up", "configure", "return", "result", "base", "inner"}
    | {"self", "iter", "it", "x", "obj", "out", "wrapped", "temp", "tmp", "a", "the", "my"}
)
_GLUED = re.compile(r"(.+?)(?:_?data)?(?:loaders?|set|iter|dl)$")
_PASSED_THROUGH = ("torch", "penstock", "typing", "functools", "contextlib", "lightning", "lightning_fabric")
"""Packages whose functions stand between a program and the loader that it makes."""


def name_for(frame: FrameType | None) -> str:
    """A name for the loader that is made in this frame, or further out."""
    fallback = ""
    try:
        for place in _places(frame):
            assigned = _assigned(place.f_code, place.f_lasti)
            fallback = fallback or assigned
            found = _telling(assigned) or _part_in_texts(place) or _part(place.f_code.co_name)
            if found:
                return found
    except Exception:
        pass  # a name is not worth an error in somebody's training
    return fallback or "loader"


def name_of(loader: object, frame: FrameType | None) -> str:
    """A name for a loader that was made before, and is used in this frame: what it is called there, or further out."""
    fallback = ""
    try:
        for place in _places(frame):
            names = [name for name, value in variables(place).items() if value is loader]
            fallback = fallback or (names[0] if names else "")
            found = next(filter(None, map(_telling, names)), "")
            if found:
                return found
    except Exception:
        pass
    return fallback or "loader"


def _places(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames that may know, from the inside out, up to the first module."""
    seen = 0
    while frame is not None and seen < DEPTH:
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module not in _PASSED_THROUGH and frame.f_code.co_name not in ("__init__", "__new__", "__call__"):
            yield frame
            seen += 1
        if frame.f_code.co_name == "<module>":
            return
        frame = frame.f_back


def _words(name: str) -> list[str]:
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^0-9a-zA-Z]+", apart.lower()) if word]


def _telling(name: str) -> str:
    """What a name says beyond that it is a loader: `train_loader` → train, `images` → images, `dl` → nothing."""
    left = []
    for word in _words(name):
        glued = None if word in _SAYS_NOTHING else _GLUED.fullmatch(word)
        bare = glued[1] if glued else word
        if bare not in _SAYS_NOTHING and len(bare) > 1:
            left.append(_PART_OF.get(bare, bare))
    return "_".join(left)


def _part(name: str) -> str:
    """The part of the data that a name speaks of, if any."""
    for word in _words(name):
        glued = _GLUED.fullmatch(word)
        part = _PART_OF.get(word) or _PART_OF.get(glued[1] if glued else "")
        if part:
            return part
    return ""


def _part_in_texts(frame: FrameType) -> str:
    """Of the frame's own texts (`split`, `phase`, `description`), the first that is the name of a part of the data."""
    if frame.f_code.co_name == "<module>":
        return ""
    for value in variables(frame).values():
        if isinstance(value, str) and value.lower() in _PART_OF:
            return _PART_OF[value.lower()]
    return ""


@functools.lru_cache(maxsize=256)
def _assigned(code: CodeType, at: int) -> str:
    """What the value of the call at this instruction is given to: the name of a variable, an attribute, a key or an
    argument; empty if that cannot be told.
    """
    positions = list(code.co_positions())
    line, end_line, column, end_column = positions[at // 2]
    if line is None:
        return ""
    wanted = (line, end_line, column, end_column)
    for tree, first, indent in _sources(code):
        parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _where(node, first, indent) == wanted:
                return _receiver(node, parents)
    return ""


def _sources(code: CodeType) -> Iterator[tuple[ast.AST, int, int]]:
    """The function's own lines, if they make a whole, else the file's: with the number of lines and columns before."""
    lines = linecache.getlines(code.co_filename)
    if code.co_name != "<module>":
        last = max((number for _, _, number in code.co_lines() if number is not None), default=0)
        block = lines[code.co_firstlineno - 1 : last]
        text = textwrap.dedent("".join(block))
        indent = len(block[0]) - len(text.splitlines(keepends=True)[0]) if block and text else 0
        with contextlib.suppress(SyntaxError, ValueError):  # a lambda, a comprehension, a text over several lines
            yield ast.parse(text), code.co_firstlineno - 1, indent
    yield ast.parse("".join(lines)), 0, 0


def _where(node: ast.Call, first: int, indent: int) -> tuple[Any, ...]:
    end_line = None if node.end_lineno is None else node.end_lineno + first
    end_column = None if node.end_col_offset is None else node.end_col_offset + indent
    return node.lineno + first, end_line, node.col_offset + indent, end_column


def _receiver(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """Outward from the call through whatever hands its value on (another call's argument, a condition, a tuple)."""
    path: list[int] = []
    while (parent := parents.get(node)) is not None and not isinstance(node, ast.stmt):
        if isinstance(parent, ast.Dict) and node in parent.values:
            key = parent.keys[parent.values.index(node)]
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                return key.value
        elif isinstance(parent, ast.keyword) and parent.arg is not None:
            return parent.arg
        elif isinstance(parent, ast.NamedExpr):
            return parent.target.id
        elif isinstance(parent, ast.Tuple | ast.List):
            path.append(parent.elts.index(node))  # type: ignore[arg-type]
        node = parent
    if isinstance(node, ast.Assign):
        return _target(node.targets[0], path)
    if isinstance(node, ast.AnnAssign):
        return _target(node.target, path)
    return ""


def _target(target: ast.AST, path: list[int]) -> str:
    """The name in a target; of a tuple the one at the same place as the value."""
    if isinstance(target, ast.Tuple | ast.List):
        return _target(target.elts[path[-1]], path[:-1]) if path and path[-1] < len(target.elts) else ""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute):
        return target.attr
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return ""
