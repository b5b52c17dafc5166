"""The shell commands in the documents: blocks marked `sh`, and those in running text."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from tests.docs.markdown import DOCUMENTS, ROOT, blocks_of

PROGRAMS = ("make", "penstock", "python", "pip", "npm", "docker", "torchrun", "git")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_SETTING = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Command:
    document: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        return self.words[0]

    @property
    def arguments(self) -> list[str]:
        return list(self.words[1:])

    def __str__(self) -> str:
        return f"{self.document}: {shlex.join(self.words)}"


def commands() -> list[Command]:
    """Each once a document. Words alone, as when a program is talked about, are none."""
    found: list[Command] = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for block in blocks_of(document, text):
            if block.language == "sh":
                for line in block.text.replace("\\\n", " ").splitlines():
                    found += _parse(document, line)
        for span in _SPAN.findall(_FENCED.sub("", text)):
            if span.startswith(tuple(f"{program} " for program in PROGRAMS)):
                found += _parse(document, span)
    return list(dict.fromkeys(found))


def _parse(document: str, line: str) -> list[Command]:
    parsed = []
    for part in line.split("&&"):
        words = shlex.split(part, comments=True)
        while words and _SETTING.match(words[0]):
            del words[0]
        if len(words) > 1:
            parsed.append(Command(document, tuple(words)))
    return parsed
