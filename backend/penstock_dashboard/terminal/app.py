"""`penstock top` at work: what the keys do, what is heard, when the screen is drawn."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from penstock.protocol import Frame, Gap, LoaderRow, Order, Overview, Session, Subscribe, ToViewer

from ..terminal.client import Client
from ..terminal.clock import Offset
from ..terminal.controls import Controls
from ..terminal.facts import LoaderFacts, applied, ordered, wanted
from ..terminal.feed import Feed, Status
from ..terminal.keys import Keys
from ..terminal.options import Failure
from ..terminal.screens import Surroundings, help_screen, loader_screen, overview_screen
from ..terminal.targets import Target, parse
from ..terminal.tty import Terminal, colourful

FRAME = 0.1
"""Least seconds between two pictures."""
TICK = 0.5
"""Most seconds between two pictures: ages grow even if nothing is heard."""
ESCAPE = 0.05
"""Seconds after which an Escape without a sequel is the key."""


class App:
    """`penstock top`: what is looked at, which keys do what, and when the screen is drawn."""

    def __init__(self, client: Client, terminal: Terminal, target: Target | None) -> None:
        self._client = client
        self._terminal = terminal
        self._target = target
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._feed = Feed(
            client,
            lambda message: self._post(lambda: self._receive(message)),
            lambda status, reason: self._post(lambda: self._changed(status, reason)),
        )
        self._clock = Offset()
        self._status: Status = "connecting"
        self._reason = ""
        self._session: Session | None = None
        self._rows: dict[str, LoaderRow] = {}
        self._chosen = ""
        self._watched: LoaderFacts | None = None
        self._controls: Controls | None = None
        self._first_worker = 0
        self._help = False
        self._notice = ""
        self._quit = False

    def run(self) -> int:
        """Until somebody wants it to end; the exit status."""
        keys, drawn, urgent = Keys(), 0.0, True
        if self._target is not None and self._target.id is not None:
            self._open(self._target.id)
        self._feed.start()
        try:
            while not self._quit and not self._terminal.ended_by:
                now = time.monotonic()
                if urgent or now - drawn >= FRAME:
                    self._draw(urgent)
                    drawn = now
                    urgent = False
                typed = self._terminal.wait(ESCAPE if keys.waiting else TICK if self._inbox.empty() else FRAME)
                if typed is None:
                    return 0
                for key in keys.feed(typed) if typed else keys.settle():
                    self._notice = ""
                    urgent = True
                    self._pressed(key)
                self._work()
        finally:
            self._feed.stop()
        return 128 + self._terminal.ended_by if self._terminal.ended_by else 0

    # ------------------------------------------------------------------------------------------- what is heard

    def _post(self, work: Callable[[], None]) -> None:
        """From any thread: do this in the main one."""
        self._inbox.put(work)
        self._terminal.wake()

    def _work(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _receive(self, message: ToViewer) -> None:
        if isinstance(message, Session | Frame):
            self._clock.note(message.at, time.monotonic())
        if isinstance(message, Session):
            self._session = message
        elif isinstance(message, Overview):
            self._rows = applied(self._rows, message)
            self._choose(0)
        elif isinstance(message, Gap) and self._watched is not None:
            self._backfill(self._watched)
        elif self._watched is not None:
            self._watched.receive(message)
            if self._controls is not None:
                self._controls.settle()

    def _changed(self, status: Status, reason: str) -> None:
        self._status = status
        self._reason = reason or (self._reason if status == "connecting" else "")
        if status == "open" and self._watched is not None:
            self._backfill(self._watched)

    def _backfill(self, facts: LoaderFacts) -> None:
        """Subscribed first; now ask for what came before, and let doubles fall away."""

        def fetch() -> None:
            try:
                events, commands = self._client.events(facts.id), self._client.commands(facts.id)
            except Failure:
                return  # the live stream goes on, and says why if it cannot

            def take() -> None:
                facts.add_events(events)
                for record in commands:
                    facts.add_command(record)

            self._post(take)

        threading.Thread(target=fetch, daemon=True).start()

    # --------------------------------------------------------------------------------------- what the keys do

    def _pressed(self, key: str) -> None:
        if self._help:
            self._help = False
        elif key == "q":
            self._quit = True
        elif key == "?":
            self._help = True
        elif self._watched is None or self._controls is None:
            self._pressed_in_overview(key)
        else:
            self._pressed_in_loader(key, self._controls)

    def _pressed_in_overview(self, key: str) -> None:
        page = max(1, self._terminal.size[1] - 7)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        far = {"home": -len(self._rows), "end": len(self._rows)}
        if key in steps or key in far:
            self._choose({**steps, **far}[key])
        elif key == "enter" and self._chosen:
            self._open(self._chosen)
        elif key in ("p", "+", "=", "-", "a"):
            self._notice = "Enter opens the loader; there p pauses and + - resize."

    def _pressed_in_loader(self, key: str, controls: Controls) -> None:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -8, "page down": 8}
        if key in steps:
            most = max(0, len(self._watched.workers) - 1) if self._watched is not None else 0
            self._first_worker = min(most, max(0, self._first_worker + steps[key]))
        elif key in ("escape", "backspace"):
            if not controls.undial():
                self._close()
        elif key in ("p", "+", "=", "-", "a", "enter"):
            self._steer(key, controls)

    def _steer(self, key: str, controls: Controls) -> None:
        off = controls.off(self._session, self._status == "open")
        if off:
            self._notice = "" if key == "enter" else "These keys are off; the reason is above."
            return
        order = None
        if key == "p":
            order = controls.toggle_pause()
        elif key in ("a", "enter"):
            order = controls.apply()
        else:
            controls.dial(-1 if key == "-" else 1)
        if order is not None and self._watched is not None:
            self._ask(self._watched, controls, order)

    def _ask(self, facts: LoaderFacts, controls: Controls, order: Order) -> None:
        target = parse(facts.id)

        def send() -> None:
            try:
                record = self._client.order(target, order).commands[0]
            except Failure as failure:
                reason = str(failure)
                self._post(lambda: controls.refused(reason))
                return

            def take() -> None:
                facts.add_command(record)
                controls.answered(record.id, order)
                controls.settle()

            self._post(take)

        threading.Thread(target=send, daemon=True).start()

    # ------------------------------------------------------------------------------------------ what is shown

    def _shown_rows(self) -> list[LoaderRow]:
        return ordered(row for row in self._rows.values() if wanted(row, self._target))

    def _choose(self, by: int) -> None:
        rows = self._shown_rows()
        place = next((number for number, row in enumerate(rows) if row.id == self._chosen), 0)
        self._chosen = rows[min(len(rows) - 1, max(0, place + by))].id if rows else ""

    def _open(self, identifier: str) -> None:
        self._chosen = identifier
        self._watched = LoaderFacts(identifier)
        self._controls = Controls(self._watched)
        self._first_worker = 0
        self._feed.subscribe(Subscribe(loaders=[identifier]))
        if self._status == "open":
            self._backfill(self._watched)

    def _close(self) -> None:
        self._watched = self._controls = None
        if self._target is not None and self._target.id is not None:
            self._target = None  # it was opened from the command line: the way out leads to all loaders
        self._feed.subscribe(Subscribe(overview=True))

    def _draw(self, urgent: bool) -> None:
        columns, rows = self._terminal.size
        around = Surroundings(
            columns,
            rows,
            colourful(),
            time.monotonic(),
            self._clock,
            self._status,
            self._reason,
            self._session,
        )
        if self._help:
            lines = help_screen(around)
        elif self._watched is None or self._controls is None:
            lines = overview_screen(around, self._shown_rows(), self._chosen, self._notice)
        else:
            facts = self._watched
            lines = loader_screen(around, facts, self._controls, self._first_worker, self._notice)
        self._terminal.draw(lines, urgent)
