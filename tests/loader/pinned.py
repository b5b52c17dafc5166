"""What `test_accelerator.py` runs in processes that have the test accelerator: each function is a test.

Everything is compared with torch's own loader in the same process: structure, types, values, and what is pinned.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import traceback
import warnings
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data
from penstock import Agents
from penstock.telemetry.report import report
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tests import accelerator
from tests.loader.agent.agents import SECRET
from tests.loader.support import KINDS, DataLoader, Full, Pair, Samples, Stream, make_sample, wait_until

THEIRS: Any = torch.utils.data.DataLoader
"""Without its types, as ours."""
BIG = 10_000
"""Numbers in a tensor that goes through a slot."""


def numbers(samples: list[int], length: int = 3) -> torch.Tensor:
    return torch.tensor(samples, dtype=torch.float32)[:, None].repeat(1, length)


class Custom:
    """A user's batch type: one part of it is pinned, one is not."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.more, self.loose = data, {"labels": [data.long()]}, data.clone()

    def pin_memory(self) -> Custom:
        self.data = self.data.pin_memory()
        self.more["labels"] = [self.more["labels"][0].pin_memory()]
        return self


class Turning:
    """Becomes something else when it is pinned."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def pin_memory(self) -> Any:
        return {"turned": self.data.pin_memory(), "was": "Turning"}


class Empty:
    """Nothing comes back from it."""

    def pin_memory(self) -> None:
        return None


class Frozen(Mapping[str, Any]):
    """A mapping that is made of a mapping, and cannot be changed."""

    def __init__(self, content: Any) -> None:
        self._content = dict(content)

    def __getitem__(self, key: str) -> Any:
        return self._content[key]

    def __len__(self) -> int:
        return len(self._content)

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)


class Fixed(Frozen):
    """A mapping that cannot be made of a mapping."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__({"first": first, "second": second})


class Row(Sequence[Any]):
    """A sequence that is made of one, and cannot be changed."""

    def __init__(self, content: Any) -> None:
        self._content = list(content)

    def __getitem__(self, place: Any) -> Any:
        return self._content[place]

    def __len__(self) -> int:
        return len(self._content)


class OneByOne(Row, MutableSequence[Any]):
    """A sequence that can be changed, but not by slices."""

    def __init__(self, content: Any, title: str = "") -> None:
        super().__init__(content)
        self.title = title

    def __copy__(self) -> OneByOne:
        return OneByOne(self._content, self.title)

    def __setitem__(self, place: Any, value: Any) -> None:
        if not isinstance(place, int):
            raise TypeError("one at a time")
        self._content[place] = value

    def __delitem__(self, place: Any) -> None:
        del self._content[place]

    def insert(self, index: int, value: Any) -> None:
        self._content.insert(index, value)


class Stubborn(OneByOne):
    """A sequence that says it can be changed, and cannot."""

    def __setitem__(self, place: Any, value: Any) -> None:
        raise TypeError(f"{place} stays, and is not {value}")


class Titled(UserDict[str, Any]):
    """A mapping with something of its own."""

    title = ""


class Lines(list[Any]):
    """A list with something of its own."""

    title = ""


class Triple(tuple[Any, ...]):
    """A tuple of another name."""

    __slots__ = ()


class Marked(torch.Tensor):
    """A tensor of another name."""


@dataclass
class Record:
    """Torch does not look into these."""

    data: torch.Tensor


def titled(data: torch.Tensor, kind: Any) -> Any:
    made = kind([data]) if kind is Lines else kind({"a": data})
    made.title = "kept"
    return made


def packed(data: torch.Tensor) -> PackedSequence:
    return pack_sequence([data[0], data[-1][:1]], enforce_sorted=False)


def twice(data: torch.Tensor) -> list[torch.Tensor]:
    return [data, data, data[1:]]


def nested(data: torch.Tensor) -> torch.Tensor:
    # Not the jagged layout: it imports torch's compiler first, in every process, for ten seconds.
    return torch.nested.nested_tensor([data[0], data[-1][:1]])


