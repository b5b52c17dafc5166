"""When one loader may try something, among those of its host."""

from __future__ import annotations

from .lease import Rank
from .reading import Reading
from .tuner import Step, Tuner

UNUSED = 10.0
"""Seconds after which a turn that nothing was tried in goes to another rank."""


class Turns:
    """Asks a tuner in its turn only, and tells the other ranks how this one stands."""

    def __init__(self, tuner: Tuner, rank: Rank | None) -> None:
        self._tuner = tuner
        self._rank = rank
        self._since: float | None = None
        """When this turn began; None: it is not ours."""
        self.ranks = 1
        """Loaders of this host, this one included."""

    def others_use(self) -> float:
        """Processors that the other ranks use."""
        others = [] if self._rank is None else self._rank.others()
        self.ranks = 1 + len(others)
        return sum(each.processors for each in others)

    def observe(self, reading: Reading, training_uses: float) -> Step | None:
        """Ask the tuner. `training_uses`: processors that training itself uses."""
        step = self._tuner.observe(reading, may_try=self._rank is None or self._since is not None)
        if self._rank is None:
            return step
        tuner = self._tuner
        waiting, workers_use = tuner.standing()
        if reading.steady:  # one that stands still has nothing to say
            self._rank.tell(waiting, training_uses + workers_use, tuner.held, tuner.wants)
        if self._since is None:
            if tuner.wants and self._rank.take_turn(waiting):
                self._since = reading.at
        elif not tuner.experimenting and (not tuner.wants or reading.at - self._since > UNUSED):
            self.end()
        return step

    def end(self) -> None:
        """Somebody else may try something."""
        if self._since is not None and self._rank is not None:
            self._since = None
            self._rank.end_turn()

    def leave(self) -> None:
        """The loader is not tuned any more."""
        if self._rank is not None:
            self._rank.leave()
