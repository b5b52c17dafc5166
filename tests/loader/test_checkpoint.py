"""`state_dict` between any two batches, resumed with any number of workers: the same rest and following epochs."""

from __future__ import annotations

import io
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from penstock import DataLoader
from torch.utils import data

import loader as penstock
from tests.loader.scenarios import Loaders, SavedIteratorStream, SavedStream, plain, split_evenly
from tests.loader.support import Draws, Samples, Stream

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

LENGTH = 20
SEED = 40


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


class Wandering(data.Sampler[int]):
    """A sampler of the user's own that saves its state: each pass begins where the last one has left its number."""

    def __init__(self) -> None:
        self.start = 3

    def __iter__(self) -> Iterator[int]:
        for step in range(LENGTH):
            self.start = (self.start * 7 + 3) % 20
            yield (self.start + step) % LENGTH

    def __len__(self) -> int:
        return LENGTH

    def state_dict(self) -> dict[str, Any]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["start"]


class Plainly(data.Sampler[int]):
    """A sampler of the user's own that knows nothing of states and draws from torch's global generator."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(LENGTH).tolist()

    def __len__(self) -> int:
        return LENGTH


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


SOURCE = Samples("int", LENGTH)
WEIGHTS = [1.0 + number for number in range(LENGTH)]


def sampling(kind: str) -> dict[str, Any]:
    """Arguments that give a loader a certain kind of sampling; `generator` is the loader's own."""
    shared = generator()
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "sequential": lambda: {"batch_size": 3},
        "shuffled": lambda: {"batch_size": 3, "shuffle": True},
        "last dropped": lambda: {"batch_size": 3, "shuffle": True, "drop_last": True},
        "no batches": lambda: {"batch_size": None, "shuffle": True},
        "ours, constant memory": lambda: {
            "batch_size": 3,
            "sampler": penstock.RandomSampler(SOURCE, generator=shared, constant_memory=True),
        },
        "ours, replacement": lambda: {
            "batch_size": 3,
            "sampler": penstock.RandomSampler(SOURCE, True, 50, generator=shared),
        },
        "ours, weighted": lambda: {
            "batch_size": 3,
            "sampler": penstock.WeightedRandomSampler(WEIGHTS, 18, generator=shared),
        },
        "ours, subset": lambda: {
            "batch_size": 3,
            "sampler": penstock.SubsetRandomSampler(range(0, LENGTH, 2), generator=shared),
        },
        "ours, batches": lambda: {
            "batch_sampler": penstock.BatchSampler(penstock.RandomSampler(SOURCE, generator=shared), 4, False)
        },
        "torch's random": lambda: {"batch_size": 3, "sampler": data.RandomSampler(SOURCE, generator=shared)},
        "torch's weighted": lambda: {
            "batch_size": 3,
            "sampler": data.WeightedRandomSampler(WEIGHTS, 18, generator=shared),
        },
        "torch's batches": lambda: {
            "batch_sampler": data.BatchSampler(data.RandomSampler(SOURCE, generator=shared), 4, True)
        },
        "own, stateful": lambda: {"batch_size": 3, "sampler": Wandering()},
        "a list of batches": lambda: {"batch_sampler": [[4, 2], [0, 1, 3], [5], [9, 8, 7]]},
    }
    return {**made[kind](), "generator": shared}


KINDS = (
    "sequential", "shuffled", "last dropped", "no batches", "ours, constant memory", "ours, replacement",
    "ours, weighted", "ours, subset", "ours, batches", "torch's random", "torch's weighted", "torch's batches",
    "own, stateful", "a list of batches",
)  # fmt: skip


