"""The samples that were found to be bad: how many an epoch may have, and a list that the next run can begin with."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from .protocol import Quarantined
from .tolerating import Bad, named

log = logging.getLogger("penstock")

ENOUGH = 100
"""Samples that an epoch must have had before their share is judged, where its length is not known."""
LISTED = 10
"""How many an error lists."""


class TooManyErrorsError(RuntimeError):
    """More samples of an epoch were bad than `max_errors` allows."""


class Quarantine:
    """Written by the iterating thread; others read `entries`."""

    def __init__(
        self, max_errors: float, path: str | None, length: int | None, tell: Callable[[Quarantined], None]
    ) -> None:
        """`max_errors`: a number if it is an int, else a share of `length`, the dataset's, or of what an epoch had.
        `tell` is called with each that is found, once.
        """
        self._most = max_errors
        self._tell = tell
        self._length = length
        self._path = None if path is None else Path(path)
        self.entries: list[Quarantined] = []
        self._places: dict[Any, int] = {}
        """Index → its place in `entries`."""
        self._epoch = -1
        self._found: list[Quarantined] = []
        """Those of the epoch under way."""
        self._noted = (-1, -1)
        self.fatal: dict[Any, Bad] = {}
        """Index → what is told of a sample at which workers hung or died: those that live on do not know of it."""
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def known(self) -> set[Any]:
        """Indices that need not be tried any more."""
        return set(self._places)

    def note(self, epoch: int, batch: int, bad: list[Bad], samples: int) -> None:
        """Training is given a batch with bad samples; `samples`: how many the epoch has had.

        Raises:
            TooManyErrorsError: There are more in this epoch than there may be.
        """
        if self._noted == (epoch, batch):  # given again, after an interruption
            return
        self._noted = epoch, batch
        if epoch != self._epoch:
            self._epoch, self._found = epoch, []
        for each in bad:
            if each.fatal:
                self.fatal[named(each.index)] = each._replace(times=0, traceback="")
            entry = self._add(epoch, batch, each)
            if not each.stand_in:
                self._found.append(entry)
        if len(self._found) > self._allowed(samples):
            shown = "\n".join(f"  {_called(each)}: {each.error}" for each in self._found[-LISTED:])
            raise TooManyErrorsError(
                f"{len(self._found)} samples of epoch {epoch} were bad by batch {batch}, more than "
                f"max_errors={self._most} allows. The last of them:\n{shown}\n\n{self._found[-1].traceback}"
            )

    def _allowed(self, samples: int) -> float:
        if isinstance(self._most, int):
            return self._most
        if self._length is not None:
            return max(self._most * self._length, 1)
        return self._most * samples if samples >= ENOUGH else ENOUGH

    def _add(self, epoch: int, batch: int, bad: Bad) -> Quarantined:
        key = None if bad.index is None else named(bad.index)
        place = self._places.get(key)
        if place is not None:
            old = self.entries[place]
            entry = Quarantined(
                old.index, old.where, bad.error or old.error, bad.traceback or old.traceback, old.times + bad.times,
                epoch, batch, old.number,
            )  # fmt: skip
            self.entries[place] = entry
            return entry
        entry = Quarantined(
            "" if key is None else str(key), bad.where, bad.error, bad.traceback, bad.times, epoch, batch,
            isinstance(key, int),
        )  # fmt: skip
        if key is not None:
            self._places[key] = len(self.entries)
        self.entries.append(entry)
        self._write(key, entry)
        self._tell(entry)
        return entry

    # -- the list of the next run ---------------------------------------------------------------------------

    def _read(self, path: Path) -> None:
        """A line for each, as JSON: only the index counts."""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip():
                try:
                    self._restore([json.loads(line)])
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f'line {number} of quarantine={str(path)!r} is not like {{"index": 7}}') from error

    def _write(self, key: Any, entry: Quarantined) -> None:
        if self._path is None or key is None:
            return
        line = json.dumps({"index": key, "where": entry.where, "error": entry.error})
        try:
            with self._path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            log.warning("the quarantine cannot be written to %s: %s", self._path, error)
            self._path = None

    # -- states ---------------------------------------------------------------------------------------------

    def state(self) -> list[dict[str, Any]]:
        indices = {place: key for key, place in self._places.items()}
        return [
            {"index": indices[place], "where": each.where, "error": each.error, "times": each.times}
            for place, each in enumerate(self.entries)
            if place in indices
        ]

    def load(self, state: Iterable[dict[str, Any]]) -> None:
        self.entries, self._places, self._found = [], {}, []
        self._restore(state)

    def _restore(self, entries: Iterable[dict[str, Any]]) -> None:
        for each in entries:
            key = each["index"]
            if not isinstance(key, int | str):
                raise TypeError(key)
            if key not in self._places:
                self._places[key] = len(self.entries)
                where: Literal["dataset", "collate_fn"] = (
                    "collate_fn" if each.get("where") == "collate_fn" else "dataset"
                )
                self.entries.append(
                    Quarantined(
                        str(key), where, str(each.get("error", "")), times=int(each.get("times", 0)),
                        number=isinstance(key, int),
                    )
                )  # fmt: skip


def _called(entry: Quarantined) -> str:
    return f"sample {entry.index}" if entry.index else f"batch {entry.batch}"
