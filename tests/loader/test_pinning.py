"""Pinning: the structure stays, and without an accelerator slots are page-locked as far as the limits allow."""

from __future__ import annotations

import warnings
from collections import OrderedDict, UserDict
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.utils.data
from penstock.pinning import PinStage, pin
from penstock.pool.epoch import Epoch
from penstock.pool.map_window import MapWindow
from penstock.pool.window import Finished, Limits, Task
from penstock.telemetry.ledger import PinTally
from penstock.telemetry.times import TimeAccount

from tests.loader.support import (
    DataLoader,
    Full,
    Pair,
    Samples,
    Scripts,
    assert_same,
)

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


class Custom:
    """A user's batch type."""

    def __init__(self, value: Any, pinned: bool = False) -> None:
        self.value, self.pinned = value, pinned

    def pin_memory(self) -> Custom:
        return Custom(self.value, True)


class Lines(list[Any]):
    """A list with an attribute of its own."""

    title = ""


def make_custom(samples: list[Any]) -> Custom:
    return Custom(torch.tensor(samples))


def test_structure_is_preserved() -> None:
    lines = Lines([Custom(1), "text"])
    lines.title = "kept"
    data = {
        "pair": Pair(Custom(1), b"bytes"),
        "ordered": OrderedDict(a=Custom(2)),
        "user": UserDict(a=Custom(3)),
        "frozen": MappingProxyType({"a": Custom(4)}),
        "lines": lines,
        "tuple": (Custom(5), 6, None),
        "number": 7,
    }
    pinned, nbytes = pin(data)
    assert nbytes == 0, "there is no tensor in it"
    assert list(pinned) == list(data)
    assert type(pinned["pair"]) is Pair
    assert pinned["pair"].left.pinned
    assert pinned["pair"].right == b"bytes"
    assert type(pinned["ordered"]) is OrderedDict
    assert pinned["ordered"]["a"].pinned
    assert type(pinned["user"]) is UserDict
    assert pinned["user"]["a"].pinned
    assert pinned["frozen"]["a"].pinned
    assert type(pinned["lines"]) is Lines
    assert pinned["lines"].title == "kept"
    assert pinned["lines"][0].pinned
    assert pinned["tuple"][0].pinned
    assert pinned["tuple"][1:] == (6, None)
    assert not data["pair"].left.pinned, "the original is left alone"  # type: ignore[attr-defined]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is present")
@pytest.mark.parametrize("workers", [0, 2])
def test_without_an_accelerator_it_warns_once_and_says_what_it_does(workers: int) -> None:
    made = DataLoader(Samples(), num_workers=workers, pin_memory=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(made)) == 10
    texts = [str(each.message) for each in caught if "pin_memory" in str(each.message)]
    assert len(texts) == 1
    assert texts[0].startswith(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used."
    )
    assert ("mlock" if workers else "not pinned") in texts[0]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is present")
def test_the_deprecated_device_argument_warns_as_in_torch() -> None:
    def heard(kind: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(kind(Samples(), pin_memory=True, pin_memory_device="cuda"))
        return [str(each.message) for each in caught if "pin_memory_device" in str(each.message)]

    ours = heard(DataLoader)
    assert ours
    assert ours == heard(torch.utils.data.DataLoader)


@pytest.mark.filterwarnings("ignore:'pin_memory'")
@pytest.mark.parametrize("kind", ["big", "nested", "string"])
def test_pinned_batches_are_the_same_batches(kind: str) -> None:
    arguments: dict[str, Any] = {"batch_size": 3, "num_workers": 2}
    theirs = list(torch.utils.data.DataLoader(Samples(kind, 20), **arguments))
    assert_same(list(DataLoader(Samples(kind, 20), pin_memory=True, **arguments)), theirs)


@pytest.mark.filterwarnings("ignore:'pin_memory'")
def test_custom_batch_types_arrive() -> None:
    batches = list(DataLoader(range(4), collate_fn=make_custom, num_workers=1, pin_memory=True))
    assert [batch.value.item() for batch in batches] == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:'pin_memory'")
def test_an_exception_passes_through_the_pin_stage() -> None:
    made = DataLoader(Samples(length=3), sampler=[0, 9], num_workers=1, pin_memory=True)
    iterator = iter(made)
    next(iterator)
    with pytest.raises(IndexError, match="batch 1"):
        next(iterator)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_a_small_limit_on_locked_memory_is_no_error(script: Scripts, limit: int) -> None:
    body = f"""
import os, resource, warnings
from penstock import DataLoader
from tests.loader.support import Full
warnings.simplefilter("ignore")
def make(length, workers):  # forked: a server that was started by root would not listen to anybody else
    return DataLoader(Full(length), num_workers=workers, pin_memory=True, multiprocessing_context="fork")
list(make(1, 1))  # imports what it needs
if os.getuid() == 0:  # root has no limit
    os.setgid(65534); os.setuid(65534)
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))
made = make(60, 2)
batches = list(made)
pin = made.stats().pin
assert pin.batches == 60
assert (pin.mode == "mlock") == (pin.bytes > 0) == ({limit} > 0), pin
assert all((batch == i).all() for i, batch in enumerate(batches))
locked = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmLck"))
assert locked << 10 <= {limit}, locked
print(len(batches))
"""
    with script(body) as running:
        out, err = running.finish()
        assert out.split() == ["60"], err


@pytest.mark.filterwarnings("ignore:'pin_memory'")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is present")
def test_slots_are_locked() -> None:
    made = DataLoader(Full(5), num_workers=1, pin_memory=True)
    iterator: Any = iter(made)
    batch = next(iterator)
    worker = next(iter(iterator.pool.conductor.roster))
    assert any(mapping.locked for mapping in worker.slots._mappings.values())
    assert (batch == 0).all()
    del batch
    assert len(list(iterator)) == 4
    pin = made.stats().pin
    assert (pin.mode, pin.batches, pin.bytes) == ("mlock", 5, 5 * 20_000 * 4), "not the message around it"


@pytest.mark.filterwarnings("ignore:'pin_memory'")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is present")
def test_what_comes_through_no_slot_is_not_counted_as_locked() -> None:
    made = DataLoader(Samples(), num_workers=1, pin_memory=True)
    assert len(list(made)) == 10
    assert (made.stats().pin.batches, made.stats().pin.bytes) == (10, 0)


class _Slots:
    """What the pin stage may do with a worker's slots."""

    def __init__(self) -> None:
        self.returned: list[int] = []

    def give_back(self, number: int) -> None:
        self.returned.append(number)

    def mapping(self, number: int) -> Any:
        del number
        raise AssertionError("nobody wants this batch")


def test_a_batch_of_an_abandoned_epoch_gives_its_slot_back() -> None:
    from penstock.pool.crews.codec import Encoded
    from penstock.pool.crews.slot_payload import SlotPayload
    from penstock.pool.tasks import Batch

    slots: Any = _Slots()
    epoch = Epoch(0, MapWindow(Limits(1, 1, 1, 1)), TimeAccount())
    epoch.abandoned = True
    payload = SlotPayload(slots, Encoded(b"", [], b"", 3, 10))
    batch = Batch(0, 0, -1, payload, None, 1, 0, 0, 0, 0, -1, 0)
    stage = PinStage("mlock", PinTally())
    stage.put(epoch, [Finished(Task(0, [0]), batch)])
    stage.close()
    assert slots.returned == [3]
