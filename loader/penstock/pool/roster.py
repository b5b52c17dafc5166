"""The workers of a pool, of all its crews, as the conductor knows them."""

from __future__ import annotations

from collections.abc import Iterator

from .crews.crew import Worker


class Roster:
    """All workers that exist or are being made, by key."""

    def __init__(self, most: int) -> None:
        """`most`: ids are below it."""
        self._most = most
        self._workers: dict[int, Worker] = {}
        self._next_key = 0

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def new_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def free_id(self) -> int | None:
        """The lowest id that no worker has; None if there are too many."""
        used = {worker.id for worker in self._workers.values()}
        return next((number for number in range(self._most) if number not in used), None)

    def add(self, worker: Worker) -> None:
        self._workers[worker.key] = worker

    def remove(self, worker: Worker) -> None:
        self._workers.pop(worker.key, None)

    def active(self) -> list[Worker]:
        """Those that are meant to work, there or about to be, by id."""
        return sorted((w for w in self._workers.values() if not w.leaving), key=lambda w: w.id)

    def present(self) -> int:
        """How many of them exist."""
        return sum(1 for w in self._workers.values() if w.pid and not w.leaving)

    def costs(self) -> dict[int, list[int]]:
        """Id of each worker → the counts of its sample times so far. Any thread may ask."""
        return {worker.id: worker.costs() for worker in self}
