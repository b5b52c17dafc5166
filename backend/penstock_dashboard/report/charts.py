"""Charts as SVG text. Pure: columns in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from penstock.insight.words import clock

WIDTH, HEIGHT = 420, 132
"""Of a chart, in its own units."""
TOP, BOTTOM, LEFT = 14, 16, 4
"""Room for marks, the axis of time, and the edge."""
GAP = 8.0
"""A silence of more than so many times the usual spacing leaves a line open."""
SPACING = 5.0
"""Seconds that are never such a silence: what nobody watched comes so rarely."""


class Series(NamedTuple):
    """A line of a chart."""

    label: str
    colour: str
    """Name of a colour in the page's style."""
    mean: Sequence[float]
    low: Sequence[float] = ()
    """Left out where every value stands for itself."""
    high: Sequence[float] = ()
    dashed: bool = False


class Mark(NamedTuple):
    """Something that happened, as a line over the chart."""

    at: float
    text: str
    bad: bool = False


class Frame:
    """Where moments and values are on the paper."""

    def __init__(self, at: Sequence[float], top: float) -> None:
        self.first, self.last = (at[0], at[-1]) if at else (0.0, 1.0)
        self._top = top or 1.0

    def x(self, at: float) -> float:
        span = max(self.last - self.first, 1e-9)
        return LEFT + (WIDTH - 2 * LEFT) * (at - self.first) / span

    def y(self, value: float) -> float:
        room = HEIGHT - TOP - BOTTOM
        return HEIGHT - BOTTOM - room * min(max(value, 0.0) / self._top, 1.0)

    def path(self, at: Sequence[float], values: Sequence[float]) -> str:
        return " ".join(f"{self.x(moment):.1f},{self.y(value):.1f}" for moment, value in zip(at, values, strict=True))


def lines(
    title: str,
    at: Sequence[float],
    series: Sequence[Series],
    marks: Sequence[Mark],
    write: Callable[[float], str],
    least: float,
) -> str:
    """A chart of one or several lines, each with the band between its lows and highs."""
    top = max([least, *(max(each.high or each.mean, default=0.0) for each in series)]) * 1.08
    frame = Frame(at, top)
    drawn = []
    for each in series:
        style = f'stroke="var(--{each.colour})"' + (' stroke-dasharray="4 3"' if each.dashed else "")
        for start, end in stretches(at):
            moments = at[start:end]
            if each.low and each.high:
                band = f"{frame.path(moments, each.high[start:end])} "
                band += frame.path(moments[::-1], each.low[start:end][::-1])
                drawn.append(f'<polygon class="band" points="{band}" fill="var(--{each.colour})"/>')
            drawn.append(f'<polyline points="{frame.path(moments, each.mean[start:end])}" {style}/>')
    told = ", ".join(_told(each, write) for each in series if each.mean)
    legend = " ".join(_key(each.label, each.colour) for each in series)
    return _figure(title, legend, f"up to {write(top / 1.08)}", told, drawn, marks, frame)


def areas(title: str, at: Sequence[float], series: Sequence[Series], marks: Sequence[Mark]) -> str:
    """Shares that add up to one, stacked."""
    frame = Frame(at, 1.0)
    drawn = []
    for start, end in stretches(at):
        moments, below = at[start:end], [0.0] * (end - start)
        for each in series:
            above = [low + value for low, value in zip(below, each.mean[start:end], strict=True)]
            shape = f"{frame.path(moments, above)} {frame.path(moments[::-1], below[::-1])}"
            drawn.append(f'<polygon points="{shape}" fill="var(--{each.colour})"/>')
            below = above
    seen = [each for each in series if any(each.mean)]
    told = ", ".join(f"{each.label} {sum(each.mean) / len(each.mean):.0%}" for each in seen)
    legend = " ".join(_key(each.label, each.colour) for each in seen)
    return _figure(title, legend, "", told, drawn, marks, frame)


def stretches(at: Sequence[float]) -> list[tuple[int, int]]:
    """Where lines are to be drawn: from each silence to the next, as places from–to."""
    if len(at) < 2:
        return [(0, len(at))] if at else []
    usual = sorted(after - before for before, after in pairwise(at))[len(at) // 2 - 1]
    most = max(SPACING, GAP * usual)
    cuts = [place for place in range(1, len(at)) if at[place] - at[place - 1] > most]
    return list(zip([0, *cuts], [*cuts, len(at)], strict=True))


def _told(series: Series, write: Callable[[float], str]) -> str:
    mean, most = sum(series.mean) / len(series.mean), max(series.high or series.mean)
    return f"{series.label} {write(mean)} on average, {write(most)} at most"


def _key(label: str, colour: str) -> str:
    return f'<span class="key"><i style="background:var(--{colour})"></i>{escape(label)}</span>'


def _figure(
    title: str, legend: str, scale: str, told: str, drawn: list[str], marks: Sequence[Mark], frame: Frame
) -> str:
    over = []
    for mark in marks:
        if frame.first <= mark.at <= frame.last:
            x, colour = frame.x(mark.at), "bad" if mark.bad else "accent"
            over.append(
                f'<g stroke="var(--{colour})"><title>{escape(clock(mark.at))} · {escape(mark.text)}</title>'
                f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke-dasharray="2 3"/>'
                f'<circle cx="{x:.1f}" cy="{TOP - 8}" r="3" fill="var(--{colour})"/></g>'
            )
    base = HEIGHT - BOTTOM
    axis = (
        f'<line class="axis" x1="0" y1="{base}" x2="{WIDTH}" y2="{base}"/>'
        f'<text x="{LEFT}" y="{HEIGHT - 3}">{escape(clock(frame.first))}</text>'
        f'<text x="{WIDTH - LEFT}" y="{HEIGHT - 3}" text-anchor="end">{escape(clock(frame.last))}</text>'
    )
    about = escape(f"{title}: {told}" if told else f"{title}: nothing was recorded", quote=True)
    return (
        f'<figure><figcaption><b>{escape(title)}</b> <span class="dim">{escape(scale)}</span> {legend}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{about}">'
        f"{''.join(drawn)}{axis}{''.join(over)}</svg>"
        f'<p class="dim">{escape(told) or "Nothing was recorded."}</p></figure>'
    )
