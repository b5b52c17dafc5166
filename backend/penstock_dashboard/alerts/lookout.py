"""Looks at every loader for what is worth an alert, and sees that it is told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from urllib.parse import quote

from penstock.protocol import Alert, Alerts

from ..registry import Entry, Registry
from ..settings import Settings
from .book import AlertBook
from .rules import Seen
from .senders import Command, Senders, Webhook

ROUNDS = 10
"""Each look takes one in so many loaders, so that thousands cost little at a time."""
FEW = 100
"""So many loaders or fewer are all looked at each time."""


class Lookout:
    """Alerts of all loaders: on the page, and to whom the settings name."""

    def __init__(self, settings: Settings, registry: Registry, tell: Callable[[Alerts], None]) -> None:
        self._settings = settings
        self._registry = registry
        self._tell = tell
        self._book = AlertBook(settings.alerts.rules, self._changed)
        self._senders = Senders(
            [
                *(Webhook(url) for url in settings.alerts.webhooks),
                *(Command(command) for command in settings.alerts.commands),
            ]
        )
        self._round = itertools.count()
        self._problems: list[str] = []

    @property
    def told(self) -> Alerts:
        """What viewers are shown."""
        return Alerts(self._book.alerts, self._problems)

    def look(self) -> None:
        """Called twice a second, on the event loop."""
        at, turn = time.time(), next(self._round)
        rounds = 1 if len(self._registry) <= FEW else ROUNDS
        changed = self._book.sweep(at)
        for place, entry in enumerate(self._registry):
            if place % rounds == turn % rounds and entry.brief is not None:
                changed |= self._book.look(entry.id, _seen(entry), at)
        problems = self._senders.problems
        if changed or problems != self._problems:
            self._problems = problems
            self._tell(self.told)

    def forget(self, entry: Entry) -> None:
        if self._book.forget(entry.id, time.time()):
            self._tell(self.told)

    def stop(self) -> None:
        """No thread and no command is left behind."""
        self._senders.stop()

    def _changed(self, alert: Alert) -> None:
        self._senders.tell(alert, self._page(alert.loader))

    def _page(self, loader: str) -> str:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        return f"{settings.public_url or f'http://{host}:{settings.port}'}/#/loader/{quote(loader, safe='')}"


def _seen(entry: Entry) -> Seen:
    brief, rates = entry.brief, entry.rates
    assert brief is not None
    verdict = entry.verdict()
    fatal = brief.errors is not None and brief.errors.fatal
    return Seen(
        lived=entry.lived,
        presence=entry.presence,
        state=brief.state,
        limit=verdict.limit,
        sentence=verdict.sentence,
        progress=(brief.epoch, brief.batch),
        waiting=rates.starvation + rates.reorder_stall + rates.pin_wait + rates.sampler + rates.startup > 0.5,
        rss=rates.rss,
        largest=brief.largest,
        workers=brief.workers,
        quarantined=brief.quarantined,
        error=brief.errors.text if brief.errors is not None and fatal else "",
    )
