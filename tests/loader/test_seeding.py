"""Seeds: torch's own draws and worker seeds, and the seeds of each batch."""

from __future__ import annotations

import multiprocessing
import random
import sys
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.seeding import BatchSeeder, batch_seed, draw_base_seed, seed_worker
from torch.utils.data import DataLoader, Dataset

from tests.patience import PATIENCE

Draws = tuple[float, list[float], list[float]]
NUMBERS = st.integers(0, 2**63 - 1)


@pytest.fixture(autouse=True)
def streams_put_back() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def draws() -> Draws:
    return random.random(), np.random.rand(3).tolist(), torch.rand(3).tolist()


class Drawing(Dataset[Draws]):
    """Its samples are what the worker draws."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Draws:
        return draws()


def as_is(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("own", [True, False])
def test_the_base_seed_is_the_one_that_torch_draws(own: bool) -> None:
    generators = [torch.Generator().manual_seed(7) if own else None for _ in range(2)]
    torch.manual_seed(3)
    theirs = iter(DataLoader(Drawing(), generator=generators[0]))._base_seed
    after = torch.get_rng_state()
    torch.manual_seed(3)
    assert draw_base_seed(generators[1]) == theirs
    assert torch.equal(torch.get_rng_state(), after)
    if generators[0] is not None and generators[1] is not None:
        assert torch.equal(generators[0].get_state(), generators[1].get_state())


def test_a_worker_draws_what_a_torch_worker_draws() -> None:
    generator = torch.Generator().manual_seed(11)
    theirs = list(DataLoader(Drawing(), batch_size=1, num_workers=2, generator=generator, collate_fn=as_is))
    base_seed = draw_base_seed(torch.Generator().manual_seed(11))
    for worker_id in range(2):
        seed_worker(base_seed, worker_id)
        assert theirs[worker_id] == [draws()]


@given(NUMBERS, st.integers(0, 2**16))
@settings(deadline=None)
def test_worker_seeds_match_torchs_words_for_every_seed(base_seed: int, worker_id: int) -> None:
    from torch.utils.data._utils.worker import _generate_state

    seed_worker(base_seed, worker_id)
    ours = np.random.get_state()[1].tolist()  # type: ignore[index]
    np.random.seed(_generate_state(base_seed, worker_id))
    assert ours == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert torch.initial_seed() == base_seed + worker_id


@given(NUMBERS, st.integers(0, 2**40), st.integers(0, 2**40))
@settings(deadline=None)
def test_a_batch_draws_the_same_whatever_was_drawn_before(base_seed: int, epoch: int, batch_index: int) -> None:
    seeder = BatchSeeder(base_seed, epoch)
    seeder.seed(batch_index)
    first = draws()
    random.gauss(0, 1)  # leaves half a pair behind, as np.random.randn does
    np.random.randn(1)
    torch.randn(1)
    seeder.seed(batch_index)
    assert draws() == first
    assert torch.initial_seed() == batch_seed(base_seed, epoch, batch_index)


def test_normal_numbers_do_not_leak_from_batch_to_batch() -> None:
    seeder = BatchSeeder(1, 0)
    seeder.seed(5)
    first = random.gauss(0, 1), np.random.randn(), torch.randn(1).item()
    seeder.seed(5)
    assert (random.gauss(0, 1), np.random.randn(), torch.randn(1).item()) == first


def test_neighbouring_batches_have_unrelated_seeds() -> None:
    near = [
        batch_seed(base_seed, epoch, batch_index)
        for base_seed in range(10)
        for epoch in range(10)
        for batch_index in range(100)
    ]
    assert len(set(near)) == len(near)
    ones = [f"{a ^ b:063b}".count("1") for a, b in pairwise(near)]
    assert 30.5 < sum(ones) / len(ones) < 32.5
    assert all(0 <= seed < 2**63 for seed in near)


def test_random_and_numpy_run_on_unrelated_streams() -> None:
    # Both are Mersenne Twisters: in the same state they would give the same numbers.
    seed = batch_seed(1, 2, 3)
    BatchSeeder(1, 2).seed(3)
    of_random, of_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    assert of_random[1] != random.getstate()[1]
    assert of_numpy[1].tolist() != np.random.get_state()[1].tolist()  # type: ignore[index]
    assert list(of_random[1][:-1]) != of_numpy[1].tolist()  # type: ignore[index]


def test_the_seed_of_a_batch_never_changes_between_versions() -> None:
    assert batch_seed(0, 0, 0) == 18406490939357726453 >> 1
    assert batch_seed(2**63 - 1, 3, 1000) == 17628645870428210249 >> 1


def seed_without_numpy(connection: Connection) -> None:
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "numpy"}
    BatchSeeder(1, 2).seed(3)
    seed_worker(1, 2)
    connection.send([name for name in hidden if name in sys.modules])


def test_numpy_is_left_alone_where_it_is_not_loaded() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=seed_without_numpy, args=(there,), daemon=True)
    process.start()
    assert here.poll(PATIENCE)
    assert here.recv() == []
    process.join()
