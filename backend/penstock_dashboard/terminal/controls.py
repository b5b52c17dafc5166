"""What the keys ask of the loader that is shown, and what became of it. No IO."""

from __future__ import annotations

from penstock.insight.commands import OVER
from penstock.protocol import MAX_WORKERS, Order, Pause, Resize, Resume, Session

from ..terminal.facts import LoaderFacts


class Controls:
    """The dial for workers, and what was asked for with it."""

    def __init__(self, facts: LoaderFacts) -> None:
        self._facts = facts
        self.wanted: int | None = None
        """What the person has dialled; None while nothing was."""
        self.sending = False
        """An order is on its way to the dashboard."""
        self.problem = ""
        """Why the last order was not taken."""
        self.mine = ""
        """The resize that was asked for here and is not over."""

    @property
    def target(self) -> int:
        """Workers there shall be, as the loader says."""
        snapshot = self._facts.snapshot
        if snapshot is None:
            return 0
        return snapshot.target if snapshot.pending is None else snapshot.pending

    @property
    def shown(self) -> int:
        return self.target if self.wanted is None else self.wanted

    @property
    def changed(self) -> bool:
        return self.wanted is not None and self.wanted != self.target

    @property
    def most(self) -> int:
        detail = self._facts.detail
        return (detail.config.max_workers if detail is not None else 0) or MAX_WORKERS

    @property
    def paused(self) -> bool:
        return self._facts.snapshot is not None and self._facts.snapshot.state == "paused"

    def off(self, session: Session | None, connected: bool) -> str:
        """Why the keys do nothing; empty if they work."""
        detail, snapshot = self._facts.detail, self._facts.snapshot
        if not connected or session is None:
            return "Not connected: nothing can be asked just now."
        if session.read_only or "control" not in session.scopes:
            return (
                "Read-only: the dashboard was started with --read-only, or your token may only view. "
                "Control needs a token with the scope “control”."
            )
        if detail is not None and detail.row.refuses:
            return detail.row.refuses
        return "Waiting for the loader's first word." if snapshot is None else ""

    def dial(self, by: int) -> None:
        self.problem = ""
        self.wanted = min(self.most, max(1, self.shown + by))

    def undial(self) -> bool:
        """Back to what is; False if there was nothing to take back."""
        was, self.wanted, self.problem = self.changed or bool(self.problem), None, ""
        return was

    def apply(self) -> Order | None:
        if self.wanted is None or not self.changed or self.sending:
            return None
        return self._begin(Resize(self.wanted))

    def toggle_pause(self) -> Order | None:
        if self.sending:
            return None
        return self._begin(Resume() if self.paused else Pause())

    def answered(self, command: str, order: Order) -> None:
        self.sending = False
        if isinstance(order, Resize):
            self.mine = command

    def refused(self, reason: str) -> None:
        self.sending, self.problem = False, reason

    def settle(self) -> None:
        """Once the loader has said what became of the resize, the dial shows what is."""
        done = next((each for each in self._facts.commands if each.id == self.mine), None)
        if done is None or (done.state not in OVER and done.state != "pending"):
            return
        self.mine = ""
        if self.wanted == done.workers:
            self.wanted = None

    def _begin(self, order: Order) -> Order:
        self.sending, self.problem = True, ""
        return order