SHAPES: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda data: data,
    "list": lambda data: [data, [data + 1], []],
    "tuple": lambda data: (data, (data + 1,), ()),
    "namedtuple": lambda data: Pair(data, Pair(data + 1, "text")),
    "tuple subclass": lambda data: Triple([data, 1, 2]),
    "dict": lambda data: {"a": data, 3: {"b": data + 1}, "c": {}},
    "OrderedDict": lambda data: OrderedDict(b=data, a=data + 1),
    "defaultdict": lambda data: defaultdict(list, a=data),
    "UserDict with an attribute": lambda data: titled(data, Titled),
    "list with an attribute": lambda data: titled(data, Lines),
    "UserList": lambda data: UserList([data, "text"]),
    "deque": lambda data: deque([data, data + 1], maxlen=5),
    "immutable mapping": lambda data: Frozen({"a": data}),
    "mapping of another constructor": lambda data: Fixed(data, data + 1),
    "immutable sequence": lambda data: Row([data, "text"]),
    "sequence that takes no slices": lambda data: OneByOne([data, data + 1], "kept"),
    "sequence that cannot be changed after all": lambda data: Stubborn([data, "text"]),
    "range": lambda _: range(3),
    "texts": lambda data: ["one", b"two", str(data.shape), "", b""],
    "things that are no tensors": lambda data: [None, 1, 2.5, True, {1, 2}, Record(data), np.arange(4), 1j],
    "custom": Custom,
    "custom in a list": lambda data: [Custom(data), {"deep": Custom(data + 1)}],
    "custom that turns": Turning,
    "custom that is gone": lambda data: [Empty(), data],
    "packed sequence": packed,
    "tensor subclass": lambda data: data.as_subclass(Marked),
    "parameter": torch.nn.Parameter,
    "requires_grad": lambda data: data.clone().requires_grad_(),
    "transposed": lambda data: data.t(),
    "channels last": lambda data: data[None, :, :, None].repeat(1, 1, 1, 2).to(memory_format=torch.channels_last),
    "expanded": lambda data: data[:1].expand(4, -1),
    "with gaps": lambda data: data[:, ::2],
    "twice and a view": twice,
    "no dimension": lambda data: data.sum(),
    "no element": lambda data: [data[:0], torch.empty(0, 5, dtype=torch.int32)],
    "types": lambda data: [data.to(kind) for kind in (torch.bool, torch.bfloat16, torch.complex64, torch.uint16)],
    "sparse": lambda data: data.to_sparse(),
    "sparse rows": lambda data: [data.to_sparse_csr(), data.to_sparse_csc()],
    "nested": nested,
    "nothing": lambda _: [],
}


class Keys:
    """Draws the batches of one case at a time: each sample's key is the case's name, a number and a length."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int, int]]] = []

    def choose(self, case: str, length: int = 3) -> None:
        keys = [(case, number, length) for number in range(7)]
        self.batches = [keys[:3], keys[3:6], keys[6:]]

    def __iter__(self) -> Iterator[list[tuple[str, int, int]]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Keyed(torch.utils.data.Dataset[Any]):
    """Samples are their keys; or, by the kinds of `support.py`, made from them."""

    def __init__(self, made: bool) -> None:
        self.made = made

    def __getitem__(self, key: tuple[str, int, int]) -> Any:
        return make_sample(*key[:2]) if self.made else key


def shape(keys: list[tuple[str, int, int]]) -> Any:
    """Collate a batch of the shape that its keys name."""
    return SHAPES[keys[0][0]](numbers([number for _, number, _ in keys], keys[0][2]))


def assert_alike(ours: Any, theirs: Any, path: str = "batch") -> None:
    """The same structure of the same types with the same contents, of which the same is pinned."""
    assert type(ours) is type(theirs), f"{path}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        looks = [(t.dtype, t.layout, t.requires_grad, t.is_leaf, t.is_pinned()) for t in (ours, theirs)]
        assert looks[0] == looks[1], f"{path}: {looks}"
        if theirs.is_nested:
            assert_alike(list(ours.unbind()), list(theirs.unbind()), path)
            return
        assert ours.shape == theirs.shape, f"{path}: {ours.shape} is not {theirs.shape}"
        assert torch.equal(ours.to_dense(), theirs.to_dense()), f"{path}: {ours} is not {theirs}"
        if theirs.layout is torch.strided:
            steps = [steps_of(tensor) for tensor in (ours, theirs)]
            assert steps[0] == steps[1], f"{path}: {steps}"
        return
    if isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, path)
        return
    if isinstance(theirs, Mapping):
        assert list(ours) == list(theirs), path
        for key in theirs:
            assert_alike(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, Sequence) and not isinstance(theirs, str | bytes):
        assert len(ours) == len(theirs), path
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(*pair, f"{path}[{place}]")
    elif not hasattr(theirs, "__dict__"):
        assert ours == theirs, path
    if getattr(theirs, "__dict__", None):
        assert_alike(vars(ours), vars(theirs), f"{path}.__dict__")


def steps_of(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions that are gone along: of one element, any stride is right."""
    return [step for step, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1]


