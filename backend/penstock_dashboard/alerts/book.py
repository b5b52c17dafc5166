"""Alerts from their beginning to their end. No IO here; times are handed in."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs
from penstock.protocol import Alert, AlertRule

from .rules import Rules, Seen, Watched

KEPT = 3600.0
"""Seconds for which an alert is shown after its end."""
MOST = 1000
"""Alerts that are shown, and that are kept after their end; beyond it, those that ended first go, then the oldest. A
whole cluster may go down at once. One that holds is never forgotten: it would begin anew, and be told again."""


class AlertBook:
    """Every alert that holds, and those that ended lately."""

    def __init__(self, rules: Rules, on_change: Callable[[Alert], None]) -> None:
        self._rules = rules
        self._on_change = on_change
        self._watched: dict[str, Watched] = {}
        self._open: dict[str, dict[AlertRule, Alert]] = {}
        """By loader. As many as there are loaders and rules at the most."""
        self._ended: list[Alert] = []
        self._next = 1

    @property
    def alerts(self) -> list[Alert]:
        """Those that hold first, the newest of each at the top."""
        holding = [alert for found in self._open.values() for alert in found.values()]
        holding.sort(key=lambda alert: -alert.id)
        return [*holding, *reversed(self._ended)][:MOST]

    def look(self, loader: str, seen: Seen, at: float) -> bool:
        """A loader as it is now; whether anything began, ended or reads differently."""
        watched = self._watched.get(loader)
        if watched is None:
            watched = self._watched[loader] = Watched(self._rules, seen, at)
        found = watched.look(seen, at)
        holding = self._open.get(loader, {})
        changed = False
        for rule in [each for each in holding if each not in found]:
            self._end(loader, rule, at)
            changed = True
        for rule, text in found.items():
            alert = holding.get(rule)
            if alert is None:
                self._begin(Alert(self._next, loader, rule, at, text[:256]))
                changed = True
            elif alert.text != text[:256]:
                holding[rule] = structs.replace(alert, text=text[:256])
                changed = True
        return changed

    def forget(self, loader: str, at: float) -> bool:
        """The loader is not known any more."""
        self._watched.pop(loader, None)
        rules = list(self._open.get(loader, ()))
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
        self._open.setdefault(alert.loader, {})[alert.rule] = alert
        self._on_change(alert)

    def _end(self, loader: str, rule: AlertRule, at: float) -> None:
        holding = self._open[loader]
        ended = structs.replace(holding.pop(rule), ended=at)
        if not holding:
            del self._open[loader]
        self._ended.append(ended)
        del self._ended[:-MOST]
        self._on_change(ended)
