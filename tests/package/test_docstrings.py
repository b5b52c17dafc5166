"""Every public class says what it is, and every number that is told says what it means, in which unit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("loader/penstock", "backend/penstock_dashboard")
    for path in (ROOT / folder).rglob("*.py")
    if "static" not in path.parts
)


def public_classes(path: Path) -> Iterator[ast.ClassDef]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_public_classes_say_what_they_are(path: Path) -> None:
    assert [each.name for each in public_classes(path) if not ast.get_docstring(each)] == []


def undescribed(node: ast.ClassDef) -> Iterator[str]:
    """Fields without a docstring under them."""
    for here, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(here, ast.AnnAssign) or "ClassVar" in ast.unparse(here.annotation):
            continue
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
            yield f"{node.name}.{ast.unparse(here.target)}"


def test_everything_that_is_told_says_what_it_means() -> None:
    described = public_classes(ROOT / "loader/penstock/protocol.py")
    assert [name for each in described for name in undescribed(each)] == []
