"""Numbers as people read them: tabular, with a unit, never wider than they need to be."""

from __future__ import annotations

import math
import time
from decimal import ROUND_HALF_UP, Decimal

NOTHING = "–"
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def count(value: float) -> str:
    """1284 → "1,284"."""
    return f"{math.floor(value + 0.5):,}"


def figure(value: float) -> str:
    """Three significant figures at most, so that a figure keeps its width: 9.81, 61.4, 904, 12,889."""
    size = abs(value)
    if not math.isfinite(value):
        return NOTHING
    if size >= 99.95:
        return count(value)
    if size >= 9.995:
        return _fixed(value, 1)
    return "0" if size == 0 else _fixed(value, 2)


def percent(share: float) -> str:
    """A share of 1 as whole per cent; what is there but rounds to nothing is "<1 %"."""
    if 0 < share < 0.005:
        return "<1 %"
    return f"{math.floor(share * 100 + 0.5)} %"


def percents(shares: list[float]) -> list[int]:
    """Whole per cents that add up to 100 (largest remainders), for parts of one whole."""
    whole = sum(shares)
    if whole <= 0:
        return [0] * len(shares)
    exact = [share / whole * 100 for share in shares]
    floors = [math.floor(part) for part in exact]
    largest = sorted(range(len(exact)), key=lambda place: floors[place] - exact[place])
    for place in largest[: 100 - sum(floors)]:
        floors[place] += 1
    return floors


def size(value: float) -> str:
    """Bytes in decimal units."""
    amount, unit = abs(value), 0
    while amount >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        amount /= 1000
        unit += 1
    return f"{count(amount) if unit == 0 else figure(amount)} {_BYTE_UNITS[unit]}"


def micros(us: float) -> str:
    """A short duration given in microseconds: "840 µs", "12.4 ms", "1.4 s"."""
    if us < 1000:
        return f"{math.floor(us + 0.5)} µs"
    if us < 999_500:
        return f"{figure(us / 1000)} ms"
    return duration(us / 1e6)


def duration(seconds: float) -> str:
    """A duration in at most two units."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 10:
        return f"{_fixed(seconds, 1)} s"
    whole = math.floor(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def age(seconds: float) -> str:
    """How long ago, coarsely: for ages that tick."""
    past = max(0.0, seconds)
    if past < 10:
        return f"{_fixed(past, 1)} s"
    if past < 60:
        return f"{math.floor(past)} s"
    if past < 3600:
        return f"{math.floor(past / 60)} min"
    if past < 86_400:
        return f"{math.floor(past / 3600)} h"
    return f"{math.floor(past / 86_400)} d"


def ago(seconds: float) -> str:
    return "now" if seconds < 5 else f"{age(seconds)} ago"


def clock(at: float) -> str:
    """A moment as time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def plural(number: int, one: str, many: str = "") -> str:
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _fixed(value: float, digits: int) -> str:
    """Ties away from zero, as JavaScript's toFixed has them; Python's formatting would round them to even."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
