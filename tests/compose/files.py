"""What docker-compose.yml and the Dockerfile say, as plain values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "backend" / "monitoring"
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?-)([^}]*))?\}")


def compose(**environment: str) -> dict[str, Any]:
    """The file with its variables filled in, as a person with this environment gets it."""

    def value(found: re.Match[str]) -> str:
        given = environment.get(found[1])
        return given if given or (given is not None and found[2] == "-") else found[3] or ""

    parsed: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(value, (ROOT / "docker-compose.yml").read_text()))
    return parsed


def services(**environment: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose(**environment)["services"]
    return found


def script(service: str) -> str:
    """The shell script that a service runs."""
    shell, options, text = services()[service]["command"]
    assert (shell, options) == ("sh", "-euc")
    return str(text).replace("$$", "$")


def calls(text: str, program: str) -> list[list[str]]:
    """The arguments of every call of `program` in a shell script."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        if program in words:
            rest = words[words.index(program) + 1 :]
            end = next((n for n, word in enumerate(rest) if word.startswith((">", "2>", "||"))), len(rest))
            found.append(rest[:end])
    return found


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / "Dockerfile").read_text())
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines) if word]


def stage(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage, with those of the stages that it stands on before its own."""
    found: list[tuple[str, str]] = []
    inside = False
    for word, rest in dockerfile():
        if word == "FROM":
            base, _, called = rest.split()
            inside = called == name
            if inside and not base.startswith("python:"):
                found += stage(base)
        elif inside:
            found.append((word, rest))
    return found
