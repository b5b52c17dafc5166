"""Slots: reusable pieces of shared memory, each of which carries one batch from a worker to training.

The life of a slot, as an argument that can be checked:

1. A slot belongs to the one worker that made it. At any moment it is in exactly one of three places: free in that
   worker's `SlotStore`; filled, from `SlotStore.acquire` until training has it; or leased, from `SlotTable.lease`
   until the last view of it has died.
2. Only the worker writes to a slot, and only between `acquire` and the message that announces the batch. Training
   sees it only after that message. So nobody reads what is being written.
3. A slot that was leased while this process forked is not used again: the child may look at it for ever.
4. A lease ends when the exported buffer dies, that is with the last tensor or array that refers to it, in whatever
   thread that happens. The end does nothing but append to a deque. The conductor sends the slots' numbers with the
   next task, or before if the worker has no free one (a new one costs far more than a message), and
   `SlotStore.release` makes the slots free. So a slot is written again only after every view of it is dead.
5. A slot at which the worker itself still looks, because a collate_fn keeps what it made, is not used again either.
6. A result that is never decoded (an abandoned epoch, a batch from a worker that lost it) is given back by
   `SlotTable.give_back`. So no slot is lost while its worker lives.
7. When the worker dies, its store is gone; training's mappings live until their last view dies and the system then
   frees the memory. Nothing has a name, so nothing can be left behind.
8. The descriptor crosses once, with the first batch in the slot, and both sides close it after mapping. So the
   number of open descriptors does not depend on the number of slots.
9. A slot is made warm (`make_slot`) before anybody else knows of it, so that is a worker's own business: what it takes
   from the system is empty, and no view of another slot can be in it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ..memory import Mapping, create_segment, take
from ..signals import emptied

SMALLEST = 1 << 16

MAKING = 3e-10
"""Seconds that it takes, a byte, to make a slot: 11 ms for 38 MB."""
WORTH_WAITING = 0.001
"""Seconds of that from which on it is worth to wait for one instead."""

_forks = 0
"""How often this process has forked."""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork, after_in_child=_count_fork)


def size_class(nbytes: int) -> int:
    """Round up by at most an eighth, so that batches of nearly the same size can share slots."""
    if nbytes <= SMALLEST:
        return SMALLEST
    step = 1 << (nbytes.bit_length() - 4)
    step = max(step, 4096)
    return -(-nbytes // step) * step


@dataclass(slots=True, eq=False)
class Slot:
    """A slot as its worker sees it."""

    number: int
    """Its number among its worker's slots."""
    size: int
    """Bytes."""
    buffer: ctypes.Array[ctypes.c_char]
    """Its memory."""
    address: int
    """Where the memory is mapped."""
    references: int = 0
    """References to `buffer` while no tensor is made on it; 0: not known."""

    def in_use(self) -> bool:
        """Does somebody in this worker still look at it? A collate_fn may keep what it made."""
        return bool(self.references) and sys.getrefcount(self.buffer) > self.references


def make_slot(number: int, size: int, nbytes: int) -> tuple[Slot, int]:
    """Make a slot, the first `nbytes` of it warm, and return it with the descriptor that lets training map it too."""
    descriptor = create_segment(size)
    take(descriptor, nbytes)
    mapping = Mapping(descriptor, size)
    mapping.populate(nbytes)
    slot = Slot(number, size, mapping.export(), mapping.address)
    slot.references = sys.getrefcount(slot.buffer)
    return slot, descriptor