def pinned_bytes(batch: Any) -> int:
    """Bytes of all pinned tensors, found by another way than the loader's: whatever the batch is made of."""
    if isinstance(batch, torch.Tensor):
        if not batch.is_pinned():
            return 0
        if batch.layout is torch.sparse_coo:
            return batch._indices().nbytes + batch._values().nbytes
        if batch.layout is torch.sparse_csr:
            return batch.crow_indices().nbytes + batch.col_indices().nbytes + batch.values().nbytes
        if batch.layout is torch.sparse_csc:
            return batch.ccol_indices().nbytes + batch.row_indices().nbytes + batch.values().nbytes
        return batch.nbytes
    if isinstance(batch, Mapping):
        return sum(map(pinned_bytes, batch.values()))
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return sum(map(pinned_bytes, batch))
    return sum(map(pinned_bytes, getattr(batch, "__dict__", {}).values()))


def outcome(loader: Any) -> list[Any] | type[BaseException]:
    """An epoch's batches, or what was raised instead. Of that only the type: its traceback holds the iterator."""
    try:
        return list(loader)
    except Exception as error:
        raised = type(error)
    gc.collect()  # torch's iterator is in a cycle, and would complain in every process that is forked with it
    return raised


class Comparison:
    """A loader of torch's and one of ours with the same arguments, but for where our workers are."""

    def __init__(self, workers: Any = "process", **arguments: Any) -> None:
        self.theirs = THEIRS(**arguments)
        self.ours = DataLoader(**arguments, workers=workers)

    def compare(self, case: str, wrong: list[str]) -> bool:
        """An epoch: batches are torch's, and what the pin stage counts is what is pinned. Was anything?"""
        before = self.ours.stats().pin
        theirs, ours = outcome(self.theirs), outcome(self.ours)
        after = self.ours.stats().pin
        try:
            if isinstance(theirs, type) or isinstance(ours, type):
                assert ours is theirs, f"{ours} is not {theirs}"
                assert case == "expanded", "this is the only case that torch cannot pin"
                return False
            assert_alike(ours, theirs)
            found = sum(map(pinned_bytes, theirs))
            assert after.mode == "accelerator"
            assert after.batches - before.batches == len(theirs)
            counted = after.bytes - before.bytes
            assert counted == found, f"{counted} bytes are counted where {found} are pinned"
        except Exception:
            wrong.append(f"{case}:\n{traceback.format_exc()}")
            return False
        return found > 0


def same_as_torch(workers: str, *addresses: str) -> None:
    """All that a batch can be made of, small and through slots, with torch's collation and without any.

    `addresses`: of agents that have the workers, if they are not here. Then half of it is small: it takes its time.
    """
    common: dict[str, Any] = {"num_workers": int(workers), "pin_memory": True}
    if addresses:
        common["workers"] = Agents(addresses, token=SECRET)
    keys, wrong, pinned = Keys(), list[str](), 0
    keyed = common | {"batch_sampler": keys, "persistent_workers": int(workers) > 0}
    comparison = Comparison(dataset=Keyed(made=False), collate_fn=shape, **keyed)
    for number, case in enumerate(SHAPES):
        for length in ((3, BIG)[number % 2],) if addresses else (3, BIG):
            keys.choose(case, length)
            pinned += comparison.compare(case, wrong)
    comparison = Comparison(dataset=Keyed(made=True), **keyed)
    for case in KINDS:
        keys.choose(case)
        pinned += comparison.compare(case, wrong)
    for case, dataset, batch_size in (
        ("no batching", Samples("dict"), None),
        ("a stream", Stream("pair"), 4),
        ("a stream without batching", Stream("nested"), None),
    ):
        pinned += Comparison(dataset=dataset, batch_size=batch_size, **common).compare(case, wrong)
    assert not wrong, "\n".join(wrong)
    assert pinned > (35 if addresses else 70), f"only {pinned} cases had anything to pin"


