"""Where a cache lives: in memory without a name, or in a file.

In memory it is a memfd, which is gone with the last process that has it open, whatever ended that. Processes find it by
looking through /proc for one that they may open: only those of the same user are. While one looks, and makes it if
there is none, a socket's name in the abstract namespace keeps the others waiting; the system frees it with its owner.

In a file it is found by its path. A new one is written under another name, and has its own when it is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .store import MAGIC, Store, StoreError, write_header

log = logging.getLogger("penstock")

_PROC = Path("/proc")
_PATIENCE = 10.0
"""Seconds for which another process may look for a cache, or make one, before this one goes its own way."""


def in_memory(identity: bytes, places: int, budget: int, *, shared: bool) -> Store:
    """A store in memory. `shared`: with all processes of this user that ask for the same."""
    name = f"penstock-cache-{identity.hex()}"
    with _one_at_a_time(name) if shared else contextlib.nullcontext(False) as alone:
        if alone:
            for descriptor in _found(name):
                with contextlib.suppress(StoreError, OSError):
                    return Store(descriptor, identity, budget)
                os.close(descriptor)
        return _made(_nameless(name if alone else "penstock-cache"), identity, places, budget)


def in_file(path: Path, identity: bytes, places: int, budget: int) -> Store:
    """A store in a file, which is made, or made anew if it holds something else than these samples.

    Raises:
        FileExistsError: There is a file, and it is no cache.
        PermissionError: It belongs to somebody else, or others may write to it: it could hold anything.
        OSError: It cannot be made.
    """
    with _one_at_a_time_in(path.parent):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return _new_file(path, identity, places, budget)
        try:
            _check_owner(path, descriptor)
            return Store(descriptor, identity, budget)
        except StoreError as error:
            beginning = os.pread(descriptor, len(MAGIC), 0)
            os.close(descriptor)
            if beginning.strip(b"\0") and beginning != MAGIC:
                raise FileExistsError(f"{path} is there, and {error}: choose another path") from None
            log.warning("the cache %s is made anew: %s", path, error)
            return _new_file(path, identity, places, budget)
        except BaseException:
            os.close(descriptor)
            raise


def _new_file(path: Path, identity: bytes, places: int, budget: int) -> Store:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        store = _made(descriptor, identity, places, budget)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return store


def _check_owner(path: Path, descriptor: int) -> None:
    about = os.fstat(descriptor)
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{path} belongs to user {about.st_uid} and has mode {stat.S_IMODE(about.st_mode):o}: a cache holds "
            "pickles, and is read only if it is your own and nobody else may write to it"
        )


def _made(descriptor: int, identity: bytes, places: int, budget: int) -> Store:
    try:
        write_header(descriptor, identity, places)
        return Store(descriptor, identity, budget)
    except BaseException:
        os.close(descriptor)
        raise


def _nameless(name: str) -> int:
    """The descriptor of a file in memory; of a temporary one without a name where the system has no such thing."""
    with contextlib.suppress(AttributeError, OSError):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix="penstock-")
    os.unlink(path)  # noqa: PTH108
    return descriptor


def _found(name: str) -> Iterator[int]:
    """Descriptors of files in memory that have this name, in whichever process."""
    wanted = f"/memfd:{name} (deleted)"
    for process in _PROC.iterdir() if _PROC.is_dir() else ():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # somebody else's, or it has just ended
            for entry in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()) == wanted:
                        yield os.open(entry, os.O_RDWR | os.O_CLOEXEC)
                        break  # its other descriptors of that name are of the same file


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[bool]:
    """Wait for one's turn; False: it does not come, and what is found or made is not for others."""
    if not hasattr(os, "memfd_create") or not _PROC.is_dir():
        yield False
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mark:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                mark.bind(f"\0{name}-{os.getuid()}")
            except OSError:
                if time.monotonic() > deadline:
                    log.warning("the cache is not shared with other processes: one of them keeps its name in use")
                    yield False
                    return
                time.sleep(0.005)
            else:
                break
        yield True


@contextlib.contextmanager
def _one_at_a_time_in(folder: Path) -> Iterator[None]:
    """Keep others from making a cache there meanwhile. Where a file system has no locks, the last one has made it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
