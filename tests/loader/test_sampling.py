"""Samplers: torch's order and torch's use of random numbers, and passes that can be saved and resumed."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import factorial, isqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock import sampling
from penstock.sampling import KeyedPermutation, State, resume, track
from torch.utils import data

Make = Callable[[Any, torch.Generator | None], Any]
"""Builds a sampler from a module that has torch's names, and a generator."""

SIZES = st.integers(1, 70)
SEEDS = st.integers(0, 2**63 - 1)
FEWER = settings(max_examples=40, deadline=None)


KINDS = ["sequential", "random", "subset", "weighted", "distributed"]


@st.composite
def samplers(draw: st.DrawFn, kind: str) -> Make:
    """How to build a sampler of a kind, or a BatchSampler around it, from our classes or from torch's."""
    length = draw(SIZES)
    num_samples = draw(st.sampled_from([length, 2 * length]) | st.integers(1, 200))
    replacement = draw(st.booleans())
    ranks = draw(st.integers(1, 9))
    rank = draw(st.integers(0, ranks - 1))
    shuffle, drop_last = draw(st.booleans()), draw(st.booleans())
    seed, epoch = draw(st.integers(0, 99)), draw(st.integers(0, 5))
    batch_size = draw(st.none() | st.integers(1, 12))

    def make(module: Any, generator: torch.Generator | None) -> Any:
        if kind == "sequential":
            return module.SequentialSampler(range(length))
        if kind == "random":
            return module.RandomSampler(range(length), replacement, num_samples, generator)
        if kind == "subset":
            return module.SubsetRandomSampler([3 * index + 1 for index in range(length)], generator)
        if kind == "weighted":
            weights = [1 + index % 7 for index in range(length)]
            count = num_samples if replacement else min(num_samples, length)
            return module.WeightedRandomSampler(weights, count, replacement, generator)
        sampler = module.DistributedSampler(range(length), ranks, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        return sampler

    def make_batches(module: Any, generator: torch.Generator | None) -> Any:
        return module.BatchSampler(make(module, generator), batch_size, drop_last)

    return make if batch_size is None else make_batches


class Torchs:
    """Torch's samplers under the names of ours."""

    SequentialSampler = data.SequentialSampler
    RandomSampler = data.RandomSampler
    SubsetRandomSampler = data.SubsetRandomSampler
    WeightedRandomSampler = data.WeightedRandomSampler
    DistributedSampler = data.DistributedSampler
    BatchSampler = data.BatchSampler


def generator_from(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def generator_state(sampler: Any) -> Any:
    generator = getattr(getattr(sampler, "sampler", sampler), "generator", None)
    return None if generator is None else plain(generator.get_state())


def randomness(generator: torch.Generator | None) -> list[Any]:
    """Where the global and the given generator stand."""
    states = [torch.get_rng_state()]
    if generator is not None:
        states.append(generator.get_state())
    return [plain(state) for state in states]


def plain(value: Any) -> Any:
    """A state with its tensors as bytes, to be compared."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def walk(make: Make, module: Any, seed: int | None, steps: int) -> tuple[list[Any], list[Any]]:
    """Two passes over a sampler, with the state of all randomness after each of the first `steps` calls."""
    torch.manual_seed(99)
    generator = generator_from(seed)
    sampler = make(module, generator)
    iterator = iter(sampler)
    seen, states = [], [randomness(generator)]
    for _ in range(steps):
        seen.append(next(iterator, None))
        states.append(randomness(generator))
    seen += [*iterator, "second pass", *sampler, len(sampler)]
    states.append(randomness(generator))
    return seen, states


@pytest.mark.parametrize("kind", KINDS)
@given(case=st.data(), seed=st.none() | SEEDS, steps=st.integers(0, 80))
@FEWER
def test_order_and_random_numbers_are_torchs_at_every_step(
    kind: str, case: st.DataObject, seed: int | None, steps: int
) -> None:
    make = case.draw(samplers(kind))
    assert walk(make, sampling, seed, steps) == walk(make, Torchs, seed, steps)
    assert isinstance(make(sampling, None), type(make(Torchs, None)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("module", [sampling, Torchs])
@given(case=st.data(), seed=st.none() | SEEDS, stop=st.integers(0, 150), ahead=st.integers(1, 50))
@FEWER
def test_a_resumed_pass_gives_the_rest_and_leaves_the_generator_alike(
    kind: str, module: Any, case: st.DataObject, seed: int | None, stop: int, ahead: int
) -> None:
    make = case.draw(samplers(kind))
    torch.manual_seed(4)
    undisturbed = make(module, generator_from(seed))
    iterator = iter(undisturbed)
    for _ in range(stop):
        next(iterator, None)
    here = generator_state(undisturbed)
    rest, end = list(iterator), generator_state(undisturbed)
    # The loader runs ahead of training and then asks for the state at a call that lies behind.
    torch.manual_seed(4)
    ahead_of_training = track(make(module, generator_from(seed)))
    list(islice(ahead_of_training, stop + ahead))
    state = ahead_of_training.state_dict(at=min(stop, ahead_of_training.position + 1))

    torch.manual_seed(5)
    untouched = randomness(None)
    sampler = make(module, generator_from(None if seed is None else seed ^ 1))
    resumed = resume(sampler, state)
    assert generator_state(sampler) == here
    assert list(resumed) == rest
    assert generator_state(sampler) == end
    assert randomness(None) == untouched


@pytest.mark.parametrize("kind", KINDS)
@given(case=st.data(), seed=st.none() | SEEDS, stop=st.integers(1, 50), ahead=st.integers(0, 50))
@FEWER
def test_the_state_at_an_earlier_call_is_the_one_given_then(
    kind: str, case: st.DataObject, seed: int | None, stop: int, ahead: int
) -> None:
    iterator = track(case.draw(samplers(kind))(sampling, generator_from(seed)))
    calls = 0
    for _ in range(stop):
        calls += 1
        if next(iterator, None) is None:
            break
    then = plain(iterator.state_dict())
    list(islice(iterator, ahead))
    assert plain(iterator.state_dict(at=calls)) == then


@pytest.mark.parametrize("kind", KINDS)
@given(case=st.data(), seed=SEEDS, first=st.integers(0, 50), second=st.integers(0, 50))
@FEWER
def test_a_resumed_pass_can_be_saved_again_and_later_passes_are_alike(
    kind: str, case: st.DataObject, seed: int, first: int, second: int
) -> None:
    make = case.draw(samplers(kind))
    undisturbed = make(sampling, generator_from(seed))
    expected = [*undisturbed, "next", *undisturbed]

    sampler = make(sampling, generator_from(seed))
    iterator = track(sampler)
    seen = list(islice(iterator, first))
    sampler = make(sampling, generator_from(seed + 1))
    iterator = resume(sampler, iterator.state_dict())
    seen += list(islice(iterator, second))
    sampler = make(sampling, generator_from(seed + 2))
    seen += [*resume(sampler, iterator.state_dict()), "next", *sampler]
    assert seen == expected


def test_a_pass_that_has_not_begun_draws_when_it_begins() -> None:
    for sampler in (sampling.RandomSampler(range(9)), sampling.SubsetRandomSampler(range(9))):
        state = iter(sampler).state_dict()
        torch.manual_seed(8)
        expected = list(sampler)
        torch.manual_seed(8)
        assert list(sampler.resume(state)) == expected


def stored(state: State) -> bytes:
    """The bytes of a state in a checkpoint, which must be readable without running anybody's code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    torch.load(file, weights_only=True)
    return file.getvalue()


LARGE: list[Callable[[int], Any]] = [
    lambda n: sampling.SequentialSampler(range(n)),
    lambda n: sampling.RandomSampler(range(n)),
    lambda n: sampling.RandomSampler(range(n), generator=torch.Generator()),
    lambda n: sampling.RandomSampler(range(n), replacement=True),
    lambda n: sampling.RandomSampler(range(n), constant_memory=True),
    lambda n: sampling.SubsetRandomSampler(range(n)),
    lambda n: sampling.WeightedRandomSampler(torch.ones(n), n),  # type: ignore[arg-type]
    lambda n: sampling.DistributedSampler(range(n), 4, 1),  # type: ignore[arg-type]
    lambda n: data.RandomSampler(range(n)),
]


@pytest.mark.parametrize("make", LARGE)
def test_a_state_does_not_grow_with_the_dataset(make: Callable[[int], Any]) -> None:
    sizes = []
    for length in (1_000, 100_000):
        iterator = track(sampling.BatchSampler(make(length), 8, False))
        list(islice(iterator, 100))
        state = iterator.state_dict()
        sizes.append(len(stored(state)))
        resumed = resume(sampling.BatchSampler(make(length), 8, False), state)
        assert next(resumed, None) == next(iterator, None)
    assert abs(sizes[1] - sizes[0]) < 1_000


def test_a_state_without_a_generator_is_json() -> None:
    sampler = sampling.BatchSampler(sampling.RandomSampler(range(100)), 8, False)
    iterator = iter(sampler)
    list(islice(iterator, 3))
    state = json.loads(json.dumps(iterator.state_dict()))
    assert list(sampler.resume(state)) == list(iterator)


REFUSALS: list[tuple[Any, Any, str]] = [
    (sampling.SequentialSampler(range(9)), sampling.SequentialSampler(range(8)), "length=9, not 8"),
    (sampling.SequentialSampler(range(9)), sampling.RandomSampler(range(9)), "sampler='SequentialSampler'"),
    (sampling.RandomSampler(range(9)), sampling.SequentialSampler(range(9)), "sampler='RandomSampler'"),
    (data.RandomSampler(range(9)), data.RandomSampler(range(8)), "length=9, not 8"),
    (
        sampling.RandomSampler(range(9)),
        sampling.RandomSampler(range(9), num_samples=8),
        "num_samples=9, not 8",
    ),
    (sampling.RandomSampler(range(9)), sampling.RandomSampler(range(9), True), "replacement=False, not True"),
    (
        sampling.RandomSampler(range(9)),
        sampling.RandomSampler(range(9), generator=torch.Generator()),
        "own_generator=False, not True",
    ),
    (
        sampling.RandomSampler(range(9)),
        sampling.RandomSampler(range(9), constant_memory=True),
        "constant_memory=False, not True",
    ),
    (sampling.SubsetRandomSampler(range(9)), sampling.SubsetRandomSampler(range(8)), "length=9, not 8"),
    (
        sampling.DistributedSampler(range(9), 3, 0),  # type: ignore[arg-type]
        sampling.DistributedSampler(range(9), 2, 0),  # type: ignore[arg-type]
        "num_replicas=3, not 2",
    ),
    (
        sampling.BatchSampler(range(9), 2, False),
        sampling.BatchSampler(range(9), 3, False),
        "batch_size=2, not 3",
    ),
    (
        sampling.BatchSampler(sampling.SequentialSampler(range(9)), 2, False),
        sampling.BatchSampler(sampling.RandomSampler(range(9)), 2, False),
        "sampler='SequentialSampler'",
    ),
]


@pytest.mark.parametrize(("saved", "resumed", "reason"), REFUSALS)
def test_a_foreign_state_is_refused_with_a_reason(saved: Any, resumed: Any, reason: str) -> None:
    iterator = track(saved)
    next(iterator)
    with pytest.raises(ValueError, match="Cannot resume") as caught:
        resume(resumed, iterator.state_dict())
    assert reason in str(caught.value)


@pytest.mark.parametrize("change", [{"position": 10}, {"position": -1}, {"position": "3"}, {"ended": None}])
@pytest.mark.parametrize("module", [sampling, Torchs])
def test_a_spoilt_state_is_refused(change: State, module: Any) -> None:
    sampler = module.RandomSampler(range(9))
    iterator = track(sampler)
    next(iterator)
    with pytest.raises(ValueError, match="Cannot resume"):
        resume(sampler, iterator.state_dict() | change)


def test_one_ranks_state_resumes_every_rank() -> None:
    ranks: list[Any] = [sampling.DistributedSampler(range(23), 3, rank, seed=5) for rank in range(3)]  # type: ignore[arg-type]
    for rank in ranks:
        rank.set_epoch(7)
    first = iter(ranks[0])
    list(islice(first, 4))
    for sampler in ranks:
        expected = list(sampler)[4:]
        sampler.set_epoch(0)
        assert list(sampler.resume(first.state_dict())) == expected
        assert sampler.epoch == 7


class Foreign(data.Sampler[int]):
    """A user's sampler that draws from a global random stream, at `iter()` or at the first `next()`."""

    def __init__(self, library: str, lazy: bool) -> None:
        self.library = library
        self.lazy = lazy

    def order(self) -> list[int]:
        if self.library == "random":
            return random.sample(range(20), 20)
        if self.library == "numpy":
            return [int(each) for each in np.random.permutation(20)]
        return torch.randperm(20).tolist()

    def __iter__(self) -> Iterator[int]:
        return self.later() if self.lazy else iter(self.order())

    def later(self) -> Iterator[int]:
        yield from self.order()


def shake() -> None:
    """Move every global random stream on."""
    random.random()
    np.random.rand()
    torch.rand(1)


def global_draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


@pytest.mark.parametrize("library", ["random", "numpy", "torch"])
@pytest.mark.parametrize("lazy", [True, False])
def test_a_users_sampler_is_replayed_from_the_streams_it_drew_from(library: str, lazy: bool) -> None:
    sampler = Foreign(library, lazy)
    iterator = track(sampler)
    shake()  # as the loader's base seed does
    seen = list(islice(iterator, 6))
    state = iterator.state_dict()
    shake()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    resumed = resume(Foreign(library, lazy), state)
    after = global_draws()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    assert global_draws() == after
    rest = list(resumed)
    assert rest == list(iterator)
    assert sorted(seen + rest) == list(range(20))


class Stateful(data.Sampler[int]):
    """A user's sampler that keeps its own state: each pass begins where its `offset` says."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __iter__(self) -> Iterator[int]:
        for index in range(10):
            yield self.offset + index
        self.offset += 100

    def state_dict(self) -> State:
        return {"offset": self.offset}

    def load_state_dict(self, state: State) -> None:
        self.offset = state["offset"]


def test_a_samplers_own_state_is_saved_and_loaded() -> None:
    saved = Stateful(500)
    iterator = track(sampling.BatchSampler(saved, 4, False))
    assert list(islice(iterator, 1)) == [[500, 501, 502, 503]]
    state = iterator.state_dict()
    fresh = Stateful(0)
    assert list(resume(sampling.BatchSampler(fresh, 4, False), state)) == [[504, 505, 506, 507], [508, 509]]
    assert next(iter(fresh)) == 600


def test_a_subclass_with_its_own_order_is_replayed() -> None:
    class Backwards(sampling.SequentialSampler):
        def __iter__(self) -> Any:
            return iter(range(len(self) - 1, -1, -1))

    iterator = track(Backwards(range(6)))
    assert list(islice(iterator, 2)) == [5, 4]
    assert list(resume(Backwards(range(6)), iterator.state_dict())) == [3, 2, 1, 0]


BAD_ARGUMENTS: list[tuple[str, tuple[Any, ...]]] = [
    ("RandomSampler", (range(3), 1)),
    ("RandomSampler", (range(3), False, 0)),
    ("RandomSampler", (range(3), False, 1.5)),
    ("RandomSampler", ([],)),
    ("WeightedRandomSampler", ([1.0], 0)),
    ("WeightedRandomSampler", ([1.0], True)),
    ("WeightedRandomSampler", ([1.0], 1, "yes")),
    ("WeightedRandomSampler", ([[1.0]], 1)),
    ("BatchSampler", (range(3), 0, False)),
    ("BatchSampler", (range(3), True, False)),
    ("BatchSampler", (range(3), 1, None)),
    ("DistributedSampler", (range(3), 2, 2)),
    ("DistributedSampler", (range(3), 2, -1)),
]


@pytest.mark.parametrize(("name", "arguments"), BAD_ARGUMENTS)
def test_bad_arguments_give_torchs_errors(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        getattr(Torchs, name)(*arguments)
    with pytest.raises(type(theirs.value)) as ours:
        getattr(sampling, name)(*arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("now", [3, 8, 12, 40])
def test_a_dataset_that_changed_its_length_fails_as_in_torch(drop_last: bool, now: int) -> None:
    outcomes: list[Any] = []
    for kind in (data.DistributedSampler, sampling.DistributedSampler):
        source: Any = list(range(10))
        sampler: Any = kind(source, 4, 1, drop_last=drop_last)
        source[:] = range(now)
        try:
            outcomes.append(list(sampler))
        except AssertionError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


AWKWARD = sorted({1, 2, 3, 5, 6, 7, 10, 1000, *(2**k + d for k in range(2, 15) for d in (-1, 0, 1))})


@pytest.mark.parametrize("length", AWKWARD)
def test_constant_memory_gives_every_index_once_a_cycle(length: int) -> None:
    torch.manual_seed(length)
    sampler = sampling.RandomSampler(range(length), num_samples=2 * length + length // 2, constant_memory=True)
    order = list(sampler)
    cycles = [order[:length], order[length : 2 * length], order[2 * length :]]
    assert sorted(cycles[0]) == sorted(cycles[1]) == list(range(length))
    assert len(set(cycles[2])) == length // 2 == len(cycles[2])
    if length > 20:
        assert cycles[0] != cycles[1]
        assert list(sampler) != order


@given(st.integers(1, 5000), st.integers(1, 3), st.integers(1, 15_000), st.none() | SEEDS)
@FEWER
def test_constant_memory_resumes_anywhere(length: int, cycles: int, stop: int, seed: int | None) -> None:
    def make(seed: int | None) -> sampling.RandomSampler:
        source = range(length)
        return sampling.RandomSampler(
            source, num_samples=cycles * length, generator=generator_from(seed), constant_memory=True
        )

    sampler, fresh = make(seed), make(None if seed is None else seed ^ 1)
    iterator = iter(sampler)
    list(islice(iterator, stop))
    resumed = fresh.resume(iterator.state_dict())
    assert randomness(fresh.generator) == randomness(sampler.generator)
    assert list(resumed) == list(iterator)
    if seed is not None:
        assert list(fresh) == list(sampler)


def test_constant_memory_starts_and_resumes_at_once_in_a_huge_dataset() -> None:
    sampler = sampling.RandomSampler(range(10**9), constant_memory=True)
    iterator = iter(sampler)
    state = {**iterator.state_dict(), "origin": {"seed": 1}, "position": 999_999_990}
    assert len(set(islice(iterator, 50_000))) == 50_000
    last = list(sampler.resume(state))
    assert len(set(last)) == 10
    assert all(0 <= index < 10**9 for index in last)
    assert list(sampler.resume(state | {"position": 999_999_995})) == last[5:]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_all_orders_of_a_few_are_equally_likely(length: int) -> None:
    expected = 40
    orders = factorial(length)
    found = Counter(tuple(KeyedPermutation(length, (key,)).block(0, length)) for key in range(orders * expected))
    assert len(found) == orders
    spread = sum((count - expected) ** 2 / expected for count in found.values())
    freedom = orders - 1
    assert spread < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("length", [1 << 16, (1 << 20) + 1, 10**9])
@pytest.mark.parametrize("distance", ["next", "row", "column"])
def test_neighbours_are_unrelated(length: int, distance: str) -> None:
    # Positions a row or a column of the grid apart differ in one half only: the hardest to tear apart.
    rows = isqrt(length - 1) // 2 * 2 + 2
    step = {"next": 1, "row": -(-length // rows), "column": rows}[distance]
    cells, pairs = np.zeros((16, 16)), 0
    for key in range(50):
        starts = np.arange(200, dtype=np.uint64) * np.uint64((length - step) // 200)
        permutation = KeyedPermutation(length, (key, 1))
        one, other = (
            (permutation(starts + np.uint64(far)) * np.uint64(16) // np.uint64(length)).astype(int) for far in (0, step)
        )
        np.add.at(cells, (one, other), 1)
        pairs += len(starts)
    expected = pairs / cells.size
    freedom = cells.size - 1
    assert ((cells - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


def test_odd_and_even_orders_are_equally_likely() -> None:
    def is_odd(order: Iterable[int]) -> bool:
        seen = list(order)
        return sum(a > b for place, a in enumerate(seen) for b in seen[place:]) % 2 == 1

    odd = sum(is_odd(KeyedPermutation(9, (key,)).block(0, 9)) for key in range(1000))
    assert abs(odd - 500) < 5 * 1000**0.5 / 2


def test_constant_memory_and_replacement_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"constant_memory=True .* replacement=True"):
        sampling.RandomSampler(range(3), replacement=True, constant_memory=True)
    with pytest.raises(TypeError, match="constant_memory=1"):
        sampling.RandomSampler(range(3), constant_memory=1)  # type: ignore[arg-type]
