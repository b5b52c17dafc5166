"""Iterators of loaders that tolerate bad samples: they are noted, and batches of which nothing is left passed over."""

from __future__ import annotations

from typing import Any

from ..checkpoint import State
from ..digest import Digest
from ..pool.window import Task
from ..quarantine import TooManyErrorsError
from ..tolerating import NOTHING, Bad, named
from .base import EpochIterator
from .inline import InlineIterator
from .pooled import PooledIterator


class _Tolerant(EpochIterator):
    _too_many = ""
    """Why the epoch was given up, though batches may be ready; empty: it was not."""

    def open(self, state: State | None) -> None:
        self._too_many = ""
        super().open(state)

    def _next(self) -> Any:
        if self._too_many:
            raise TooManyErrorsError(self._too_many)
        while True:
            data = super()._next()
            bad = self._bad()
            if bad:
                self._note_bad(bad)
            if data is not NOTHING:
                return data
            self._count()

    def _note_bad(self, bad: list[Bad]) -> None:
        quarantine, batch, counts = self._engine.quarantine, self.place.batch, self._next_counts
        if quarantine is None:
            return
        digest = Digest(counts[3]).after(self.number, batch, [str(each.index) for each in bad if not each.stand_in], 0)
        self._next_counts = (*counts[:3], digest)
        try:
            quarantine.note(self.number, batch, bad, counts[1] - self._samples_before + len(bad))
        except TooManyErrorsError as error:
            self._count()
            self.close_epoch("failed", str(error).partition("\n")[0])
            self._too_many = str(error)
            self._give_up()
            raise

    def _bad(self) -> list[Bad]:
        """What was bad in the batch in hand."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """There are to be no more batches."""
        raise NotImplementedError


class TolerantInlineIterator(_Tolerant, InlineIterator):
    """An inline iterator that passes over batches of which nothing is left."""

    def _bad(self) -> list[Bad]:
        return self._maker.bad

    def _give_up(self) -> None:
        self._indices = iter(())


class TolerantPooledIterator(_Tolerant, PooledIterator):
    """A pooled iterator that passes over batches of which nothing is left."""

    def _make_task(self, batch: int, indices: Any) -> Task:
        """Without samples at which workers hung or died: those that live on would do so again."""
        task, quarantine = Task(batch, indices), self._engine.quarantine
        if quarantine is not None and quarantine.fatal:
            keys = indices if isinstance(indices, list | tuple) else [indices]
            names = enumerate(map(named, keys))
            known = {place: quarantine.fatal[name] for place, name in names if name in quarantine.fatal}
            task.without = known or None
        return task

    def _bad(self) -> list[Bad]:
        batch = self._hand[0].batch
        return [] if batch is None or not batch.bad else [Bad(*each) for each in batch.bad]

    def _give_up(self) -> None:
        if self._epoch is not None:  # an error of its own: the one raised leads by its traceback to this iterator
            self._epoch.fail(TooManyErrorsError(self._too_many))