class Witness:
    """Says which device was current where it was pinned, and in which thread."""

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples

    def pin_memory(self) -> tuple[int, bool]:
        main = threading.current_thread() is threading.main_thread()
        return torch.accelerator.current_device_index(), main


def device_of_the_pin_thread(workers: str) -> None:
    """Batches are pinned for the device that was training's when the epoch began, as in torch."""
    for persistent in (False, True) if int(workers) else (False,):
        seen = []
        for kind in (THEIRS, DataLoader):
            made = kind(
                range(4),
                num_workers=int(workers),
                collate_fn=Witness,
                pin_memory=True,
                persistent_workers=persistent,
            )
            found = []
            for device in (1, 0, 1):
                torch.accelerator.set_device_index(device)
                found.append(list(made))
                assert torch.accelerator.current_device_index() == device, "the training thread keeps its own"
            seen.append(found)
            del made
        assert seen[0] == seen[1], seen
        assert seen[1][0] == [(1, not int(workers))] * 4, seen


class PairError(Exception):
    """An error that cannot be made of a text."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(left, right)


class Failing:
    """Cannot be pinned if there is a 2 in it."""

    def __init__(self, kind: str, samples: list[int]) -> None:
        self.kind, self.data = kind, numbers(samples, BIG)

    def pin_memory(self) -> torch.Tensor:
        if self.data[0, 0] == 2:
            if self.kind == "PairError":
                raise PairError(1, 2)
            raise {"ValueError": ValueError, "KeyError": KeyError, "TypeError": TypeError}[self.kind]("no pinning of 2")
        return self.data.pin_memory()


class Making:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, samples: list[int]) -> Any:
        return {"batch": Failing(self.kind, samples)}


def errors(workers: str) -> None:
    """What a batch's own pin_memory raises reaches training as from torch, and the epoch goes on behind it."""
    torch.accelerator.set_device_index(1)
    for kind in ("ValueError", "KeyError", "TypeError", "PairError"):
        told = []
        for loader in (THEIRS, DataLoader):
            made = loader(range(5), num_workers=int(workers), collate_fn=Making(kind), pin_memory=True)
            iterator = iter(made)
            came: list[Any] = [next(iterator)["batch"][0, 0].item() for _ in range(2)]
            try:
                next(iterator)
            except Exception as error:
                came.append(type(error))
                text = str(error)
                trace = "".join(traceback.format_exception(error))
            came += [batch["batch"][0, 0].item() for batch in iterator]
            told.append((came, text.splitlines()[0]))
            assert "in pin_memory" in trace, trace
            assert "PairError(1, 2)" in trace or "no pinning of 2" in trace, trace
            if loader is DataLoader:
                stats = made.stats()
                assert (stats.batches, stats.pin.batches) == (5, 4), stats
                assert stats.pin.bytes == 4 * 4 * BIG, stats.pin
            del iterator, made
        assert told[0] == told[1], told
        if int(workers):
            assert told[1][1] == f"Caught {kind} in pin memory thread for device 1.", told


def assert_slots_come_back(loader: Any) -> None:
    """No more are in use than batches can be on their way: two a worker, and one that was just taken."""
    wait_until(lambda: loader.stats().queues.slots_used <= 5, "slots of batches that failed")


class Quitting(Failing):
    def pin_memory(self) -> Any:
        if self.kind == "SystemExit":
            raise SystemExit("enough")
        raise KeyboardInterrupt("enough")


def quit_pinning(samples: list[int]) -> Any:
    return Quitting("SystemExit" if samples[0] % 2 else "KeyboardInterrupt", samples)


def endings() -> None:
    """Not even what ends a thread ends the pin thread: training would wait for ever."""
    made = DataLoader(range(40), num_workers=2, prefetch_factor=2, collate_fn=quit_pinning, pin_memory=True)
    iterator = iter(made)
    for number in range(40):
        try:
            next(iterator)
        except BaseException as error:
            assert type(error) is (SystemExit if number % 2 else KeyboardInterrupt), error
            assert "in pin memory thread" in str(error)
            assert "enough" in str(error)
        assert_slots_come_back(made)
    assert next(iterator, None) is None


