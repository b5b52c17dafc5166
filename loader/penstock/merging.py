"""States of all ranks put together, so that another number of ranks can go on from them.

A `DistributedSampler` deals one order out to its ranks like cards. When each of R ranks has taken p of its cards, the
first R·p of the order are gone; in general, those that the ranks' positions say. What is left is dealt out anew to
however many ranks there are now, and so every sample of the epoch is seen exactly once. Only the remainder is as it
always is with that sampler: where what is left cannot be dealt out evenly, it is filled up by repeating samples from
its beginning, or with `drop_last=True` its end is left out.

The merged state holds those of the ranks; a loader that takes it works out its own part (`localized`), because only it
knows how many ranks there are now, which one it is, and how large its batches are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import sampling
from .checkpoint import VERSION, State, check
from .digest import Digest

_GOLDEN = 0x9E3779B97F4A7C15


def merge_states(states: Sequence[State]) -> State:
    """One state from those of all ranks, which any number of ranks may load.

    Args:
        states: What `state_dict` returned on every rank, in the order of ranks, between the same two steps of training.

    Returns:
        A plain dict for `load_state_dict` of every rank's loader. The sampler must deal out one order alike on all
        ranks (`DistributedSampler`, ours or torch's, with the same seed); batch size and number of workers may change.

    Raises:
        ValueError: The states are not those of all ranks at one point of one epoch, or not of such a sampler.
    """
    ranks = list(states)
    if not ranks:
        raise ValueError("merge_states expects the states of all ranks, but got none")
    for rank, state in enumerate(ranks):
        if not isinstance(state, dict) or state.get("version") != VERSION or "ranks" in state:
            raise ValueError(f"what was given for rank {rank} is not a state of a loader")
        check(state, {**ranks[0], **{key: ranks[0].get(key) for key in ("style", "dataset_length", "sampling")}})
        for key in ("epoch", "over"):
            if state[key] != ranks[0][key]:
                raise ValueError(
                    f"the states are not of one moment: rank {rank} has {key}={state[key]!r}, rank 0 {ranks[0][key]!r}"
                )
    if not ranks[0]["over"]:
        parts = [_part(state["sampler"]) for state in ranks]
        for rank, part in enumerate(parts):
            if part["num_replicas"] != len(ranks):
                raise ValueError(f"the states are of {part['num_replicas']} ranks, but {len(ranks)} were given")
            if (part["origin"], _dealt(part)) != (parts[0]["origin"], _dealt(parts[0])):
                raise ValueError(f"ranks 0 and {rank} were not dealt out the same order")
    return {"version": VERSION, "ranks": ranks}


def localized(merged: State, sampler: Any) -> State:
    """What a merged state means for a loader with this sampler.

    Raises:
        ValueError: The sampler deals out another order, or none.
    """
    ranks: list[State] = merged["ranks"]
    batches, mine = _samplers(sampler)
    old = ranks[mine.rank % len(ranks)]
    state = {**old, "digest": _digests(ranks, mine.rank), "sampling": sampling.kind_of(sampler)}
    quarantined = {each["index"]: each for rank in ranks for each in rank.get("quarantine") or []}
    if quarantined:
        state["quarantine"] = list(quarantined.values())
    if old["base_seed"] is not None:
        # More ranks than there were: each draws its own random numbers all the same.
        seed = old["base_seed"] + mine.rank // len(ranks) * _GOLDEN
        state["base_seed"] = seed & ((1 << 63) - 1)
    if old["over"]:
        return {**state, "sampler": None}
    parts = [_part(each["sampler"]) for each in ranks]
    signature = mine._signature()
    if _dealt(parts[0]) != _dealt(signature):
        raise ValueError(
            f"the states were saved with {_dealt(parts[0])}, but this loader's sampler has {_dealt(signature)}"
        )
    origin = parts[0]["origin"]
    batch = max(each["batch"] for each in ranks)
    size = 1 if batches is None else batches.batch_size
    positions = [part["position"] - origin.get("base", 0) for part in parts]
    before = [*origin.get("before", []), positions]
    inner = {"epoch": origin["epoch"], "before": before, "base": batch * size}
    own: State = {**signature, "position": batch * size, "ended": False, "origin": inner}
    if batches is not None:
        own = {**batches._signature(), "position": batch, "ended": False, "inner": own}
    return {**state, "batch": batch, "sampler": own}


def _samplers(sampler: Any) -> tuple[Any, Any]:
    """The sampler of batches, if there is one, and the one that deals out."""
    own = sampling.counterpart(sampler)
    batches = own if isinstance(own, sampling.BatchSampler) else None
    mine = own if batches is None else sampling.counterpart(batches.sampler)
    if not isinstance(mine, sampling.DistributedSampler):
        raise ValueError(
            f"a merged state needs a DistributedSampler, whose order is the same on all ranks, "
            f"but this loader has {sampling.kind_of(sampler)}"
        )
    return batches, mine


def _part(state: Any) -> State:
    """The state of the sampler that deals out, inside that of a sampler of batches or by itself."""
    inner = state.get("inner", state) if isinstance(state, dict) else None
    if not isinstance(inner, dict) or inner.get("sampler") != "DistributedSampler" or not inner.get("origin"):
        raise ValueError("only states of loaders with a DistributedSampler can be merged inside an epoch")
    return inner


def _dealt(part: State) -> State:
    """What the order depends on, and whether its end is left out."""
    return {key: part[key] for key in ("length", "shuffle", "seed", "drop_last")}


def _digests(ranks: list[State], rank: int) -> str:
    digest = Digest()
    for state in ranks:
        digest = Digest(digest.after(state["epoch"], state["batch"], state["digest"], rank))
    return digest.hex()
