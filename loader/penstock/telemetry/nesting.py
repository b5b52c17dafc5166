"""Several loaders that one thread iterates over: what is another loader's time is not this one's compute.

A validation loop within the train loop: from its first `next()` to its end, the train loader's clock stands still. If
loaders take turns (`zip`, or two iterators), all the time in which this one is not asked is training's own, as if the
other one were part of its step. Which of the two it is shows when this one is asked again: whether the other is over.
"""

from __future__ import annotations

from threading import get_ident

from .times import TimeAccount

latest: dict[int, TimeAccount] = {}
"""Thread → the account of the loader that it asked last."""


def turn_to(account: TimeAccount, now: int) -> None:
    """This thread asks a loader that it did not ask last."""
    thread = get_ident()
    other = latest.get(thread)
    if other is not None and other is not account and other.suspend(now, account):
        account.held = other
    account.resume_beside(now)
    latest[thread] = account


def turn_back(account: TimeAccount, now: int) -> None:
    """Nobody iterates over this loader any more: the clock of the one around it goes on."""
    around, account.held = account.held, None
    if around is not None:
        around.resume_after(account, now)
    for thread, each in list(latest.items()):
        if each is account:
            if around is None:
                latest.pop(thread, None)
            else:
                latest[thread] = around
