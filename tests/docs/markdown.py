"""The documents, and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "loader/README.md",
    "backend/README.md",
    "frontend/README.md",
    "tests/benchmarks/README.md",
)

_MARK = re.compile(r"<!-- test: (\S+) -->")


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str
    text: str
    mark: str
    """From a comment on the line above: `<!-- test: name -->`."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks() -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks_of(document, (ROOT / document).read_text())]


def blocks_of(document: str, text: str) -> list[Block]:
    found: list[Block] = []
    lines = text.splitlines()
    start = -1
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start < 0:
            start = number
            continue
        mark = _MARK.fullmatch(lines[start - 1].strip()) if start else None
        language = lines[start].strip().removeprefix("```")
        body = "\n".join(lines[start + 1 : number]) + "\n"
        found.append(Block(document, start + 1, language, body, mark[1] if mark else ""))
        start = -1
    return found
