"""The store of a cache: one file, in memory or on a disk, that any number of processes read and add to.

A header, then a table with a place for each sample, then the records one after the other. Everything is read and
written by system calls at offsets, never through a mapping: a full disk is an error rather than a signal, nothing
depends on which process has how much of it mapped, and what is read is a copy that nobody else changes.

Why a reader never gets anything but a whole record, as an argument that can be checked:

1. Records never move and are never written twice: their place is taken from the end of the file under a lock, which
   the system takes back from a process that dies. So nobody writes where a record is, or will be.
2. An entry of the table is written only when its record is written. Whoever dies before that leaves a place that is
   claimed and empty, which is no entry to those who read, and which the next one who has that sample claims again. A
   claim names its process: while that lives, and for a while at the most, nobody else writes the same sample.
3. An entry carries a check of itself. One that is read while it is written is not an entry, and so a miss.
4. What the system itself lost, when the machine failed, is told by the check of the record: an entry names the boot in
   which it was written, and one of another boot is not believed before the record was checked, once. The end of the
   records is looked up in the table then, since it may have been lost as well.
5. A record begins with its whole key, and is that key's only if they are equal. So no collision of numbers matters.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np

from .samples import Part, key_of

MAGIC = b"penstock cache 1"
_HEADER = Struct("<16s32sQI")
"""Magic, identity, places in the table; a check of these."""
_END = Struct("<QQI4x")
"""End of the records, their number, the boot in which that was written."""
_END_AT = 512
_TABLE_AT = 4096
_ENTRY = Struct("<QQIIIII4x")
"""Number, offset, length, µs that the sample took, check of the record, boot, check of the entry."""
_ENTRIES = np.dtype({"names": ["offset", "length"], "formats": ["<u8", "<u4"], "offsets": [8, 16], "itemsize": 40})
_CHECKED = _ENTRY.size - 8
_PROBES = 64
"""Places after its own in which a sample is looked for."""
_AT_ONCE = 4
"""Places that are read in one call."""
_ALIGNMENT = 64
_LONGEST = 60
"""Seconds after which a claim is void, whoever made it: its process may be another machine's or container's."""
LARGEST = 1 << 31
"""Bytes of a record: what one call of the system writes, and less than a length can say."""

_local = threading.RLock()
"""Beside the lock between processes, which does not keep this process's own threads apart."""


def _start_over_after_fork() -> None:
    global _local
    _local = threading.RLock()


os.register_at_fork(after_in_child=_start_over_after_fork)


class Entry(NamedTuple):
    """Where the record of one sample lies in the file."""

    number: int
    offset: int
    length: int
    """Bytes; 0: claimed, by somebody who writes or who died."""
    took: int
    """µs that the sample took when it was made; of a claim: the process."""
    check: int
    """Of the record; of a claim: when, seconds."""
    boot: int


class Found(NamedTuple):
    """A record that was read whole."""

    record: bytearray
    took: int
    """µs that the sample took when it was made."""


class StoreError(Exception):
    """The file is not a store for these samples."""


def identity_of(*facts: object) -> bytes:
    """32 bytes that stand for what a store holds."""
    return blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=32).digest()


def write_header(descriptor: int, identity: bytes, places: int) -> None:
    """Make an empty store."""
    header = _HEADER.pack(MAGIC, identity, places, 0)[:-4]
    _write(descriptor, 0, header + zlib.crc32(header).to_bytes(4, "little"))
    _write(descriptor, _END_AT, _END.pack(_start(places), 0, _boot()))


