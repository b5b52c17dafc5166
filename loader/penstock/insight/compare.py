"""Two stretches of time side by side: the numbers that matter, how they differ, and what is to be said of that. Pure.

A difference counts where it is greater than what the two stretches vary by in themselves: the means of eight parts of
each say how sure its own mean is, as with receipts. Time in which no epoch was under way does not count at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..protocol import Brought, ComparedNumber, Config, History, Queues, Rates, Snapshot, Unknown, Verdict
from .evidence import Evidence
from .numbers import KINDS
from .occupation import Occupation
from .rates import FIELDS
from .shares import Shares, normalised, waiting
from .verdict import weigh
from .words import NOTHING, duration, figure, micros, percent, size

PARTS = 8
"""Parts of a stretch whose differences say how sure a mean is."""
LEAST = 0.03
"""Relative difference that is never more than chance."""
LEAST_SHARE = 0.02
"""The same of shares, of the whole time."""
SHOWN = 0.005
"""A kind of time is worth a line from this share on."""
ENOUGH = 2.0
"""Seconds of epochs from which on a verdict is given."""


class Means(NamedTuple):
    """What a stretch was like while epochs were under way."""

    seconds: float
    """How much of that there is."""
    rates: Rates
    shares: Shares | None
    """Kinds of time of the training thread; None: there is none."""
    parts: tuple[Rates, ...]
    """The same of parts of it, in order."""
    unknown: frozenset[str]
    """Rates that mean nothing, of a loader that is only watched."""


def measure(history: History, unknown: frozenset[str] = frozenset()) -> Means:
    """The means of a stretch. Samples that came at another pace count for as long as they stand for."""
    weights = _weights(history)
    kinds = [history.mean.get(kind.name, []) for kind in KINDS]
    at_work = [place for place in range(len(history.at)) if sum(column[place] for column in kinds if column) > 0.01]
    rates = _mean(history, at_work, weights)
    length = max(1, math.ceil(len(at_work) / PARTS))
    parts = [_mean(history, at_work[start : start + length], weights) for start in range(0, len(at_work), length)]
    shares = normalised([getattr(rates, kind.name) for kind in KINDS])
    return Means(sum(weights[place] for place in at_work), rates, shares, tuple(parts), unknown)


def _weights(history: History) -> list[float]:
    """Seconds for which each point stands."""
    if history.step > 0:
        return [history.step] * len(history.at)
    gaps = [later - before for before, later in zip(history.at, history.at[1:], strict=False)]
    most = 3 * sorted(gaps)[len(gaps) // 2] if gaps else 1.0
    return [min(gap, most) for gap in [gaps[0] if gaps else 0.2, *gaps]] if history.at else []


def _mean(history: History, places: Sequence[int], weights: Sequence[float]) -> Rates:
    whole = sum(weights[place] for place in places)
    if whole <= 0:
        return Rates()
    columns = {name: history.mean[name] for name in FIELDS if history.mean.get(name)}
    return Rates(
        **{name: sum(column[place] * weights[place] for place in places) / whole for name, column in columns.items()}
    )


@dataclass(frozen=True)
class Line:
    """One number that is compared."""

    name: str
    label: str
    value: Callable[[Rates], float]
    """NaN: it is not known."""
    written: Callable[[float], str]
    needs: tuple[str, ...]
    """Rates that it is read from."""
    more: Brought = "unknown"
    """What more of it is: better, worse, or neither."""
    share: bool = False
    """It is a share of the time: differences are in points."""
    exact: bool = False
    """It is counted, not measured: no difference is chance."""


def _waiting(rates: Rates) -> float:
    shares = normalised([getattr(rates, kind.name) for kind in KINDS])
    return math.nan if shares is None else waiting(shares)


def _of_time(name: str) -> Callable[[Rates], float]:
    def share(rates: Rates) -> float:
        shares = normalised([getattr(rates, kind.name) for kind in KINDS])
        return math.nan if shares is None else shares[name]

    return share


def _each(name: str) -> Callable[[Rates], float]:
    """µs of workers' time that a sample takes."""
    return lambda rates: 1e6 * float(getattr(rates, name)) / rates.samples if rates.samples > 0 else math.nan


