"""A step of the tuner in words."""

from __future__ import annotations

from ..protocol import TuningEvent


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