def device_lost() -> None:
    """If the pin thread cannot use the device every batch says why."""
    real = torch.accelerator.set_device_index

    def lost(device: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"device {device} has fallen off the bus")
        real(device)

    torch.accelerator.set_device_index = lost
    made = DataLoader(Full(30), num_workers=2, prefetch_factor=2, pin_memory=True)
    iterator = iter(made)
    for _ in range(30):
        try:
            next(iterator)
        except RuntimeError as error:
            assert "in pin memory thread for device 0" in str(error)
            assert "device 0 has fallen off the bus" in str(error)
        else:
            raise AssertionError("it was pinned for a device that is not there")
        assert_slots_come_back(made)
    assert made.stats().pin.batches == made.stats().pin.bytes == 0


def warned(workers: str) -> None:
    """The same warnings as torch's, and none without a reason."""
    heard = []
    for kind in (THEIRS, DataLoader):
        for device in ("", "cuda", "pretend:1"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                batches = list(kind(range(3), num_workers=int(workers), pin_memory=True, pin_memory_device=device))
            assert all(batch.is_pinned() for batch in batches)
            heard.append([(each.category, text) for each in caught if "pin_memory" in (text := str(each.message))])
    assert heard[:3] == heard[3:], heard
    assert [len(texts) for texts in heard[3:]] == [0, 1, 1], heard


def control() -> None:
    """Pauses, resizes and a broken-off epoch meanwhile: every batch is what it should be, and pinned."""
    length = 120
    made = DataLoader(Full(length), num_workers=2, max_workers=4, pin_memory=True, persistent_workers=True)
    for epoch in range(3):
        kept = []
        for number, batch in enumerate(made):
            kept.append(batch)
            if number % 20 == 5:
                made.resize((1, 4, 3)[number // 20 % 3])
            if number % 30 == 10:
                made.pause()
                made.resume()
            if number % 30 == 25:
                made.pause(resume_after=0.05)
            if epoch == 1 and number == 70:
                break
        assert len(kept) == (71 if epoch == 1 else length)
        for number, batch in enumerate(kept):
            assert batch.is_pinned()
            assert (batch == number).all(), f"batch {number} of epoch {epoch}"
        del batch, kept
    made.close()


def blocks_are_used_again(workers: str) -> None:
    """Pinned memory does not grow with the batches, but only with those that are there at a time."""
    made = DataLoader(Full(100), num_workers=int(workers), prefetch_factor=2 if int(workers) else None, pin_memory=True)
    before = accelerator.times_pinned()
    for _ in range(4):
        for number, batch in enumerate(made):
            assert (batch == number).all()
    assert accelerator.times_pinned() - before == 400
    # Two a worker are prefetched; of the rest one is being pinned and two are training's, the last and the next.
    assert accelerator.blocks_made() <= 2 * int(workers) + 3, accelerator.blocks_made()


class Waiting:
    """Pinned when the gate opens."""

    gate = threading.Event()

    def __init__(self, samples: list[int]) -> None:
        self.data = numbers(samples, BIG)

    def pin_memory(self) -> torch.Tensor:
        assert self.gate.wait(60)
        return self.data.pin_memory()


def told(workers: str) -> None:
    """Pinning is seen while it lasts: as a wait of training's, in its queue, and as throughput afterwards."""
    made = DataLoader(range(6), batch_size=2, num_workers=int(workers), collate_fn=Waiting, pin_memory=True)
    seen = []

    def watch() -> None:
        with contextlib.suppress(AssertionError):
            seen.append(wait_until(lambda: (stats := made.stats()).times.pin_wait_us > 0 and stats, "pin wait"))
        Waiting.gate.set()

    watching = threading.Thread(target=watch)
    watching.start()
    batches = list(made)
    watching.join()
    assert seen, "training waited for the pin stage, and nobody was told"
    assert seen[0].queues.pin > 0 or not int(workers), seen
    stats = made.stats()
    assert all(batch.is_pinned() for batch in batches)
    assert (stats.pin.mode, stats.pin.batches, stats.pin.bytes) == ("accelerator", 3, 6 * 4 * BIG)
    assert stats.pin.us > 0
    assert stats.queues.pin == 0
    assert "pinning   accelerator, " in report(stats), report(stats)
