"""Alerts from their beginning to their end. No IO here; times are handed in."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs
from penstock.protocol import Alert, AlertRule

from .rules import Rules, Seen, Watched

KEPT = 3600.0
"""Seconds for which an alert is shown after its end."""
MOST = 1000
"""Alerts that are kept; beyond it, those that ended first go, then the oldest. A whole cluster may go down at once."""


class AlertBook:
    """Every alert that holds, and those that ended lately."""

    def __init__(self, rules: Rules, on_change: Callable[[Alert], None]) -> None:
        self._rules = rules
        self._on_change = on_change
        self._watched: dict[str, Watched] = {}
        self._open: dict[tuple[str, AlertRule], Alert] = {}
        self._ended: list[Alert] = []
        self._next = 1

    @property
    def alerts(self) -> list[Alert]:
        """Those that hold first, the newest of each at the top."""
        return [*sorted(self._open.values(), key=lambda alert: -alert.id), *reversed(self._ended)]

    def look(self, loader: str, seen: Seen, at: float) -> bool:
        """A loader as it is now; whether anything began, ended or reads differently."""
        watched = self._watched.get(loader)
        if watched is None:
            watched = self._watched[loader] = Watched(self._rules, seen, at)
        found = watched.look(seen, at)
        before = {rule for name, rule in self._open if name == loader} if self._open else set()
        changed = False
        for rule, text in found.items():
            alert = self._open.get((loader, rule))
            if alert is None:
                self._begin(Alert(self._next, loader, rule, at, text[:256]))
                changed = True
            elif alert.text != text[:256]:
                self._open[loader, rule] = structs.replace(alert, text=text[:256])
                changed = True
        for rule in before - found.keys():
            self._end(loader, rule, at)
            changed = True
        return changed

    def forget(self, loader: str, at: float) -> bool:
        """The loader is not known any more."""
        self._watched.pop(loader, None)
        rules = [rule for name, rule in self._open if name == loader]
        for rule in rules:
            self._end(loader, rule, at)
        return bool(rules)

    def sweep(self, at: float) -> bool:
        """Whether alerts went because they ended long ago."""
        before = len(self._ended)
        self._ended = [alert for alert in self._ended if at - (alert.ended or at) < KEPT]
        return len(self._ended) != before

    def _begin(self, alert: Alert) -> None:
        self._next += 1
        if len(self._open) + len(self._ended) >= MOST:
            if self._ended:
                del self._ended[0]
            else:
                del self._open[next(iter(self._open))]
        self._open[alert.loader, alert.rule] = alert
        self._on_change(alert)

    def _end(self, loader: str, rule: AlertRule, at: float) -> None:
        ended = structs.replace(self._open.pop((loader, rule)), ended=at)
        self._ended.append(ended)
        self._on_change(ended)
