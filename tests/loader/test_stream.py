"""Promise 1: torch's stream. The same dataset, arguments and seed give the same batches as torch's DataLoader."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import loader
from tests.loader.support import (
    KINDS,
    DataLoader,
    DrawingStream,
    Samples,
    Stream,
    WholeBatches,
    assert_same,
    values,
)

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

Make = Callable[[Any], dict[str, Any]]
"""Arguments for a loader, given the package (ours or torch's) that samplers come from."""

few = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes for ever with processes
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class OwnSampler:
    """A user's sampler: no subclass of anything, random in its own way."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length).tolist())

    def __len__(self) -> int:
        return self.length


def pad(samples: list[Any]) -> Any:
    return {"samples": samples}


def seeds() -> st.SearchStrategy[int]:
    return st.integers(0, 2**40)


@st.composite
def samplers(draw: st.DrawFn, length: int) -> Callable[[Any], dict[str, Any]]:
    """A way to choose indices, made anew from ours or from torch's classes."""
    seed = draw(seeds())
    kind = draw(
        st.sampled_from(
            ["none", "shuffle", "random", "replacement", "subset", "weighted", "own", "list", "keys", "distributed"]
        )
    )

    def make(package: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "none": dict,
            "shuffle": lambda: {"shuffle": True},
            "random": lambda: {"sampler": package.RandomSampler(range(length), generator=generator)},
            "replacement": lambda: {
                "sampler": package.RandomSampler(range(length), replacement=True, num_samples=2 * length + 1)
            },
            "subset": lambda: {"sampler": package.SubsetRandomSampler(range(0, length, 2), generator=generator)},
            "weighted": lambda: {
                "sampler": package.WeightedRandomSampler([1.0 + i for i in range(length)], length, generator=generator)
            },
            "own": lambda: {"sampler": OwnSampler(length)},
            "list": lambda: {"sampler": list(range(length))[::-1]},
            "keys": lambda: {"sampler": [f"key {i}" for i in range(length)]},
            "distributed": lambda: {
                "sampler": package.DistributedSampler(range(length), num_replicas=2, rank=1, seed=seed % 1000)
            },
        }
        return makers[kind]()

    return make


@st.composite
def batchings(draw: st.DrawFn, length: int) -> Make:
    """How samples become batches."""
    choose = draw(samplers(length))
    size = draw(st.one_of(st.none(), st.integers(1, length + 2)))
    drop_last = size is not None and draw(st.booleans())
    style = draw(st.sampled_from(["size", "batch sampler", "lists"]))

    def make(package: Any) -> dict[str, Any]:
        arguments = choose(package)
        if style == "lists" and size is not None:
            keys = arguments.get("sampler", range(length))
            keys = list(keys) if isinstance(keys, list) else list(range(length))
            return {"batch_sampler": [tuple(keys[i : i + size]) for i in range(0, len(keys), size)]}
        if style == "batch sampler" and size is not None and "sampler" in arguments:
            return {"batch_sampler": package.BatchSampler(arguments["sampler"], size, drop_last)}
        return {**arguments, "batch_size": size, "drop_last": drop_last}

    return make


def epochs(make: Callable[[], Any], count: int, seed: int) -> tuple[list[list[Any]], Any]:
    """The batches of so many epochs, and the state of the global generators after them."""
    torch.manual_seed(seed)
    random.seed(seed)
    made = make()
    batches = [list(made) for _ in range(count)]
    return batches, (torch.get_rng_state().tolist(), random.getstate())


def compare(arguments: Make, dataset: Callable[[], Any], *, count: int, seed: int, ordered: bool = True) -> None:
    theirs, after_theirs = epochs(
        lambda: torch.utils.data.DataLoader(dataset(), **arguments(torch.utils.data)), count, seed
    )
    ours, after_ours = epochs(lambda: DataLoader(dataset(), **arguments(loader)), count, seed)
    if not ordered:
        ours, theirs = [sorted(e, key=repr) for e in ours], [sorted(e, key=repr) for e in theirs]
    assert_same(ours, theirs)
    assert after_ours == after_theirs


@few
@given(data=st.data(), workers=st.integers(0, 4), seed=seeds())
def test_map_style_batches_are_torchs(data: st.DataObject, workers: int, seed: int) -> None:
    length = data.draw(st.integers(1, 23), "length")
    kind = data.draw(st.sampled_from(KINDS), "kind")
    batching = data.draw(batchings(length), "batching")
    collate = data.draw(st.sampled_from([None, pad, torch.utils.data.default_collate]), "collate_fn")
    whole = data.draw(st.booleans(), "__getitems__")
    pooled: dict[str, Any] = {}
    if workers:
        pooled["persistent_workers"] = data.draw(st.booleans(), "persistent_workers")
        pooled["prefetch_factor"] = data.draw(st.sampled_from([None, 1, 3]), "prefetch_factor")
        pooled["in_order"] = data.draw(st.sampled_from([True, True, True, False]), "in_order")
    generator_seed = data.draw(st.sampled_from([None, 5]), "generator")

    def arguments(package: Any) -> dict[str, Any]:
        generator = None if generator_seed is None else torch.Generator().manual_seed(generator_seed)
        return {
            **batching(package), **pooled, "collate_fn": collate, "num_workers": workers, "generator": generator,
        }  # fmt: skip

    if collate is torch.utils.data.default_collate and "batch_size" in (made := arguments(loader)):
        collate = None if made["batch_size"] is None else collate
    compare(
        arguments,
        lambda: (WholeBatches if whole else Samples)(kind, length),
        count=data.draw(st.integers(1, 2), "epochs"),
        seed=seed,
        ordered=pooled.get("in_order", True),
    )


@few
@given(
    kind=st.sampled_from(KINDS),
    length=st.integers(0, 23),
    share=st.booleans(),
    size=st.one_of(st.none(), st.integers(1, 7)),
    drop_last=st.booleans(),
    workers=st.integers(0, 4),
    persistent=st.booleans(),
    prefetch=st.sampled_from([None, 1, 3]),
    count=st.integers(1, 2),
    seed=seeds(),
)
def test_iterable_style_batches_are_torchs(
    kind: str,
    length: int,
    share: bool,
    size: int | None,
    drop_last: bool,
    workers: int,
    persistent: bool,
    prefetch: int | None,
    count: int,
    seed: int,
) -> None:
    def arguments(_: Any) -> dict[str, Any]:
        made: dict[str, Any] = {"batch_size": size, "num_workers": workers}
        if size is not None:
            made["drop_last"] = drop_last
        if workers:
            made |= {"persistent_workers": persistent, "prefetch_factor": prefetch}
        return made

    compare(arguments, lambda: Stream(kind, length, share), count=count, seed=seed)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_an_iterable_dataset_draws_is_what_it_draws_under_torch(workers: int) -> None:
    compare(
        lambda _: {"num_workers": workers, "batch_size": 3, "persistent_workers": True},
        lambda: DrawingStream("int", 17),
        count=2,
        seed=3,
    )


def test_out_of_order_epochs_have_every_batch_once() -> None:
    arguments = {"num_workers": 3, "in_order": False, "batch_size": 2}
    batches = list(DataLoader(Samples("int", 40), **arguments))
    assert sorted(values(batches)) == [[i, i + 1] for i in range(0, 40, 2)]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("style", [Samples, Stream])
def test_every_start_method(method: str, style: type[Any]) -> None:
    theirs = list(torch.utils.data.DataLoader(style("nested", 9), batch_size=2, num_workers=2))
    ours = DataLoader(
        style("nested", 9), batch_size=2, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    assert_same(list(ours), theirs)
    assert_same(list(ours), theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_is_left_as_torch_leaves_it(workers: int) -> None:
    def state_after(kind: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        made = kind(Samples("int", 10), batch_size=3, shuffle=True, generator=generator, num_workers=workers)
        return [values(made), values(made), generator.get_state().tolist()]

    assert state_after(DataLoader) == state_after(torch.utils.data.DataLoader)


@pytest.mark.parametrize("samples", [24, 25])
@pytest.mark.parametrize("prefetch_factor", [None, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_after_break_a_generator_is_left_as_torch_leaves_it(
    samples: int, prefetch_factor: int | None, persistent: bool
) -> None:
    """At the end of a pass torch draws once more, and it finds the end a few batches before training does."""

    def states_after(kind: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        made = kind(
            Samples("int", samples),
            batch_size=4,
            shuffle=True,
            generator=generator,
            num_workers=1,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent,
        )
        found = []
        for taken in range(1, 7):
            batches = iter(made)
            found.append((values(next(batches) for _ in range(taken)), generator.get_state().tolist()))
            del batches
        return found

    assert states_after(DataLoader) == states_after(torch.utils.data.DataLoader)


def test_keys_may_be_tensors() -> None:
    keys = [torch.tensor([3, 1]), torch.tensor([2])]
    made = DataLoader(range(5), batch_sampler=keys, num_workers=1)
    assert values(made) == [[3, 1], [2]]


def test_an_epoch_of_thousands_of_batches() -> None:
    assert values(DataLoader(range(5000), num_workers=2)) == [[i] for i in range(5000)]


def test_a_subclass_of_a_torch_sampler_keeps_its_order() -> None:
    class Backwards(torch.utils.data.SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(len(self.data_source))[::-1])

    made = DataLoader(Samples("int", 5), sampler=Backwards(range(5)), num_workers=1)
    assert values(made) == [[4], [3], [2], [1], [0]]
