"""The shards of an iterable-style dataset that one worker reads.

A shard is what torch's worker of that number would read. At the start of an epoch every worker has the shard of its
own number. If the dataset can save its position, shards can move: to a worker in a pool that was resized, or to
another process after a checkpoint. What moves is the dataset's own state and that of the random generators, so the
shard goes on exactly as it would have.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

from ...failures import UnpicklableError, describe_unpicklable
from ...fetching import IterableFetcher
from ...tolerating import TolerantStream
from ..tasks import Recipe
from .messages import Birth
from .surroundings import Surroundings

ShardState = dict[str, Any]
"""A shard's position: `dataset`, its own state; `ended`; `generators`, the state of the random generators or None."""


def over(fetcher: IterableFetcher, generators: dict[str, Any] | None) -> ShardState:
    """What a shard that was read to its end leaves to the next epoch."""
    return {"dataset": fetcher.final_state(), "ended": False, "over": True, "generators": generators}


class _Uncopied:
    """In place of a copy that could not be made: the reason."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Shard:
    def __init__(self, number: int, info: Any, fetcher: IterableFetcher) -> None:
        self.number = number
        self.info = info
        self.fetcher = fetcher
        self.generators: dict[str, Any] | None = None


class Shards:
    """The shards that one worker has open, with the position and the random generators of each."""

    def __init__(self, recipe: Recipe, birth: Birth, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._recipe = recipe
        self._birth = birth
        self._pristine: Any = None
        self._untouched = True
        """Nothing has been read with the worker's own dataset."""
        self._own_info: Any = None
        self._own_streams: dict[str, Any] | None = None
        """The random streams of the worker's own shard, while another one is read and that one is not open."""
        self._shards: dict[int, _Shard] = {}
        self._current: _Shard | None = None
        self._adopted: dict[int, ShardState | None] = {}

    def keep_pristine(self) -> None:
        """Keep a copy of the dataset as it is before worker_init_fn, which may fit it to this worker's number, and
        before it is read, which may move its position."""
        self._own_info = self._surroundings.introduced()
        recipe = self._recipe
        if recipe.stateful or (recipe.movable and recipe.worker_init_fn is not None):
            try:
                self._pristine = copy.deepcopy(self._recipe.dataset)
            except Exception as error:  # whatever the user's class raises
                self._pristine = _Uncopied(error)

    def clear(self) -> None:
        """A new epoch: every shard starts anew. The random streams of the own one go on, as torch's do."""
        own = self._shards.get(self._birth.worker)
        if own is not None:
            self._own_streams = self._surroundings.streams() if own is self._current else own.generators
        self._shards.clear()
        self._adopted.clear()
        self._current = None

    def adopt(self, number: int, state: bytes | None) -> None:
        """Read this shard too, from `state` on."""
        self._shards.pop(number, None)
        self._adopted[number] = None if state is None else pickle.loads(state)
        if self._current is not None and self._current.number == number:
            self._current = None

    def fetcher(self, number: int) -> IterableFetcher:
        """The fetcher of a shard, with worker info and random generators as that shard has them."""
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = self._make(number)
        elif shard is not self._current:
            self._switch(shard)
        return shard.fetcher

    def state(self, number: int) -> bytes | None:
        """The shard's position as a pickle, if its dataset can tell."""
        shard = self._shards.get(number)
        if shard is None or not shard.fetcher.stateful:
            return None
        fetcher = shard.fetcher
        state = {"dataset": fetcher.state_dict(), "ended": fetcher.ended, "generators": self._surroundings.streams()}
        try:
            return pickle.dumps(state, 5)
        except Exception as error:
            culprit = describe_unpicklable(state["dataset"], "state_dict()", lambda part: pickle.dumps(part, 5))
            raise UnpicklableError(f"the dataset's position cannot be sent to training: {culprit}: {error}") from error

    def final_state(self, number: int) -> bytes | None:
        """What a shard that has ended leaves to the next epoch: its dataset's own state and the random generators'."""
        shard = self._shards.get(number)
        if shard is None:
            return None
        state = over(shard.fetcher, self._surroundings.streams())
        try:
            return pickle.dumps(state, 5)
        except Exception:  # a state that cannot be sent was never sent: the epoch's batches do not fail for it
            return None

    def _make(self, number: int) -> _Shard:
        birth, recipe, surroundings = self._birth, self._recipe, self._surroundings
        adopted = number in self._adopted
        state = self._adopted.pop(number, None)
        if self._current is not None:
            self._current.generators = self._surroundings.streams()
        elif self._own_streams is None:
            self._own_streams = self._surroundings.streams()
        dataset = recipe.dataset
        if number == birth.worker and (self._untouched or not adopted):
            info = self._own_info
            surroundings.introduce(info)
            if self._own_streams is not None:
                self._surroundings.restore(self._own_streams)
                self._own_streams = None
        else:
            dataset = self._copy()
            info = surroundings.info(number, birth.num_workers, birth.base_seed, dataset)
            surroundings.introduce(info)
            surroundings.seed_worker(birth.base_seed, number)
            if recipe.worker_init_fn is not None:
                recipe.worker_init_fn(number)
        self._untouched = False
        is_over = state is not None and state.get("over", False)
        if (
            state is not None and is_over and state["generators"] is not None
        ):  # before the dataset's `__iter__`, which may draw
            self._surroundings.restore(state["generators"])
        position = None if state is None else state["dataset"]
        time_all = bool(recipe.record_samples)
        arguments = dataset, recipe.auto_collation, recipe.drop_last, position, time_all
        if recipe.tolerance is None:
            fetcher = IterableFetcher(*arguments, over=is_over)
        else:
            fetcher = TolerantStream(recipe.tolerance, *arguments, over=is_over)
        if state is not None:
            fetcher.ended = state["ended"]
            if state["generators"] is not None and not is_over:
                self._surroundings.restore(state["generators"])
        self._current = _Shard(number, info, fetcher)
        return self._current

    def _copy(self) -> Any:
        """The dataset as it came to this worker, for a shard that is not its own."""
        if isinstance(self._pristine, _Uncopied):
            raise TypeError(
                f"the dataset cannot be copied, so its shards cannot move between workers: {self._pristine.error}"
            )
        return copy.deepcopy(self._recipe.dataset if self._pristine is None else self._pristine)

    def _switch(self, shard: _Shard) -> None:
        if self._current is not None:
            self._current.generators = self._surroundings.streams()
        self._surroundings.introduce(shard.info)
        if shard.generators is not None:
            self._surroundings.restore(shard.generators)
        self._current = shard