class Run:
    """Three epochs of an undisturbed run: its batches, and at every position the state and the digest."""

    def __init__(self, loader: DataLoader[Any], epochs: int = 3) -> None:
        self.loader = loader
        self.batches: list[list[Any]] = []
        self.states: list[tuple[int, int, Any]] = []
        for epoch in range(epochs):
            iterator = iter(loader)
            seen: list[Any] = []
            while epoch < epochs - 1:
                self.states.append((epoch, len(seen), loader.state_dict()))
                try:
                    seen += plain([next(iterator)])
                except StopIteration:
                    break
            seen += plain(iterator)
            self.batches.append(seen)
        self.digest = loader.stats().digest

    def rest(self, epoch: int, position: int) -> list[list[Any]]:
        return [self.batches[epoch][position:], *self.batches[epoch + 1 :]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_position_goes_on_alike(loaders: Loaders, kind: str) -> None:
    run = Run(loaders(SOURCE, **sampling(kind)))
    for epoch, position, state in run.states:
        resumed = loaders(SOURCE, **sampling(kind))
        resumed.load_state_dict(state)
        rest = run.rest(epoch, position)
        assert [plain(resumed) for _ in rest] == rest, (epoch, position)
        assert resumed.stats().digest == run.digest, (epoch, position)


@pytest.mark.parametrize("kind", ["shuffled", "ours, constant memory", "torch's random", "own, stateful"])
def test_other_numbers_of_workers_go_on_alike(loaders: Loaders, kind: str) -> None:
    run = Run(loaders(SOURCE, num_workers=2, **sampling(kind)), 2)
    assert Run(loaders(SOURCE, **sampling(kind)), 2).digest == run.digest
    last = len(run.states) - 1
    for place, workers in ((0, 3), (1, 1), (last // 2, 4), (last, 0), (last, 2)):
        epoch, position, state = run.states[place]
        resumed = loaders(SOURCE, num_workers=workers, **sampling(kind))
        resumed.load_state_dict(state)
        rest = run.rest(epoch, position)
        assert [plain(resumed) for _ in rest] == rest, (position, workers)
        assert resumed.stats().digest == run.digest, (position, workers)


@pytest.mark.parametrize("persistent", [False, True])
def test_random_augmentation_goes_on_alike(loaders: Loaders, persistent: bool) -> None:
    def make(workers: int) -> DataLoader[Any]:
        return loaders(
            Draws(16),
            2,
            True,
            num_workers=workers,
            generator=generator(),
            persistent_workers=persistent and workers > 0,
        )

    run = Run(make(2), 3)
    for place, workers in ((0, 1), (3, 3), (8, 1), (len(run.states) - 1, 2)):
        epoch, position, state = run.states[place]
        resumed = make(workers)
        resumed.load_state_dict(state)
        rest = run.rest(epoch, position)
        assert [plain(resumed) for _ in rest] == rest, (epoch, position, workers)
        assert resumed.stats().digest == run.digest


def test_a_state_between_epochs_begins_the_next_one(loaders: Loaders) -> None:
    for workers, persistent in ((0, False), (2, False), (2, True)):
        options = {"num_workers": workers, "persistent_workers": persistent}
        run = loaders(SOURCE, **sampling("shuffled"), **options)
        list(run)
        state = run.state_dict()
        resumed = loaders(SOURCE, **sampling("shuffled"), **options)
        resumed.load_state_dict(state)
        assert [plain(resumed), plain(resumed)] == [plain(run), plain(run)]
        assert resumed.stats().digest == run.stats().digest


def test_a_state_of_a_state_and_a_loader_used_before(loaders: Loaders) -> None:
    run = Run(loaders(SOURCE, num_workers=1, **sampling("shuffled")), 2)
    used = loaders(SOURCE, num_workers=1, persistent_workers=True, **sampling("shuffled"))
    iterator = iter(used)
    next(iterator)
    used.load_state_dict(run.states[2][2])
    iterator = iter(used)
    got = plain([next(iterator)])
    assert got == run.batches[0][2:3]
    again = loaders(SOURCE, **sampling("shuffled"))
    again.load_state_dict(used.state_dict())
    assert plain(again) == run.batches[0][3:]
    assert plain(again) == run.batches[1]
    assert again.stats().digest == run.digest


def test_without_a_generator_the_rest_of_the_epoch_is_the_same_and_the_global_one_is_left_alone(
    loaders: Loaders,
) -> None:
    for arguments in ({"shuffle": True}, {"sampler": Plainly()}, {"sampler": data.RandomSampler(SOURCE)}):
        torch.manual_seed(1)
        run = loaders(SOURCE, 3, **arguments)
        iterator = iter(run)
        for _ in range(3):
            next(iterator)
        state = run.state_dict()
        rest = plain(iterator)
        torch.manual_seed(2)
        resumed = loaders(SOURCE, 3, **arguments)
        resumed.load_state_dict(state)
        before = torch.get_rng_state()
        iterator = iter(resumed)
        assert torch.equal(torch.get_rng_state(), before)
        assert plain(iterator) == rest


@pytest.mark.parametrize("sampler", [penstock.DistributedSampler, data.DistributedSampler])
def test_every_rank_goes_on_with_its_own_part(loaders: Loaders, sampler: Any) -> None:
    def make(rank: int) -> DataLoader[Any]:
        return loaders(SOURCE, 3, sampler=sampler(SOURCE, 2, rank, seed=5), generator=generator())

    for rank in range(2):
        run = make(rank)
        run.sampler.set_epoch(4)  # type: ignore[attr-defined]
        iterator = iter(run)
        first = plain([next(iterator)])
        state = run.state_dict()
        rest = plain(iterator)
        resumed = make(rank)  # set_epoch was not called here: the state knows
        resumed.load_state_dict(state)
        assert plain(resumed) == rest
        other = make(rank)
        other.sampler.set_epoch(4)  # type: ignore[attr-defined]
        assert plain(other) == first + rest
        # and the following epoch
        for each in (run, resumed):
            each.sampler.set_epoch(5)  # type: ignore[attr-defined]
        assert plain(run) == plain(resumed)
        assert run.stats().digest == resumed.stats().digest


def test_resuming_loads_no_data(loaders: Loaders) -> None:
    class Watched(Samples):
        asked: list[int]

        def __getitem__(self, key: Any) -> Any:
            self.asked.append(key)
            return super().__getitem__(key)

    source = loaders(SOURCE, 3, sampler=data.SequentialSampler(SOURCE))
    iterator = iter(source)
    for _ in range(5):
        next(iterator)
    dataset = Watched("int", LENGTH)
    dataset.asked = []
    resumed = loaders(dataset, 3, sampler=data.SequentialSampler(dataset))
    resumed.load_state_dict(source.state_dict())
    list(resumed)
    assert dataset.asked == list(range(15, 20))


# -- the state itself ------------------------------------------------------------------------------------------


def saved_size(state: Any) -> int:
    return len(pickle.dumps(state))


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "constant memory", "distributed", "torch's random"])
def test_a_state_does_not_grow_with_the_dataset(loaders: Loaders, kind: str) -> None:
    sizes = []
    for length in (1_000, 1_000_000):
        dataset = range(length)
        choices: dict[str, dict[str, Any]] = {
            "sequential": {},
            "shuffled": {"shuffle": True},
            "constant memory": {"sampler": penstock.RandomSampler(dataset, constant_memory=True)},
            "distributed": {"sampler": penstock.DistributedSampler(dataset, 2, 0)},  # type: ignore[arg-type]
            "torch's random": {"sampler": data.RandomSampler(dataset)},
        }
        loader = loaders(dataset, 10, **choices[kind])
        iterator = iter(loader)
        for _ in range(50):
            next(iterator)
        sizes.append(saved_size(loader.state_dict()))
    assert abs(sizes[1] - sizes[0]) < 64
    if "torch" not in kind and kind != "distributed":
        assert sizes[1] < 2_000


@pytest.mark.parametrize("kind", KINDS)
def test_states_pass_through_pickle_and_torch_save(loaders: Loaders, kind: str) -> None:
    run = loaders(SOURCE, **sampling(kind))
    iterator = iter(run)
    next(iterator)
    state = run.state_dict()
    rest = plain(iterator)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for copied in (pickle.loads(pickle.dumps(state)), torch.load(file, weights_only=True)):
        resumed = loaders(SOURCE, **sampling(kind))
        resumed.load_state_dict(copied)
        assert plain(resumed) == rest


def test_a_state_does_not_change_as_training_goes_on(loaders: Loaders) -> None:
    run = loaders(SOURCE, **sampling("shuffled"))
    iterator = iter(run)
    next(iterator)
    state = run.state_dict()
    before = pickle.dumps(state)
    list(iterator)
    list(run)
    assert pickle.dumps(state) == before


# -- refusals ----------------------------------------------------------------------------------------------------


def mid_epoch(loader: DataLoader[Any]) -> Any:
    iterator = iter(loader)
    next(iterator)
    return loader.state_dict()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda new: new(Samples("int", 21), 3), "length 20, not 21"),
        (lambda new: new(Stream("int", 20), 3), "style 'map', not 'iterable'"),
        (lambda new: new(SOURCE, 3, shuffle=True), "sampler"),
        (lambda new: new(SOURCE, 4), "batch_size"),
        (lambda new: new(SOURCE, 3, drop_last=True), "drop_last"),
        (lambda new: new(SOURCE, 3, sampler=data.RandomSampler(SOURCE)), "sampler"),
        (lambda new: new(SOURCE, 3, sampler=Wandering()), "sampler"),
        (lambda new: new(SOURCE, batch_sampler=[[1, 2, 3]] * 7), "sampler"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_a_reason(loaders: Loaders, make: Any, reason: str) -> None:
    for state in (mid_epoch(loaders(SOURCE, 3)), loaders(SOURCE, 3).state_dict()):
        other = make(loaders)
        with pytest.raises(ValueError, match=reason):
            other.load_state_dict(state)
        assert plain(other)  # and nothing of it was taken over
        assert other.stats().epoch == 0


def test_another_kind_of_random_sampler_is_refused(loaders: Loaders) -> None:
    state = mid_epoch(loaders(SOURCE, 3, sampler=penstock.RandomSampler(SOURCE)))
    for sampler in (
        penstock.RandomSampler(SOURCE, constant_memory=True),
        penstock.RandomSampler(SOURCE, replacement=True),
        penstock.DistributedSampler(SOURCE, 2, 0),
        data.SequentialSampler(SOURCE),
    ):
        with pytest.raises(ValueError, match="sampler"):
            loaders(SOURCE, 3, sampler=sampler).load_state_dict(state)


def test_things_that_are_no_states_are_refused(loaders: Loaders) -> None:
    loader = loaders(SOURCE, 3)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="version"):
        loader.load_state_dict({**state, "version": 99})
    wrongs: list[Any] = [{}, {"epoch": 1}, None, [], "state", {"_snapshot": {}, "_steps_since_snapshot": 1}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="not a state of a loader"):
            loader.load_state_dict(wrong)
    for key in state:
        broken = {name: value for name, value in state.items() if name != key}
        with pytest.raises(ValueError, match="state"):
            loader.load_state_dict(broken)
    assert loader.stats().epoch == 0
    assert len(list(loader)) == 7