class SlotStore:
    """The worker's side: which slots there are, which are free, what training has yet to be told."""

    def __init__(self, make: Callable[[int, int, int], tuple[Slot, int]] = make_slot) -> None:
        self._make = make
        self._slots: dict[int, Slot] = {}
        self._free: list[Slot] = []
        self._next = 0
        self.announcements: list[tuple[int, int]] = []
        """(number, size) of slots that training has not mapped yet, with `descriptors` beside it."""
        self.descriptors: list[int] = []
        self.dropped: list[int] = []
        """Numbers of slots that training should unmap."""

    def find(self, nbytes: int) -> Slot | None:
        """Take the smallest free slot that holds `nbytes`, the latest used first: its pages are warm."""
        best: Slot | None = None
        for slot in reversed(self._free):
            if slot.size >= nbytes and (best is None or slot.size < best.size):
                best = slot
        if best is not None:
            self._free.remove(best)
        return best

    def acquire(self, nbytes: int, room: int = 0) -> Slot:
        """Take a free slot that holds `nbytes`, or make one, with so much more room, in place of one that is too small.

        Room takes no memory before it is used.
        """
        found = self.find(nbytes + room)
        if found is not None:
            return found
        if self._free:
            self._drop(min(self._free, key=lambda slot: slot.size))
        size = size_class(nbytes + room)
        slot, descriptor = self._make(self._next, size, nbytes)
        self._next += 1
        self._slots[slot.number] = slot
        self.announcements.append((slot.number, size))
        self.descriptors.append(descriptor)
        return slot

    def patience(self, nbytes: int) -> float:
        """How long to wait, if no slot is free, for one of so many bytes to come back, seconds.

        As long as making one would take, so that at the worst it takes twice as long. Training has one batch and is
        about to take the next: where there are two, one is likely to come.
        """
        seconds = nbytes * MAKING
        return seconds if seconds >= WORTH_WAITING and len(self._slots) >= 2 and not self._free else 0.0

    def put_back(self, slot: Slot) -> None:
        """Free a slot that was acquired and not used."""
        self._free.append(slot)
        if slot.in_use():
            self._drop(slot)

    def release(self, numbers: Iterable[int]) -> None:
        """Training has done with these."""
        for number in numbers:
            self.put_back(self._slots[number])

    def forget(self, numbers: Iterable[int]) -> None:
        """Training will not use these again, nor may we."""
        for number in numbers:
            del self._slots[number]

    def trim(self) -> None:
        """Give all free slots up."""
        for slot in list(self._free):
            self._drop(slot)

    def announced(self) -> None:
        """The announcements have been sent: the descriptors are training's business now."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.announcements = []
        self.descriptors = []
        self.dropped = []

    def _drop(self, slot: Slot) -> None:
        self._free.remove(slot)
        del self._slots[slot.number]
        for position, (number, _) in enumerate(self.announcements):
            if number == slot.number:
                del self.announcements[position]
                os.close(self.descriptors.pop(position))
                return
        self.dropped.append(slot.number)


class Holder(Protocol):
    """Keeps a lease until training has the batch."""

    lease: ctypes.Array[ctypes.c_char] | None


class _Lease(weakref.ref[Any]):
    """What is called at its end is the append of a deque: it may happen anywhere, also inside the garbage collector, so
    it must take no lock; and a Ctrl-C that came while Python code ran there would be lost.
    """

    __slots__ = ("forks", "number")
    number: int
    forks: int
    """How often this process had forked when it began."""


class SlotTable:
    """Training's side of one worker's slots."""

    def __init__(self) -> None:
        self._mappings: dict[int, Mapping] = {}
        self._returned: deque[int] = deque()
        self._leases: dict[int, _Lease] = {}
        self._ended: deque[_Lease] = deque()
        self.bytes = 0
        """Shared memory in all of this worker's slots."""
        self._filled = 0

    def __len__(self) -> int:
        return len(self._mappings)

    def add(self, number: int, size: int, descriptor: int) -> None:
        """Map a slot that the worker announced. Closes the descriptor."""
        try:
            self._mappings[number] = Mapping(descriptor, size)
        finally:
            os.close(descriptor)
        self.bytes += size

    def drop(self, number: int) -> None:
        self.bytes -= self._mappings.pop(number).size

    @property
    def used(self) -> int:
        """Slots that carry a batch, or one that training still looks at."""
        return max(self._filled - len(self._returned) - len(self._ended), 0)

    def fill(self) -> None:
        """A batch has arrived in one of the slots."""
        self._filled += 1

    def mapping(self, number: int) -> Mapping:
        return self._mappings[number]

    def lease(self, number: int, holder: Holder) -> ctypes.Array[ctypes.c_char]:
        """Return a buffer over the slot; the slot is given back when the last view of it dies.

        Until training has the batch, `holder.lease` is one: a signal handler that raises must not end the lease.
        """
        buffer = self._mappings[number].export()
        lease = _Lease(buffer, self._ended.append)
        lease.number, lease.forks = number, _forks
        holder.lease = buffer
        self._leases[number] = lease
        return buffer

    def give_back(self, number: int) -> None:
        """Return a slot whose batch nobody will look at."""
        self._returned.append(number)

    def collect(self) -> tuple[list[int], list[int]]:
        """Take the slots that came back since the last call: those to use again, and those to forget."""
        returned, spoiled = emptied(self._returned), list[int]()
        for lease in emptied(self._ended):
            self._leases.pop(lease.number, None)
            (returned if lease.forks == _forks else spoiled).append(lease.number)
        self._filled -= len(returned) + len(spoiled)
        for number in spoiled:
            self.drop(number)
        return returned, spoiled

    def unread(self) -> int:
        """Slots that carry a batch which training has not taken.

        Training looks at one batch, and for a moment, while it takes the next, at two: then that is one more, so that
        no slot is made for the sake of that moment. Where training keeps more, they do not count.
        """
        looked_at = 1 if self.held() > 1 else 0
        return max(self._filled - len(self._returned) - len(self._leases), 0) + looked_at

    def is_short(self) -> bool:
        """Has the worker no free slot, as far as is known here, and are there some that came back?"""
        return self._filled >= len(self._mappings) and bool(self._returned or self._ended)

    def ours(self) -> int:
        """Bytes in the slots that training does not look at, about: they are nearly all of one size."""
        return self.bytes * (len(self) - self.held()) // max(len(self), 1)

    def held(self) -> int:
        """Slots that training still looks at."""
        return max(len(self._leases) - len(self._ended), 0)
