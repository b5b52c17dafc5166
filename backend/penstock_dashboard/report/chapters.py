"""What the report says of one loader. Pure: facts in, HTML out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from html import escape
from pathlib import PurePath

import msgspec
from penstock.insight.events import Notable, describe, lines
from penstock.insight.numbers import CHARTS, KINDS
from penstock.insight.words import clock, count, figure, percent, size
from penstock.profiling.profile import Profile
from penstock.protocol import (
    CommandEvent,
    EpochEvent,
    ErrorEvent,
    Event,
    History,
    LoaderDetail,
    Note,
    ProfilePart,
    QuarantineEvent,
    Receipt,
    Spans,
    StackEvent,
    Stall,
    TuningEvent,
    WorkerEvent,
)

from . import charts
from .charts import Mark, Series

MOST_LINES = 400
"""Of the list of events, the newest."""
MOST_FUNCTIONS = 15

WRITTEN: dict[str, Callable[[float], str]] = {
    "rate": lambda value: f"{figure(value)}/s",
    "bytes": size,
    "bytes/s": lambda value: f"{size(value)}/s",
    "depth": figure,
    "ms/s": lambda value: f"{figure(value * 1000)} ms/s",
}
"""How a chart's figures are written, by `Choice.format`."""


class Chapter(msgspec.Struct, frozen=True):
    """What is known of one loader."""

    detail: LoaderDetail
    history: History
    events: list[Event]
    """In order, spans left out."""

    @property
    def notable(self) -> list[Notable]:
        return [event for event in self.events if not isinstance(event, Spans | ProfilePart | QuarantineEvent)]


def moment(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def chapter(about: Chapter) -> str:
    row, detail = about.detail.row, about.detail
    identity = row.identity
    verdict = detail.verdict
    advice = f"<p>{escape(verdict.advice)}</p>" if verdict.advice else ""
    parts = [
        f'<section id="{escape(row.id, quote=True)}"><h2>{escape(identity.name)} '
        f'<span class="dim">rank {identity.rank} on {escape(identity.host or "unknown host")}</span></h2>',
        f'<div class="verdict {verdict.tone}"><b>{escape(verdict.verdict)}</b> {escape(verdict.sentence)}',
        f"{advice}</div>",
        _facts(detail),
        _charts(about),
        _receipts(about),
        _profile(about),
        _events(about),
        "</section>",
    ]
    return "".join(parts)


def _facts(detail: LoaderDetail) -> str:
    row, config, snapshot = detail.row, detail.config, detail.snapshot
    facts = {
        "state": f"{row.presence}, {row.state}",
        "made": moment(row.started),
        "last heard of": moment(row.seen),
        "workers": f"{row.workers} of {row.target}",
        "dataset": config.dataset,
        "engine": config.engine,
        "versions": ", ".join(f"{name} {version}" for name, version in detail.versions.items()),
    }
    if snapshot is not None:
        facts["yielded"] = (
            f"{count(snapshot.batches)} batches, {count(snapshot.samples)} samples, {size(snapshot.bytes)}"
        )
        facts["epoch"] = f"{snapshot.epoch}, batch {count(snapshot.batch)}"
        facts["digest"] = snapshot.digest
    known = [(escape(name), escape(str(value))) for name, value in facts.items() if value]
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in known)}</dl>"


def _charts(about: Chapter) -> str:
    history = about.history
    marks = [mark for event in about.notable if (mark := _mark(event)) is not None]
    shares = [Series(kind.word, kind.name.replace("_", "-"), history.mean.get(kind.name, [])) for kind in KINDS]
    drawn = [charts.areas("Where training's time went", history.at, shares, marks)]
    for chart in CHARTS:
        choice = chart.choices[0]
        series = [
            Series(
                line.label,
                line.colour.replace("_", "-"),
                history.mean.get(line.number, []),
                history.low.get(line.number, []),
                history.high.get(line.number, []),
                line.dashed,
            )
            for line in choice.lines
        ]
        if any(any(each.mean) for each in series):
            least = choice.least / 1000 if choice.format == "ms/s" else choice.least  # rates are in seconds
            drawn.append(charts.lines(chart.title, history.at, series, marks, WRITTEN[choice.format], least))
    return f'<div class="charts">{"".join(drawn)}</div>'


def _mark(event: Notable) -> Mark | None:
    """What is shown over the charts."""
    match event:
        case Note():
            return Mark(event.at, event.text)
        case CommandEvent() if event.state == "applied" and event.by != "autotune":
            return Mark(event.at, describe(event))
        case TuningEvent() if event.what != "hold":
            return Mark(event.at, describe(event))
        case ErrorEvent():
            return Mark(event.at, describe(event), bad=True)
        case WorkerEvent() if event.what == "died":
            return Mark(event.at, describe(event), bad=True)
        case EpochEvent() if event.what == "failed":
            return Mark(event.at, describe(event), bad=True)
    return None


def _receipts(about: Chapter) -> str:
    found = [event for event in about.events if isinstance(event, Receipt)]
    if not found:
        return ""
    rows = "".join(f"<li><time>{escape(clock(each.at))}</time> {escape(each.text)}</li>" for each in found)
    return f"<h3>What changes brought</h3><ul>{rows}</ul>"


def _profile(about: Chapter) -> str:
    """The newest profile: where the workers' time went."""
    parts = [event for event in about.events if isinstance(event, ProfilePart)]
    if not parts:
        return ""
    mine = sorted((part for part in parts if part.profile == parts[-1].profile), key=lambda part: part.part)
    if mine[0].part:  # its beginning, which has the names, was not kept
        return ""
    profile = Profile.from_parts(mine)
    total = profile.total()
    if not total:
        return ""
    rows = "".join(
        f"<tr><td>{percent(row.own / total)}</td><td>{percent(row.total / total)}</td>"
        f"<td><code>{escape(row.function)}</code> "
        f'<span class="dim">{escape(PurePath(row.file).name)}:{row.line}</span></td></tr>'
        for row in profile.functions()[:MOST_FUNCTIONS]
    )
    head = "<tr><th>own</th><th>with calls</th><th>function</th></tr>"
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
    return f"<h3>{escape(profile.title)}: where workers were seen</h3>{table}"


def _events(about: Chapter) -> str:
    told = lines(about.notable)
    rows = []
    for line in told[:MOST_LINES]:
        more = _particulars(line.event)
        text = f'<span class="{line.tone}">{escape(line.text)}</span>'
        if more:
            text = f"<details><summary>{text}</summary><pre>{escape(more)}</pre></details>"
        rows.append(f"<li><time>{escape(clock(line.at))}</time> {text}</li>")
    left = len(told) - MOST_LINES
    note = f'<p class="dim">And {count(left)} older ones.</p>' if left > 0 else ""
    body = f"<ul>{''.join(rows)}</ul>{note}" if rows else '<p class="dim">Nothing happened.</p>'
    return f"<h3>Events</h3>{body}"


def _particulars(event: Notable) -> str:
    match event:
        case Stall() | StackEvent():
            return event.stack
        case ErrorEvent():
            return event.traceback
    return ""
