"""States of a loader: what `state_dict` gives and `load_state_dict` takes.

A state is a plain dict with named keys. It describes the point between two batches: which epoch, how many of its
batches training has had, and what is needed to go on: for map-style datasets the sampler's position, for
iterable-style ones the position of every shard.
"""

from __future__ import annotations

from typing import Any

import torch

from .sampling import kind_of, length_of
from .seeding import read, written

VERSION = 2

State = dict[str, Any]

KEYS = ("version", "epoch", "batch", "over", "base_seed", "sampler", "samplers", "dataset", "generator", "digest")
"""What every state has."""


CANNOT_SAVE = (
    "this iterable-style dataset cannot save its position: neither it nor its iterator has state_dict() and "
    "load_state_dict()"
)

OUT_OF_ORDER = "with in_order=False the place in an epoch cannot be saved: which batches are left depends on timing"


def unsaved(reason: str) -> State:
    """In place of a position that is not known. Loaded, it begins its epoch anew."""
    return {"unsaved": reason}


def shards_for(state: State, workers: int) -> list[State | None] | None:
    """The shards with which an epoch goes on, or begins; None: with new ones.

    An epoch under way goes on in its shards, whatever the number of workers. Between epochs there is one for every
    worker: what they kept is of use only to as many, and what training's own thread kept to all.
    """
    shards: list[State | None] | None = state.get("shards")
    if shards is None or not state["over"] or len(shards) == max(workers, 1):
        return shards
    if len(shards) == 1:
        return shards * workers
    return shards[:1] if workers == 0 else None


def describe(dataset: Any, sampler: Any) -> State:
    """What a state must have in common with the loader that takes it. `sampler`: None for iterable-style datasets."""
    return {
        "version": VERSION,
        "style": "iterable" if sampler is None else "map",
        "dataset_length": None if sampler is None else length_of(dataset),
        "sampling": None if sampler is None else kind_of(sampler),
    }


def check(state: Any, expected: State) -> State:
    """Return a state that fits, or say why it does not."""
    if not isinstance(state, dict) or "version" not in state:
        raise ValueError(f"this is not a state of a loader: {type(state).__name__} without a version")
    missing = [key for key in KEYS if key not in state]
    if missing:
        raise ValueError(f"the state is not whole: it has no {', '.join(map(repr, missing))}")
    for key, meaning in (
        ("version", "is of format version"),
        ("style", "is of a dataset of style"),
        ("dataset_length", "is of a dataset of length"),
        ("sampling", "was saved with the sampler"),
    ):
        if state.get(key) != expected[key]:
            raise ValueError(
                f"the state does not fit this loader: it {meaning} {state.get(key)!r}, not {expected[key]!r}"
            )
    return state


def generator_state(generator: torch.Generator | None) -> str | None:
    return None if generator is None else written(generator.get_state())


def restore_generator(generator: torch.Generator | None, state: str | None) -> None:
    if generator is not None and state is not None:
        generator.set_state(read(state))
