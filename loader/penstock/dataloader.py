"""`DataLoader`: torch's arguments and meaning, on an engine of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import notebook
from .accelerate import adopt_when_imported as adopt_accelerate
from .agent.options import Remote
from .arguments import Assumed, Options, given
from .checkpoint import State
from .control import Outcome
from .engine import Engine
from .iteration.inline import InlineIterator
from .iteration.persistent import PersistentEpoch
from .iteration.pooled import PooledIterator
from .iteration.tolerant import TolerantInlineIterator, TolerantPooledIterator
from .pool.depth import TORCHS
from .profiling.profile import Profile
from .profiling.session import Profiling
from .protocol import Auto, Pause, Prediction, Resize, Resume, Stats
from .tuning.options import Autotune

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A drop-in for `torch.utils.data.DataLoader` that can be watched and tuned while it trains.

    The arguments up to `in_order` are torch's, with their meaning and errors. Beyond them:

    Args:
        name: How the dashboard calls it.
        memory_budget: Byte limit for finished batches that training has not taken. By default 512 MiB, or what two
            batches a worker need if that is more, and never more than a quarter of the memory available at the start.
        max_workers: The most workers that `resize` accepts. By default 128, or four for every processor if that is
            more.
        max_retries: How many workers a batch may end (by a crash, say) and still be tried again.
        record_samples: So many of the slowest samples of an epoch are kept by index; see `stats().slowest`.
        stack_after: When training has waited so many seconds for one batch while later ones are finished, the Python
            stack of the worker that has it is taken, once, and told with the reorder stall.
        monitor: Where to publish. None: $PENSTOCK_URL if it is set; a URL; True: find or start the local dashboard;
            False: nowhere.
        publish_interval: Seconds between two snapshots.
        allow_control: Whether the dashboard may pause and resize this loader.
        refresh: When an epoch begins and the dataset is seen to have changed since persistent workers were started.
            "warn": say once which attribute; "auto": give them the dataset as it is now; "never": do not look.
        on_error: What becomes of a sample that fails. "raise": the error is training's; "skip": the batch is shorter;
            "replace": another sample takes its place, always the same one for a seed. A batch that collate_fn fails
            on, or of which nothing is left, is left out. An iterable-style dataset is asked for the next sample.
        max_errors: How many samples of an epoch may fail, as an int, or as a float what share of the dataset; with
            more the epoch fails, and lists them.
        retries: How often a sample that fails is tried again first.
        sample_timeout: Seconds after which a sample of a map-style dataset is taken to hang: its worker is ended and
            replaced, and its batch made without it, as `on_error` says. Needs workers.
        quarantine: A file to which the indices of bad samples are appended, and from which they are known in the next
            run; see `stats().quarantined`.
        autotune: Whether the number of workers is found while training runs: `num_workers` is where it begins (with
            none, at one), `max_workers` the most. An `Autotune` says more. A call of `resize`, or a resize from the
            dashboard, ends it until `tune()`.
        workers: "process", or "thread": the workers are threads of this process, and nothing is forked, pickled or
            copied. A map-style dataset is shared by them then; random numbers are to be drawn from
            `get_worker_info().rng`; and a sample that hangs cannot be ended. `Agents` or
            `RayWorkers` say on which other machines they run.
        prefetch_epochs: With persistent workers, have the first batches of the next epoch made while the last ones of
            this one are used, where its order can be foreseen: torch's and our own samplers, map-style datasets, worker
            processes, and nothing in the dataset that is shared with training. If the epoch then begins otherwise, they
            are thrown away.

    Raises:
        TypeError, ValueError: An argument cannot be meant; the message names it and its value.

    In a `with` block it is closed at the end.
    """

    # What the loader was given, for people and for libraries that make it again; the engine reads its own.
    name: str
    memory_budget: int | None
    max_workers: int
    max_retries: int
    record_samples: int
    stack_after: float
    monitor: str | bool | None
    publish_interval: float
    allow_control: bool
    on_error: str
    max_errors: float
    retries: int
    sample_timeout: float | None
    quarantine: str | None
    autotune: bool | Autotune
    workers: Literal["process", "thread"] | Remote
    prefetch_epochs: bool

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        name: str = "loader",
        memory_budget: int | None = None,
        max_workers: int | None = None,
        max_retries: int = 2,
        record_samples: int = 0,
        stack_after: float = 0.5,
        monitor: str | bool | None = None,
        publish_interval: float = 0.2,
        allow_control: bool = True,
        refresh: Literal["warn", "auto", "never"] = "warn",
        on_error: Literal["raise", "skip", "replace"] = "raise",
        max_errors: float = 0.05,
        retries: int = 1,
        sample_timeout: float | None = None,
        quarantine: str | PathLike[str] | None = None,
        autotune: bool | Autotune = False,
        workers: Literal["process", "thread"] | Remote = "process",
        prefetch_epochs: bool = True,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        options = {
            "name": name,
            "memory_budget": memory_budget,
            "max_workers": max_workers,
            "max_retries": max_retries,
            "record_samples": record_samples,
            "stack_after": stack_after,
            "monitor": monitor,
            "publish_interval": publish_interval,
            "allow_control": allow_control,
            "refresh": refresh,
            "on_error": on_error,
            "max_errors": max_errors,
            "retries": retries,
            "sample_timeout": sample_timeout,
            "quarantine": quarantine,
            "autotune": autotune,
            "workers": workers,
            "prefetch_epochs": prefetch_epochs,
        }
        self._engage(options, given(prefetch_factor))
        adopt_accelerate()

    def _engage(self, options: dict[str, Any], prefetch_factor: int | None) -> None:
        """Have an engine. What torch's `__init__` does is done; `prefetch_factor` is what was given."""
        checked = Options.checked(**options)
        if prefetch_factor is None and self.num_workers > 0:
            self.prefetch_factor = Assumed(TORCHS)
        checked.show_on(self)
        self.__dict__["_penstock"] = Engine(self, checked)

    @property
    def _penstock(self) -> Engine:
        """All that is ours. Whatever else a subclass sets or defines is its own.

        It stands under this name among the attributes, too, and so is copied with them, however the loader is copied:
        one that belongs to another loader, or to none, is taken for a copy and made this one's own.
        """
        engine: Engine = self.__dict__["_penstock"]
        if not engine.belongs_to(self):
            engine = self.__dict__["_penstock"] = engine.copy_for(self)
        return engine

    # -- iteration ------------------------------------------------------------------------------------------

    def __iter__(self) -> _BaseDataLoaderIter:
        engine = self._penstock
        engine.begin()
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        if isinstance(self._iterator, PooledIterator):
            return PersistentEpoch(self._iterator)
        return self._iterator  # of a subclass that wraps ours

    def _get_iterator(self) -> _BaseDataLoaderIter:
        tolerant = self._penstock.quarantine is not None
        if self.num_workers == 0:
            return TolerantInlineIterator(self) if tolerant else InlineIterator(self)
        if self.prefetch_factor is None:
            self.prefetch_factor = Assumed(TORCHS)  # as torch would have it, had the loader begun with workers
        return TolerantPooledIterator(self) if tolerant else PooledIterator(self)

    def __len__(self) -> int:
        length = super().__len__()
        self._penstock.note_length(length)
        return length

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._penstock.ledger.errors.died_of(error)
        self._penstock.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process: pools, locks, the publisher; of the engine likewise."""
        return {**self.__dict__, "_iterator": None}

    # -- live control ---------------------------------------------------------------------------------------

    def resize(self, workers: int) -> Outcome:
        """Have so many workers from now on. May be called from any thread at any moment.

        Growing forks new workers from the zygote; shrinking lets workers finish the batch that they are at. The
        batches and their order stay the same. Without an epoch under way, when loading inline, and for an
        iterable-style dataset that cannot save its position, it takes effect with the next epoch: the outcome is
        then `pending`.

        Args:
            workers: How many, from 1 to `max_workers`.

        Returns:
            What came of it, within five seconds, or how far it has got by then.

        Raises:
            TypeError, ValueError: That is not a number of workers.
            RuntimeError: The loader is closed.
        """
        engine = self._penstock
        return engine.wait(engine.request(Resize(workers)))

    def pause(self, resume_after: float | None = None) -> Outcome:
        """Let workers finish the batch that they are at and hold. May be called from any thread at any moment.

        Training goes on with what is finished and then waits. Without an epoch under way the next one starts paused.

        Args:
            resume_after: Seconds after which the pause ends by itself; None: it does not.

        Returns:
            What came of it.

        Raises:
            TypeError, ValueError: That is not a number of seconds.
            RuntimeError: The loader is closed.
        """
        engine = self._penstock
        return engine.wait(engine.request(Pause(resume_after)))

    def resume(self) -> Outcome:
        """End a pause. May be called from any thread at any moment.

        Returns:
            What came of it.

        Raises:
            RuntimeError: The loader is closed.
        """
        engine = self._penstock
        return engine.wait(engine.request(Resume()))

    def tune(self, on: bool = True) -> Outcome:
        """Let the tuner choose the number of workers from now on, or not. May be called from any thread at any moment.

        A `resize` pins the number of workers; this releases it.

        Args:
            on: False: the number of workers stays as it is.

        Returns:
            What came of it.

        Raises:
            RuntimeError: The loader is closed.
        """
        engine = self._penstock
        return engine.wait(engine.request(Auto(bool(on))))

    def note(self, text: str) -> None:
        """Say something about what the training does now, such as "lr drop": the dashboard's charts show where it was.

        It costs some microseconds and does nothing else. May be called from any thread at any moment.

        Args:
            text: What there is to say; of more than 256 characters the beginning.

        Raises:
            TypeError: It is not a text.
        """
        self._penstock.note(text)

    def profile(self, seconds: float = 10.0, rate: float = 50.0) -> Profile:
        """Look for a while at which lines of the dataset the workers' time goes to. May be called from any thread.

        It waits meanwhile: the loader must be iterated over by another thread, or there is soon nothing to see. In the
        thread that iterates use `profiling`. The batches and their order stay the same.

        Args:
            seconds: For how long.
            rate: Looks a second at each worker.

        Returns:
            What was seen: `print` shows the functions that cost most, `save` writes a file for speedscope or pprof.

        Raises:
            TypeError, ValueError: That is no time, or no rate.
            RuntimeError: The loader is closed.
        """
        return self._penstock.start_profiling(seconds, rate).result()

    def profiling(self, seconds: float | None = None, rate: float = 50.0) -> Profiling:
        """Begin to look at which lines of the dataset the workers' time goes to, and return at once.

        `with train.profiling() as profiling:` looks until the block ends; `profiling.profile` is what was seen.

        Args:
            seconds: For how long; None: until it is stopped.
            rate: Looks a second at each worker. 5 cost next to nothing, and may go on for the whole training.

        Returns:
            The profile that is being taken.

        Raises:
            TypeError, ValueError: That is no time, or no rate.
            RuntimeError: The loader is closed.
        """
        return self._penstock.start_profiling(seconds, rate)

    def refresh(self) -> None:
        """Make a persistent pool take the dataset as it is now, from the next epoch on.

        Raises:
            RuntimeError: The loader is closed.
        """
        self._penstock.refresh()

    def close(self) -> None:
        """End all workers. Iterators under way fail; the loader cannot be iterated over again."""
        self._penstock.close()

    # -- telemetry ------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """How everything stands now. May be called from any thread at any moment.

        Returns:
            Counters, queue depths, times and workers, and `verdict`: what limits training, in words and as `limit`.
            Each field is described in `penstock.protocol`. `print` shows it as a small table.
        """
        return self._penstock.stats()

    def predict(self, workers: int, *, memory_budget: int | None = None, ordinary_samples: bool = False) -> Prediction:
        """What another number of workers would bring, by a replay of the batches made last; takes some ms.

        Args:
            workers: How many, from 1 to `max_workers`.
            memory_budget: As if finished batches had so many bytes; None: as it is.
            ordinary_samples: As if the slowest 1 % of samples took no longer than the others.

        Returns:
            Batches a second that training would get, with the interval `low` to `high` in which it is nine times out of
            ten, and the share of the time in which it would wait. `enough` is False if too little was seen yet.

        Raises:
            TypeError, ValueError: That is not a number of workers.
        """
        return self._penstock.predict(workers, memory_budget, ordinary_samples)

    def _repr_html_(self) -> str:
        engine = self._penstock
        return notebook.html(engine.options.name, engine.stats(), engine.publisher, engine.options.monitor)

    # -- checkpoints ----------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """The point between two batches at which training is, or was when it left the epoch.

        Returns:
            A plain dict that `json.dumps` takes, unless a dataset or sampler of the user's puts something else into its
            own state. Where the place in an epoch cannot be saved (an iterable-style dataset without a state,
            `in_order=False`), it says so, with a warning.
        """
        return self._penstock.states.save()

    def load_state_dict(self, state: State) -> None:
        """Go on from a state with the next `iter()`: the rest of that epoch first, then the same following ones.

        Args:
            state: What `state_dict` returned, here or in another process, with any number of workers.

        Raises:
            ValueError: The state is not one of such a loader.
            RuntimeError: The loader is closed.
        """
        self._penstock.states.load(state)