def _about(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _rate(unit: str) -> Callable[[float], str]:
    return lambda value: f"{figure(value)} {unit}"


LINES = (
    Line("batches", "Throughput", lambda rates: rates.batches, _rate("batches/s"), ("batches",), "better"),
    Line("samples", "Samples", lambda rates: rates.samples, _rate("samples/s"), ("samples",), "better"),
    Line("bytes", "Bytes", lambda rates: rates.bytes, lambda value: f"{size(value)}/s", ("bytes",)),
    Line("waiting", "Training waits for data", _waiting, percent, (), "worse", share=True),
    *(Line(kind.name, f"Time: {kind.word}", _of_time(kind.name), percent, (kind.name,), share=True) for kind in KINDS),
    Line("workers", "Workers", lambda rates: rates.workers, _about, ("workers",), exact=True),
    Line(
        "load",
        "Workers busy",
        lambda rates: rates.busy / rates.workers if rates.workers > 0 else math.nan,
        percent,
        ("busy", "workers"),
        share=True,
    ),
    Line("cost", "A sample costs workers", _each("busy"), micros, ("busy", "samples"), "worse"),
    Line("processor", "of that on a processor", _each("processor"), micros, ("processor", "samples")),
    Line("queued", "waiting for a processor", _each("queued"), micros, ("queued", "samples")),
    Line("blocked", "blocked: storage, network, locks", _each("blocked"), micros, ("blocked", "samples")),
    Line("rss", "Memory of all workers", lambda rates: rates.rss, size, ("rss",)),
)
"""What is compared, in reading order."""


def numbers(a: Means, b: Means) -> list[ComparedNumber]:
    """Every number that is known of one of the two and is not nothing in both."""
    compared = [_number(line, a, b) for line in LINES]
    kept = {kind.name for kind in KINDS}
    return [
        each
        for each in compared
        if max(each.a or 0.0, each.b or 0.0) > (SHOWN if each.name in kept else 0.0)
        or each.name in ("batches", "waiting")
    ]


def _number(line: Line, a: Means, b: Means) -> ComparedNumber:
    left, right = _value(line, a), _value(line, b)
    brought: Brought = "unknown"
    told = ""
    if left is not None and right is not None:
        same = abs(right - left) <= _sure(line, a, b) * (1.0 if line.share else max(abs(left), abs(right)))
        brought = "same" if same else _judged(line.more, right > left)
        told = _difference(line, left, right, same)
    texts = [NOTHING if value is None else line.written(value) for value in (left, right)]
    return ComparedNumber(line.name, line.label, left, right, texts[0], texts[1], told, brought)


def _value(line: Line, means: Means) -> float | None:
    value = line.value(means.rates)
    known = means.seconds > 0 and not means.unknown.intersection(line.needs)
    return value if known and math.isfinite(value) else None


def _judged(more: Brought, grew: bool) -> Brought:
    if more == "unknown":
        return "unknown"
    return more if grew else "worse" if more == "better" else "better"


def _sure(line: Line, a: Means, b: Means) -> float:
    """Differences up to this may be chance: relative to the number, or of shares in shares of the time."""
    if line.exact:
        return 0.01
    errors = [_error([line.value(part) for part in means.parts], line.share) for means in (a, b)]
    return max(math.hypot(*errors), LEAST_SHARE if line.share else LEAST)


def _error(values: list[float], share: bool) -> float:
    """Nine times out of ten the mean is right within so much."""
    known = [value for value in values if math.isfinite(value)]
    mean = sum(known) / len(known) if known else 0.0
    if len(known) < 2 or (mean <= 0 and not share):
        return 0.0
    deviation = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    return 1.645 * deviation / math.sqrt(len(known)) / (1.0 if share else mean)


def _difference(line: Line, left: float, right: float, same: bool) -> str:
    if same:
        return "same"
    if line.share:
        points = round(100 * (right - left))
        return f"{'+' if points > 0 else '−'}{abs(points)} points"
    if left <= 0 or right <= 0:
        return "more" if right > left else "less"
    times = right / left
    if times >= 2 or times <= 0.5:
        return f"{figure(times)} ×"
    return f"{'+' if times > 1 else '−'}{percent(abs(times - 1))}"


def verdict(means: Means, config: Config, unknown: Unknown, window: int) -> Verdict:
    """What limited training in a stretch; without advice, which is for the present. `window`: the most tasks that may
    be in flight."""
    rates = means.rates
    if means.seconds < ENOUGH or means.shares is None:
        return Verdict("plain", "Too little.", f"Only {duration(means.seconds)} of epochs are stored of it.")
    active = normalised([0.0 if not kind.active else means.shares[kind.name] for kind in KINDS])
    if active is None:
        return Verdict("plain", "Paused.", "It was paused all the time.")
    made = round(rates.batches * means.seconds)
    evidence = Evidence(
        "In this stretch",
        means.seconds,
        active,
        made,
        made,
        round(rates.workers),
        rates.busy,
        Occupation(rates.processor, rates.queued, rates.blocked) if rates.processor + rates.blocked > 0 else None,
        rates.others,
        rates.allowed,
    )
    # What the judge asks of the present, as it was in the mean.
    queues = Queues(index=round(rates.index), in_flight=round(rates.in_flight), window=window)
    then = Snapshot(
        0, 0.0, "running", batches=made, bytes=round(rates.bytes * means.seconds), queues=queues, unknown=unknown
    )
    said = weigh(evidence, then, config)
    return Verdict(said.tone, said.verdict, said.sentence, "", said.limit, said.stage, said.waiting)


def sentence(a: Means, b: Means, compared: Sequence[ComparedNumber]) -> str:
    """What comes out of it."""
    empty = [name for name, means in (("first", a), ("second", b)) if means.seconds <= 0]
    if empty:
        return f"Of the {' and the '.join(empty)} no epoch is stored: there is nothing to compare."
    named = {each.name: each for each in compared}
    rate, waits = named["batches"], named["waiting"]
    if rate.brought == "same":
        told = f"The second makes {rate.b_text}, the first {rate.a_text}: no difference that counts."
    else:
        how = "faster" if rate.brought == "better" else "slower"
        told = f"The second is {how}: {rate.b_text} instead of {rate.a_text} ({rate.difference})."
    if waits.brought == "same":
        return f"{told} Training waits as long in both, {waits.b_text} of the time."
    return f"{told} Training waits {waits.b_text} of the time instead of {waits.a_text}."
