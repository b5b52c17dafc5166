"""The README's picture: seconds of training that the tuner has cost so far, against the best fixed number of workers.

`python -m tests.benchmarks.regret FILE` writes it as SVG, from the simulated world.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from tests.loader.tuning.loads import LOADS
from tests.loader.tuning.trial import fixed, numbers, tuned

SHOWN = ("sleep-bound", "processor-bound", "lock-bound", "heavy tail", "storage", "phase change", "best already")
COLOURS = ("#3d8fd1", "#e0524f", "#3aa655", "#b8860b", "#9d7bd0", "#f08a24", "#17a2b8")
"""To be read on white and on black."""
STYLE = """<style>
  text { fill: #1b2733 } .grid { stroke: #e4e4e4 } .ground { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #d7e0e8 } .grid { stroke: #2c3842 } .ground { fill: #0d1117 }
  }
</style>"""
UNTIL = 300.0
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 340, 56, 170, 34, 44


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    file.write_text(picture({name: regret(name) for name in SHOWN}))


def regret(name: str) -> list[tuple[float, float]]:
    """(second, seconds lost since the start): batches that the best fixed number would have had, in its time each."""
    course, load = tuned(LOADS[name], UNTIL), LOADS[name]
    edges = [0.0, load.change, UNTIL] if load.change else [0.0, UNTIL]
    lost, points = 0.0, [(0.0, 0.0)]
    for since, until in itertools.pairwise(edges):
        best = max(fixed(name, n, UNTIL).rate(max(since, 1.0), until) for n in numbers(load.most))
        first = next(place for place, at in enumerate(course.at) if at >= since)
        for place, at in enumerate(course.at):
            if since <= at <= until:
                points.append((at, lost + (at - since) - (course.batches[place] - course.batches[first]) / best))
        lost = points[-1][1]
    return points


def picture(curves: dict[str, list[tuple[float, float]]]) -> str:
    most = max(y for points in curves.values() for _, y in points) * 1.08

    def x(second: float) -> float:
        return LEFT + second / UNTIL * (WIDTH - LEFT - RIGHT)

    def y(lost: float) -> float:
        return HEIGHT - BOTTOM - max(lost, 0.0) / most * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        STYLE,
        f'<rect width="{WIDTH}" height="{HEIGHT}" class="ground"/>',
        f'<text x="{LEFT}" y="20" font-size="14">Seconds of training lost to the search, against the best fixed number '
        "of workers</text>",
    ]
    for second in range(0, int(UNTIL) + 1, 60):
        parts.append(f'<path d="M{x(second):.1f} {TOP}V{HEIGHT - BOTTOM}" class="grid"/>')
        parts.append(f'<text x="{x(second):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{second} s</text>')
    step = 5 if most > 12 else 2
    for lost in range(0, int(most) + 1, step):
        parts.append(f'<path d="M{LEFT} {y(lost):.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(lost) + 4:.1f}" text-anchor="end">{lost} s</text>')
    taken: list[float] = []
    for (name, points), colour in zip(curves.items(), COLOURS, strict=True):
        line = "L".join(f"{x(at):.1f} {y(lost):.1f}" for at, lost in points[::4])
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        place = y(points[-1][1]) + 4
        while any(abs(place - other) < 14 for other in taken):
            place -= 2
        taken.append(place)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{place:.1f}" style="fill: {colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
