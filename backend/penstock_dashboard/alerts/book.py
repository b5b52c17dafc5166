"""Alerts from their beginning to their end. No IO here; times are handed in.

Replicas have the same book: what one of them changes, the others are told (`take_news`, `learn`). Of each loader one
looks, and whoever does goes on with what is in the book.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from msgspec import structs
from penstock.protocol import Alert, AlertRule

from .rules import Rules, Seen, Watched

KEPT = 3600.0
"""Seconds for which an alert is shown after its end."""
MOST = 1000
"""Alerts that are shown, and that are kept after their end; beyond it, those that ended first go, then the oldest. A
whole cluster may go down at once. One that holds is never forgotten: it would begin anew, and be told again."""
WRITERS = 1024
"""Numbers of alerts are milliseconds times this, and who began it: replicas give no number twice."""


class AlertBook:
    """Every alert that holds, and those that ended lately."""

    def __init__(self, rules: Rules, on_change: Callable[[Alert], None], writer: int = 0) -> None:
        """`on_change`: one began or ended here. `writer`: a number of this replica's own."""
        self._rules = rules
        self._on_change = on_change
        self._writer = writer % WRITERS
        self._watched: dict[str, Watched] = {}
        self._open: dict[str, dict[AlertRule, Alert]] = {}
        """By loader. As many as there are loaders and rules at the most."""
        self._ended: dict[int, Alert] = {}
        """By number, in the order in which they ended."""
        self._last = 0
        """The highest number so far, without who began it."""
        self._news: dict[int, Alert] = {}
        """By number: what was changed here and is not told to other replicas yet."""

    @property
    def holding(self) -> list[Alert]:
        """The newest first."""
        found = [alert for of_loader in self._open.values() for alert in of_loader.values()]
        return sorted(found, key=lambda alert: -alert.id)

    @property
    def ended(self) -> list[Alert]:
        """The last first."""
        return list(reversed(self._ended.values()))

    @property
    def alerts(self) -> list[Alert]:
        """Those that hold first, the newest of each at the top."""
        return [*self.holding, *self.ended][:MOST]

    def look(self, loader: str, seen: Seen, at: float) -> bool:
        """A loader as it is now; whether anything began, ended or reads differently."""
        holding = self._open.get(loader, {})
        watched = self._watched.get(loader)
        if watched is None:
            watched = self._watched[loader] = Watched(self._rules, seen, at, holding)
        if holding:  # somebody took it for news: it is told when that ends, and not before
            seen = structs.replace(seen, lived=True)
        found = watched.look(seen, at)
        undecided = watched.undecided(seen, at)
        changed = False
        for rule in [each for each in holding if each not in found and each not in undecided]:
            self._end(loader, rule, at)
            changed = True
        for rule, text in found.items():
            alert = holding.get(rule)
            if alert is None:
                self._begin(Alert(self._number(at), loader, rule, at, text[:256]))
                changed = True
            elif alert.text != text[:256]:
                holding[rule] = self._news[alert.id] = structs.replace(alert, text=text[:256])
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
        self._ended = {number: alert for number, alert in self._ended.items() if at - (alert.ended or at) < KEPT}
        return len(self._ended) != before

    # --------------------------------------------------------------------------------------------- other replicas

    def leave(self, loader: str) -> None:
        """Another replica looks at it."""
        self._watched.pop(loader, None)

    def keep(self, known: Container[str], at: float) -> bool:
        """Whether alerts went of loaders that are not known any more; whoever looked at these has told of it."""
        gone = [loader for loader in self._open if loader not in known]
        for loader in gone:
            for alert in self._open.pop(loader).values():
                self._keep_ended(structs.replace(alert, ended=at))
        return bool(gone)

    def learn(self, alert: Alert) -> bool:
        """Another replica changed it; whether that is news."""
        self._last = max(self._last, alert.id // WRITERS)
        of_loader = self._open.get(alert.loader, {})
        mine = of_loader.get(alert.rule)
        if alert.ended is not None:
            if alert.id in self._ended:
                return False
            if mine is not None and mine.id == alert.id:
                self._close(alert.loader, alert.rule)
            self._keep_ended(alert)
            return True
        if alert.id in self._ended or mine == alert or (mine is not None and mine.id < alert.id):
            return False  # it is over, or known, or two began it at once: the first one counts
        self._open.setdefault(alert.loader, {})[alert.rule] = alert
        return True

    def take_news(self) -> list[Alert]:
        """What was changed here since the last time."""
        news, self._news = list(self._news.values()), {}
        return news

    # ------------------------------------------------------------------------------------------------- inside

    def _number(self, at: float) -> int:
        self._last = max(self._last + 1, int(at * 1000))
        return self._last * WRITERS + self._writer

    def _begin(self, alert: Alert) -> None:
        self._open.setdefault(alert.loader, {})[alert.rule] = alert
        self._changed(alert)

    def _end(self, loader: str, rule: AlertRule, at: float) -> None:
        ended = structs.replace(self._close(loader, rule), ended=at)
        self._keep_ended(ended)
        self._changed(ended)

    def _close(self, loader: str, rule: AlertRule) -> Alert:
        holding = self._open[loader]
        alert = holding.pop(rule)
        if not holding:
            del self._open[loader]
        return alert

    def _keep_ended(self, alert: Alert) -> None:
        self._ended[alert.id] = alert
        while len(self._ended) > MOST:
            del self._ended[next(iter(self._ended))]

    def _changed(self, alert: Alert) -> None:
        self._news[alert.id] = alert
        self._on_change(alert)
