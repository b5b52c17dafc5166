"""A step of the tuner, and how it stands, in words."""

from __future__ import annotations

from ..protocol import Tuned, TunerState, TuningEvent


def describe(event: TuningEvent) -> str:
    """One line."""
    change = f"{event.before} → {event.workers} workers"
    heads = {
        "on": "Autotune is on",
        "off": f"Autotune is off: {event.workers} workers stay",
        "pinned": f"Autotune leaves {event.workers} workers alone",
        "try": f"Autotune tries {change}",
        "keep": f"Autotune keeps {change}",
        "back": f"Autotune goes back, {change}",
        "hold": f"Autotune holds {event.workers} workers",
        "wake": "Autotune looks again",
        "halve": f"Autotune halves, {change}",
    }
    why = f": {event.why}" if event.why else ""
    rates = []
    if event.measured is not None:
        rates.append(f"{event.measured:.3g} batches/s{' now' if event.what == 'try' else ''}")
    if event.predicted is not None:
        rates.append(f"{event.predicted:.3g} expected")
    told = f" ({', '.join(rates)})" if rates else ""
    return f"{heads[event.what]}{why}{told}"


def tuned(state: TunerState, held: int, target: int, ranks: int, alone: str = "") -> Tuned:
    """How the tuner stands. `held`: the number that is kept when nothing is tried; `target`: the one there is now;
    `alone`: why it knows nothing of other ranks; empty: it does, or there are none."""
    words: dict[TunerState, str] = {
        "measuring": f"measuring {held}",
        "trying": f"trying {target}, {held} held",
        "returning": f"back to {held}",
        "holding": f"settled at {held}",
        "pinned": f"pinned at {held} by hand",
    }
    company = f", for itself: {alone}" if alone else ""
    if ranks > 1:
        company = f", together with {ranks - 1} more on this host"
    return Tuned(state, held, ranks, "pinned" if state == "pinned" else "on", f"{words[state]}{company}"[:256])
