"""Looks at every loader for what is worth an alert, and sees that it is told."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

from penstock.protocol import Alert, Alerts

from ..registry import Brief, Entry, Registry
from ..settings import Settings
from .book import AlertBook
from .rules import Seen
from .senders import Command, Senders, Webhook

ROUNDS = 10
"""Each look takes one in so many loaders, so that thousands cost little at a time."""
FEW = 100
"""So many loaders or fewer are all looked at each time."""


class Others(Protocol):
    """The other replicas."""

    def in_charge(self, entry: Entry) -> bool:
        """Whether this replica is the one that looks after a loader."""

    def alerted(self, alerts: list[Alert], problems: list[str]) -> None:
        """These have changed here."""


class Lookout:
    """Alerts of all loaders: on the page, and to whom the settings name. Of each loader one replica looks, and tells
    those whom the settings name; viewers are told by all."""

    def __init__(
        self, settings: Settings, registry: Registry, tell: Callable[[Alerts], None], others: Others, writer: int
    ) -> None:
        """`writer`: a number of this replica's own."""
        self._settings = settings
        self._registry = registry
        self._tell = tell
        self._others = others
        self._book = AlertBook(settings.alerts.rules, self._changed, writer)
        self._senders = Senders(
            [
                *(Webhook(url) for url in settings.alerts.webhooks),
                *(Command(command) for command in settings.alerts.commands),
            ]
        )
        self._round = itertools.count()
        self._problems: list[str] = []
        self._problems_elsewhere: dict[str, list[str]] = {}
        """Replica → why it could not tell somebody."""

    @property
    def told(self) -> Alerts:
        """What viewers are shown."""
        problems = [self._problems, *self._problems_elsewhere.values()]
        return Alerts(self._book.alerts, list(dict.fromkeys(itertools.chain(*problems))))

    @property
    def known(self) -> tuple[list[Alert], list[str]]:
        """What a replica is told that knows nothing yet: all alerts, and why somebody could not be told."""
        return [*self._book.ended[::-1], *self._book.holding], self._problems

    def look(self) -> None:
        """Called twice a second, on the event loop."""
        at, turn = time.time(), next(self._round)
        rounds = 1 if len(self._registry) <= FEW else ROUNDS
        changed = self._book.sweep(at) | self._book.keep(self._registry, at)
        for place, entry in enumerate(self._registry):
            if place % rounds == turn % rounds:
                if self._others.in_charge(entry):
                    changed |= self._book.look(entry.id, _seen(entry), at)
                else:
                    self._book.leave(entry.id)
        problems = self._senders.problems
        if changed or problems != self._problems:
            self._problems = problems
            self._share()
            self._tell(self.told)

    def forget(self, entry: Entry) -> None:
        at = time.time()
        if self._others.in_charge(entry):
            changed = self._book.forget(entry.id, at)
            self._share()
        else:
            self._book.leave(entry.id)
            changed = self._book.keep(self._registry, at)
        if changed:
            self._tell(self.told)

    def hear(self, replica: str, alerts: list[Alert], problems: list[str]) -> None:
        """What has changed at another replica."""
        changed = [alert for alert in alerts if self._book.learn(alert)]
        if changed or problems != self._problems_elsewhere.get(replica, []):
            self._problems_elsewhere[replica] = problems
            self._tell(self.told)

    def lose(self, replica: str) -> None:
        """Another replica is gone."""
        if self._problems_elsewhere.pop(replica, None):
            self._tell(self.told)

    def _share(self) -> None:
        self._others.alerted(self._book.take_news(), self._problems)

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
    brief, rates = entry.brief or Brief(0.0, entry.state, 0, 0, None, 0, 0), entry.rates
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
