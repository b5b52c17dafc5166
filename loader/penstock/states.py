"""The state of a loader: what it is made from, and what is done with one. `checkpoint` has what a state looks like."""

from __future__ import annotations

import copy
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from . import checkpoint, sampling
from .checkpoint import State
from .digest import Digest
from .fetching import saves
from .iteration.base import EpochIterator
from .merging import localized

if TYPE_CHECKING:
    from .engine import Engine


class States:
    """Saves and loads the states of one loader."""

    def __init__(self, engine: Engine) -> None:
        self._reference = weakref.ref(engine)
        self._left: State | Exception | None = None
        """How far the epoch was that ended last, or why that is not known."""
        self._told = False
        """It was said that a state does not tell where in the epoch training was."""

    @property
    def _engine(self) -> Engine:
        engine = self._reference()
        if engine is None:
            raise RuntimeError("the loader is gone")
        return engine

    def note_end(self, iterator: EpochIterator) -> None:
        """An iterator's epoch is over. How far it was is kept: the iterator may be gone when somebody asks."""
        try:
            self._left = self._place_of(iterator)
        except Exception as error:  # of the user's own code, say: told to whoever asks for the state
            self._left = error

    def save(self) -> State:
        """What `DataLoader.state_dict` returns."""
        engine = self._engine
        if engine.resume_state is not None:
            return {**engine.resume_state}
        loader, current = engine.loader, engine.current()
        state: State = {
            **self._describe(),
            "epoch": engine.ledger.epochs,
            "batch": 0,
            "over": True,
            "base_seed": None,
            "sampler": None,
            "samplers": sampling.own_states(loader._index_sampler),
            "dataset": self._dataset_state(),
            "generator": checkpoint.generator_state(loader.generator),
            "digest": engine.ledger.digest.hex(),
        }
        if engine.quarantine is not None:
            state["quarantine"] = engine.quarantine.state()
        if current is not None:
            state.update(self._place_of(current))
        elif isinstance(self._left, Exception):
            raise self._left
        elif self._left is not None:
            state.update(self._left)
        if state["over"] and engine.is_iterable and loader.num_workers == 0 and saves(loader.dataset):
            own = {"dataset": copy.deepcopy(loader.dataset.state_dict())}  # type: ignore[attr-defined]
            state["shards"] = [{"dataset": own, "ended": False, "over": True, "generators": None}]
        if state.get("unsaved") and not self._told:
            self._told = True
            warnings.warn(
                f"{state['unsaved']}. The state that was asked for in the midst of an epoch says so; loaded, it begins "
                "that epoch anew.",
                stacklevel=3,
            )
        return state

    def load(self, state: State) -> None:
        """Have the next `iter()` go on from a state.

        Raises:
            TypeError, ValueError: It is no state, or of another loader.
            RuntimeError: The loader is closed.
        """
        engine = self._engine
        engine.check_open()
        loader = engine.loader
        if isinstance(state, dict) and "ranks" in state:
            state = localized(state, loader._index_sampler)
        checkpoint.check(state, self._describe())
        if state["sampler"] is not None:
            sampling.check_state(loader._index_sampler, state["sampler"])
        shards = state.get("shards") or []
        if len(shards) > 1 and not state["over"] and not engine.next_workers():
            raise ValueError(
                f"the state is of an epoch in {len(shards)} shards: "
                "it can be resumed with workers, not with num_workers=0"
            )
        if state.get("unsaved"):
            warnings.warn(
                f"the state does not say where in epoch {state['epoch']} training was ({state['unsaved']}): "
                "that epoch begins anew",
                stacklevel=3,
            )
            state = {**state, "batch": 0}
        if not engine.is_iterable and state.get("dataset") is not None and saves(loader.dataset):
            loader.dataset.load_state_dict(copy.deepcopy(state["dataset"]))  # type: ignore[attr-defined]
            engine.refresh()
        sampling.load_own_states(loader._index_sampler, state.get("samplers") or [])
        checkpoint.restore_generator(loader.generator, state["generator"])
        if engine.quarantine is not None and state.get("quarantine"):
            engine.quarantine.load(state["quarantine"])
            engine.tell_quarantine()
        engine.ledger.epochs = state["epoch"]
        engine.ledger.digest = Digest(bytes.fromhex(state["digest"]))
        engine.resume_state = state

    @staticmethod
    def _place_of(iterator: EpochIterator) -> State:
        """How far the epoch of an iterator is, or what it leaves to the next."""
        if iterator.exhausted:
            seed = iterator._base_seed if iterator._persistent_workers else None  # persistent workers keep it
            return {"over": True, "base_seed": seed, **iterator.final_state()}
        place = iterator.state_dict()
        return {"over": False, "epoch": iterator.number, "base_seed": iterator._base_seed, **place}

    def _dataset_state(self) -> Any:
        """A map-style dataset's own state, as it is in this process."""
        dataset = self._engine.loader.dataset
        if self._engine.is_iterable or not saves(dataset):
            return None
        return copy.deepcopy(dataset.state_dict())  # type: ignore[attr-defined]

    def _describe(self) -> State:
        loader, sampled = self._engine.loader, not self._engine.is_iterable
        return checkpoint.describe(loader.dataset, loader._index_sampler if sampled else None)