class Store:
    """The file of records that processes share; see above."""

    def __init__(self, descriptor: int, identity: bytes, budget: int) -> None:
        """Takes the descriptor over. `budget`: bytes that all records together may take.

        Raises:
            StoreError: The file is not a store with that identity.
        """
        self.descriptor = descriptor
        self.budget = budget
        self.failed = ""
        """Why nothing more is added: the disk is full, say."""
        header = os.pread(descriptor, _HEADER.size, 0)
        if header[: len(MAGIC)] != MAGIC or len(header) < _HEADER.size:
            raise StoreError("it is no cache of Penstock's")
        _, found, self._places, check = _HEADER.unpack(header)
        if zlib.crc32(header[:-4]) != check:
            raise StoreError("its header is damaged")
        if found != identity:
            raise StoreError("it was made for another dataset or key")
        self._start = _start(self._places)
        self._boot = _boot()
        if _END.unpack(os.pread(descriptor, _END.size, _END_AT))[2] != self._boot:
            self._find_end()

    def close(self) -> None:
        with _local:  # to close any descriptor of a file gives up this process's lock on it
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def usage(self) -> tuple[int, int]:
        """(samples kept, bytes that they take)"""
        end, samples, _ = _END.unpack(os.pread(self.descriptor, _END.size, _END_AT))
        return samples, end - self._start

    def get(self, number: int, key: bytes) -> Found | None:
        """The record of a sample; None: it is not kept."""
        for place, entry in self._entries(number):
            if entry is None:
                return None
            if entry.number == number and entry.length:
                record = self._read(place, entry)
                if record is not None and key_of(record) == key:
                    return Found(record, entry.took)
        return None

    def add(self, number: int, key: bytes, parts: Sequence[Part], took: int) -> bool:
        """Keep a record, if there is room; False: it is not kept, or somebody else has kept it meanwhile.

        `took`: µs that the sample took when it was made.
        """
        length = sum(len(part) for part in parts)
        if self.failed or length >= LARGEST:
            return False
        try:
            with self._alone():
                claimed = self._claim(number, key, length)
            if claimed is None:
                return False
            place, offset = claimed
            check, at = 0, offset
            try:
                for part in parts:
                    _write(self.descriptor, at, part)
                    check, at = zlib.crc32(part, check), at + len(part)
                self._put(place, Entry(number, offset, length, min(took, (1 << 32) - 1), check, self._boot))
                with self._alone():
                    self._count()
            except OSError:
                with self._alone():
                    self._give_back(offset, length)
                raise
        except OSError as error:
            self.failed = error.strerror or str(error)
            return False
        return True

    def _claim(self, number: int, key: bytes, length: int) -> tuple[int, int] | None:
        """Take a place in the table and room for a record. The lock is held."""
        end, samples, _ = _END.unpack(os.pread(self.descriptor, _END.size, _END_AT))
        if end + _aligned(length) - self._start > self.budget:
            return None
        for place, entry in self._entries(number):
            if entry is not None and entry.number == number and entry.length:
                record = self._read(place, entry)
                if record is not None:
                    if key_of(record) == key:
                        return None  # somebody else has made it meanwhile
                    continue
            elif entry is not None and entry.number != number:
                continue
            elif entry is not None and self._is_being_written(entry):
                return None
            self._set_end(end + _aligned(length), samples)
            self._put(place, Entry(number, end, 0, os.getpid(), int(time.time()) % (1 << 32), self._boot))
            return place, end
        return None

    def _is_being_written(self, claim: Entry) -> bool:
        """Else to keep the sample once more would only take room: two ranks may read the same at the same time."""
        if claim.length or claim.boot != self._boot or claim.took == os.getpid():
            return False
        age = (int(time.time()) - claim.check) % (1 << 32)
        return age <= _LONGEST and _lives(claim.took)

    def _give_back(self, offset: int, length: int) -> None:
        """The record could not be written. The lock is held."""
        end, samples, _ = _END.unpack(os.pread(self.descriptor, _END.size, _END_AT))
        if end == offset + _aligned(length):
            self._set_end(offset, samples)

    def _count(self) -> None:
        """One sample more is kept. The lock is held."""
        end, samples, _ = _END.unpack(os.pread(self.descriptor, _END.size, _END_AT))
        self._set_end(end, samples + 1)

    def _entries(self, number: int) -> Iterator[tuple[int, Entry | None]]:
        """The entries where a sample may be, each with its place; None: there is none, and none behind it."""
        first = number % self._places
        for place in range(first, first + _PROBES):
            ahead = (place - first) % _AT_ONCE * _ENTRY.size
            if not ahead:
                read = os.pread(self.descriptor, _AT_ONCE * _ENTRY.size, _TABLE_AT + place * _ENTRY.size)
            entry = read[ahead : ahead + _ENTRY.size]
            if len(entry) < _ENTRY.size or not any(entry):
                yield place, None
                return
            *fields, check = _ENTRY.unpack(entry)
            if zlib.crc32(entry[:_CHECKED]) == check:
                yield place, Entry(*fields)

    def _read(self, place: int, entry: Entry) -> bytearray | None:
        """The record of an entry; None if it is not whole."""
        record = bytearray(entry.length)
        if os.preadv(self.descriptor, [record], entry.offset) != entry.length:
            return None
        if entry.boot != self._boot:
            if zlib.crc32(record) != entry.check:
                return None
            with contextlib.suppress(OSError):
                self._put(place, entry._replace(boot=self._boot))
        return record

    def _put(self, place: int, entry: Entry) -> None:
        written = _ENTRY.pack(*entry, 0)[:_CHECKED]
        _write(self.descriptor, _TABLE_AT + place * _ENTRY.size, written + zlib.crc32(written).to_bytes(8, "little"))

    def _set_end(self, end: int, samples: int) -> None:
        _write(self.descriptor, _END_AT, _END.pack(end, samples, self._boot))

    def _find_end(self) -> None:
        """The machine has failed, or was started anew, since the end was written: it is behind all records."""
        with self._alone():
            end, samples, boot = _END.unpack(os.pread(self.descriptor, _END.size, _END_AT))
            if boot == self._boot:
                return  # another process was faster
            table = bytearray()
            while read := os.pread(
                self.descriptor, min(self._start - _TABLE_AT - len(table), 1 << 24), _TABLE_AT + len(table)
            ):
                table += read
            entries = np.frombuffer(table, _ENTRIES, count=len(table) // _ENTRY.size)
            sane = entries[entries["offset"] < 1 << 48]
            ends = sane["offset"] + sane["length"].astype(np.uint64)
            self._set_end(_aligned(max(int(ends.max(initial=0)), end, self._start)), samples)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else changes the end or claims a place."""
        with _local:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, 0)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, 0)


def _write(descriptor: int, offset: int, part: Part) -> None:
    """All of it: the system may write less."""
    rest = memoryview(part).cast("B")
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _start(places: int) -> int:
    """Where the records begin: some places are behind the last one that a sample may call its own."""
    return _aligned(_TABLE_AT + (places + _PROBES) * _ENTRY.size)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _boot() -> int:
    """A number for this run of the machine. Where the system does not say, one of our own: everything is checked."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return secrets.randbits(32)
