"""Errors that training met, counted and told. A plain object without IO.

Every error counts. The first few of a kind are told whole, later ones once a second at the most, with how many were
left out: a training that catches the error of every batch must not fill the dashboard.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..failures import Failure, message_of
from ..protocol import ErrorEvent, Errors, Quarantined
from .exits import failed_exit

WHOLE = 5
"""Errors of one kind that are told, however fast they come."""
APART = 1.0
"""Seconds between two of a kind that are told, after that."""
MOST_KINDS = 64
"""Kinds that are told apart."""
LONG = 16384
"""Characters of a traceback; of a longer one the end is told."""
PACKAGE = str(Path(__file__).parents[1])


class _Kind:
    def __init__(self) -> None:
        self.told = 0
        self.left_out = 0
        self.last = 0.0


class ErrorLog:
    """The errors of one loader. One thread at a time writes; anybody reads `summary`."""

    def __init__(self, emit: Callable[[ErrorEvent], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.summary: Errors | None = None
        """How many there were, and the last one; None: there was none."""
        self._emit = emit
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._last: ErrorEvent | None = None

    @property
    def fatal(self) -> bool:
        """The process ends with the last one."""
        return self.summary is not None and self.summary.fatal

    def note(self, event: ErrorEvent) -> None:
        """One more. It is told, or left out and told of later."""
        count = 0 if self.summary is None else self.summary.count
        text = f"{event.type}: {event.message}" if event.message else event.type
        self.summary = Errors(count + 1, event.at, text[:256], event.where, event.fatal)
        self._last = event
        key = (event.where, event.type)
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            key = ("", "")
        kind = self._kinds.setdefault(key, _Kind())
        now = self._clock()
        if kind.told >= WHOLE and now - kind.last < APART and not event.fatal:
            kind.left_out += 1
            return
        kind.told, kind.last = kind.told + 1, now
        more, kind.left_out = kind.left_out, 0
        self._emit(event if not more else _with_more(event, more))

    def died_of(self, error: BaseException) -> None:
        """Nobody caught it. If it came out of `next()` it was told, and is told again as what it became."""
        if self.fatal or not isinstance(error, Exception | SystemExit) or isinstance(error, StopIteration):
            return
        last = self._last
        if last is not None and self.summary is not None and last.type == type(error).__name__ and _from_next(error):
            self.summary = msgspec.structs.replace(self.summary, fatal=True)
            self._emit(msgspec.structs.replace(last, at=time.time(), fatal=True))
        else:
            self.note(of_exception(error, "training", fatal=True))


def _from_next(error: BaseException) -> bool:
    """Was it raised within `next()` of an iterator of ours?"""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name in ("__next__", "take") and code.co_filename.startswith(PACKAGE):
            return True
        trace = trace.tb_next
    return False


def uncaught() -> BaseException | None:
    """While exit handlers run: the exception with which the process ends, or its exit if that says that it failed;
    None: it ends in another way.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return None  # a session or notebook: the last error was one line's
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        return error
    exit = failed_exit()
    return None if exit is None else exit.reason


def _with_more(event: ErrorEvent, more: int) -> ErrorEvent:
    return msgspec.structs.replace(event, more=more)


def of_exception(error: BaseException, where: str, **about: object) -> ErrorEvent:
    """What is told of an exception in this process."""
    trace = "".join(traceback.format_exception(error))
    return _event(type(error).__name__, message_of(error), trace, where, about)


def of_failure(failure: Failure, **about: object) -> ErrorEvent:
    """What is told of an exception in a worker."""
    about = {"worker": failure.worker, "sample": failure.sample[:256], **about}
    trace = failure.text.partition("\nOriginal ")[2] or failure.text
    return _event(failure.type_name, failure.message, trace, failure.stage, about)


def of_bad(sample: Quarantined) -> ErrorEvent:
    """What is told of a sample or batch that was left out or replaced."""
    kind, colon, message = sample.error.partition(": ")
    if not colon or not kind.isidentifier():  # of a worker that died: no exception was raised
        kind, message = "WorkerLostError", sample.error
    about: dict[str, object] = {"sample": sample.index[:256], "epoch": sample.epoch, "batch": sample.batch}
    return _event(kind, message, sample.traceback, sample.where, {**about, "tolerated": True})


def _event(kind: str, message: str, trace: str, where: str, about: dict[str, object]) -> ErrorEvent:
    return ErrorEvent(time.time(), where, kind[:256], message[:1024], traceback=trace[-LONG:], **about)  # type: ignore[arg-type]
