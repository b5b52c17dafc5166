"""SECURITY.md states each limit with its number."""

from __future__ import annotations

import importlib
import re

import pytest
from penstock.protocol import MAX_MESSAGE
from penstock_dashboard.settings import Limits, Retention

from tests.backend.harness import ROOT

SECURITY = (ROOT / "SECURITY.md").read_text()
ROWS = re.findall(r"^\|[^|]*\| ([^|]+) \| `([\w.]+)` \|$", SECURITY, re.MULTILINE)
UNITS = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "%": 0.01, "s": 1.0, "days": 86400.0, "": 1.0}


def number(text: str) -> float:
    """`1,024`, `64 KiB`, `16 MiB/s`, `75 %`, `10 s`, `1 in 6 s`."""
    if seldom := re.fullmatch(r"1 in (\d+) s", text):
        return 1.0 / float(seldom[1])
    found = re.fullmatch(r"([\d,]+) ?([A-Za-z%]*)(?:/s)?", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def value(name: str) -> float:
    if name == "protocol.MAX_MESSAGE":
        return MAX_MESSAGE
    if name == "Retention.max_bytes":
        return Retention().max_bytes
    module, _, constant = name.rpartition(".")
    if module:
        return float(getattr(importlib.import_module(f"penstock_dashboard.{module}"), constant))
    return float(getattr(Limits(), name))


@pytest.mark.parametrize(("stated", "name"), ROWS)
def test_a_limit_is_what_security_says(stated: str, name: str) -> None:
    assert number(stated) == pytest.approx(value(name))


def test_every_limit_is_stated() -> None:
    assert set(Limits.__struct_fields__) <= {name for _, name in ROWS}