def test_out_of_order_epochs_that_are_saved_midway_begin_anew(loaders: Loaders) -> None:
    def make() -> DataLoader[Any]:
        return loaders(SOURCE, num_workers=2, in_order=False, shuffle=True)

    loader = make()
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(UserWarning, match="in_order=False"):
        state = loader.state_dict()
    resumed = make()
    with pytest.warns(UserWarning, match="epoch 0 .*in_order=False.* begins anew"):
        resumed.load_state_dict(state)
    assert len(list(resumed)) == LENGTH
    assert len(list(iterator)) == LENGTH - 1
    make().load_state_dict(loader.state_dict())


# -- iterable-style ------------------------------------------------------------------------------------------------


ITERABLE: dict[str, tuple[Callable[[], Any], Any]] = {
    "dataset": (lambda: SavedStream(22), None),
    "dataset, split": (lambda: SavedStream(22), "split"),
    "iterator": (lambda: SavedIteratorStream(22), None),
    "iterator, split": (lambda: SavedIteratorStream(22, share=False), split_evenly),
}


def _split_whole_range(worker: int) -> None:
    """For a dataset that deals by worker number too: only cuts the end off, so that order shows who read what."""
    info: Any = data.get_worker_info()
    info.dataset.end -= 2 * worker


@pytest.mark.parametrize("kind", ITERABLE)
def test_iterable_datasets_go_on_with_every_shard_at_its_place(loaders: Loaders, kind: str) -> None:
    make, init = ITERABLE[kind]

    def fresh(workers: int) -> DataLoader[Any]:
        chosen = _split_whole_range if init == "split" else init
        return loaders(make(), 2, num_workers=workers, worker_init_fn=chosen, generator=generator())

    run = Run(fresh(2), 2)
    last = len(run.states) - 1
    for place, workers in ((0, 2), (1, 1), (3, 3), (last // 2 + 2, 2), (last, 1)):
        epoch, position, state = run.states[place]
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        resumed = fresh(workers)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert plain(resumed) == run.batches[epoch][position:], (position, workers)


def test_iterable_datasets_go_on_inline(loaders: Loaders) -> None:
    for make in (lambda: SavedStream(9), lambda: SavedIteratorStream(9)):
        run = loaders(make(), 2)
        numbers = [batch[0].flatten().tolist() for batch in run]
        for position in range(5):
            source = loaders(make(), 2)
            iterator = iter(source)
            for _ in range(position):
                next(iterator)
            for workers in (0, 1):
                resumed = loaders(make(), 2, num_workers=workers)
                resumed.load_state_dict(source.state_dict())
                assert [batch[0].flatten().tolist() for batch in resumed] == numbers[position:]


def test_shards_of_several_workers_are_refused_inline_before_anything_starts(loaders: Loaders) -> None:
    state = mid_epoch(loaders(SavedStream(22), 2, num_workers=2))
    inline = loaders(SavedStream(22), 2)
    with pytest.raises(ValueError, match="2 shards"):
        inline.load_state_dict(state)
    assert len(list(inline)) == 11


def test_an_iterable_dataset_without_a_position_begins_its_epoch_anew(loaders: Loaders) -> None:
    """The state says why, training is warned once when it is asked for and once when it is loaded; nothing fails."""
    for workers in (0, 2):
        loader = loaders(Stream("int", 20), num_workers=workers)
        loader.load_state_dict(loader.state_dict())
        iterator = iter(loader)
        next(iterator)
        reason = r"cannot save its position.*state_dict\(\) and load_state_dict\(\)"
        with pytest.warns(UserWarning, match=reason):
            state = loader.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert loader.state_dict() == state
        assert json.loads(json.dumps(state)) == state and re.search(reason, state["unsaved"])
        resumed = loaders(Stream("int", 20), num_workers=workers)
        with pytest.warns(UserWarning, match="epoch 0 .* begins anew"):
            resumed.load_state_dict(state)
        assert plain(resumed) == plain(loaders(Stream("int", 20), num_workers=workers))
        assert len(list(iterator)) == 19
        loaders(Stream("int", 20), num_workers=workers).load_state_dict(loader.state_dict())


class Failing(SavedStream):
    def _samples(self, first: int, step: int) -> Iterator[Any]:
        for number, drawn in super()._samples(first, step):
            if number.item() == 6:
                raise KeyError("six")
            yield number, drawn


def test_a_failed_shard_is_not_read_again_from_its_beginning(loaders: Loaders) -> None:
    loader = loaders(Failing(20), num_workers=2)
    iterator = iter(loader)
    got = [next(iterator)[0].item() for _ in range(6)]
    with pytest.raises(KeyError, match="six"):
        next(iterator)
    assert got == [0, 1, 2, 3, 4, 5]
    got.append(next(iterator)[0].item())
    try:
        state = loader.state_dict()
    except ValueError:
        return  # refused: right as well
    resumed = loaders(Failing(20), num_workers=2)
    resumed.load_state_dict(state)
    numbers = [batch[0].item() for batch in resumed]
    assert not set(numbers) & set(got)


class Broken(Samples):
    def __getitem__(self, key: Any) -> Any:
        if key == 4:
            raise KeyError("four")
        return super().__getitem__(key)


def test_a_failed_batch_counts_as_had(loaders: Loaders) -> None:
    for workers in (0, 1):
        loader = loaders(Broken("int", 10), 2, num_workers=workers)
        iterator = iter(loader)
        assert [next(iterator).tolist(), next(iterator).tolist()] == [[0, 1], [2, 3]]
        with pytest.raises(KeyError, match="four"):
            next(iterator)
        resumed = loaders(Samples("int", 10), 2, num_workers=workers)
        resumed.load_state_dict(loader.state_dict())
        assert plain(resumed) == [[6, 7], [8, 9]]


# -- the digest ----------------------------------------------------------------------------------------------------


def test_the_digest_tells_runs_apart(loaders: Loaders) -> None:
    def digest(seed: int = SEED, batch_size: int = 3, epochs: int = 1, workers: int = 0) -> str:
        loader = loaders(SOURCE, batch_size, True, num_workers=workers, generator=torch.Generator().manual_seed(seed))
        for _ in range(epochs):
            list(loader)
        return loader.stats().digest

    same = {digest(), digest(workers=1), digest(workers=3)}
    assert len(same) == 1
    assert len(same | {digest(seed=1), digest(batch_size=2), digest(epochs=2)}) == 4


def test_the_digest_grows_with_every_batch(loaders: Loaders) -> None:
    loader = loaders(SOURCE, 3)
    digests = [loader.stats().digest]
    for _ in loader:
        digests.append(loader.stats().digest)
    assert len(set(digests)) == len(digests) == 8


class Counting(data.IterableDataset[Any]):
    """Keeps from epoch to epoch how often it was read, and draws random numbers."""

    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[Any]:
        self.epochs += 1
        for number in range(6):
            yield self.epochs * 100 + number, torch.rand(()).item()

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_an_iterable_dataset_keeps_from_epoch_to_epoch_is_saved(loaders: Loaders, workers: int) -> None:
    """And, with persistent workers, the random numbers after it are those of the uninterrupted run."""

    def make() -> DataLoader[Any]:
        torch.manual_seed(SEED)
        return loaders(Counting(), 2, num_workers=workers, persistent_workers=workers > 0)

    whole = make()
    epochs = [plain(whole) for _ in range(3)]
    stopped = make()
    plain(stopped)
    plain(stopped)
    state = json.loads(json.dumps(stopped.state_dict()))
    streams = torch.get_rng_state()
    resumed = make()
    resumed.load_state_dict(state)
    torch.set_rng_state(streams)
    assert plain(resumed) == epochs[2]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("style", ["map", "iterable"])
def test_after_break_the_state_is_where_training_stopped(
    loaders: Loaders, workers: int, persistent: bool, style: str
) -> None:
    """Also when the iterator is gone, and as text."""
    if persistent and not workers:
        return

    def make() -> DataLoader[Any]:
        torch.manual_seed(SEED)
        source: Any = SOURCE if style == "map" else SavedStream(LENGTH)
        more: dict[str, Any] = {"generator": torch.Generator().manual_seed(1)} if style == "map" else {}
        shuffle = True if style == "map" else None
        return loaders(source, 3, num_workers=workers, persistent_workers=persistent, shuffle=shuffle, **more)

    whole = plain(make())
    stopped = make()
    for position, _ in enumerate(stopped):
        if position == 2:
            break
    state = json.loads(json.dumps(stopped.state_dict()))
    assert (state["epoch"], state["batch"]) == (0, 3)
    resumed = make()
    resumed.load_state_dict(state)
    if style == "iterable" and workers == 0:  # it draws from training's own generators, which are training's to save
        assert [batch[0] for batch in plain(resumed)] == [batch[0] for batch in whole[3:]]
    else:
        assert plain(resumed) == whole[3:]


def test_a_sampler_s_own_state_is_kept_between_epochs(loaders: Loaders) -> None:
    whole = loaders(SOURCE, 3, sampler=Wandering())
    epochs = [plain(whole) for _ in range(3)]
    stopped = loaders(SOURCE, 3, sampler=Wandering())
    plain(stopped)
    plain(stopped)
    resumed = loaders(SOURCE, 3, sampler=Wandering())
    resumed.load_state_dict(stopped.state_dict())
    assert plain(resumed) == epochs[2]


class FromPosition(data.IterableDataset[Any]):
    """Takes a state for a place from which its next `__iter__` goes on, also one from an epoch's end."""

    def __init__(self) -> None:
        self.start = self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        first, self.start = self.start, 0
        for self.at in range(first, 6):
            yield self.at + 100 * (0 if info is None else info.id)
        self.at = 6

    def state_dict(self) -> dict[str, int]:
        return {"next": min(self.at + 1, 6)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["next"]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_the_epoch_after_a_whole_one_is_whole(loaders: Loaders, workers: int, persistent: bool) -> None:
    made = loaders(FromPosition(), 2, num_workers=workers, persistent_workers=persistent)
    first = plain(made)
    resumed = loaders(FromPosition(), 2, num_workers=workers, persistent_workers=persistent)
    resumed.load_state_dict(made.state_dict())
    assert plain(resumed) == first == plain(resumed)


def test_a_persistent_pool_that_went_on_in_other_shards_has_its_own_in_the_next_epoch(loaders: Loaders) -> None:
    """An epoch goes on in the shards that it had, whatever the number of workers; the next one is dealt anew."""
    two = loaders(SavedStream(LENGTH), num_workers=2)
    iterator = iter(two)
    next(iterator)
    state = two.state_dict()
    rest = [batch[0] for batch in plain(iterator)]
    four = loaders(SavedStream(LENGTH), num_workers=4, persistent_workers=True)
    four.load_state_dict(state)
    assert [batch[0] for batch in plain(four)] == rest
    fresh = loaders(SavedStream(LENGTH), num_workers=4)
    assert [batch[0] for batch in plain(four)] == [batch[0] for batch in plain(fresh)]


def test_after_an_epoch_within_another_the_state_is_that_of_the_one_left_last(loaders: Loaders) -> None:
    loader = loaders(SOURCE)
    for position, _ in enumerate(loader):
        next(iter(loader))
        if position == 2:
            break
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 3)


def test_the_seed_of_persistent_workers_is_in_the_state_of_a_closed_loader(loaders: Loaders) -> None:
    loader = loaders(SOURCE, num_workers=1, persistent_workers=True)
    list(loader)
    before = loader.state_dict()
    loader.close()
    assert loader.state_dict() == before and before["base_seed"] is not None
