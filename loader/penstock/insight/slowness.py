"""Workers that never idle: are there too few of them, or too few processors, here or on other machines? Pure.

Workers with a number from `Config.local` on run on other machines. What they use there is not held against the
processors of this one; and where these are full, more workers still find room as long as those there are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..protocol import Config, Limit, Snapshot, Verdict
from .evidence import Elsewhere, Evidence, Waits
from .occupation import Occupation
from .shares import HARMLESS
from .words import count, figure, percent, plural, size

SEVERE = 0.3
"""From this share of waiting on data is the main problem."""
QUEUED = 0.15
"""Share of a busy worker's time in which it waits for a processor, from which on processors are the limit."""
OTHERS = 0.25
"""Share of the processors that others must take to be named."""
LOCKED, CROWDED = 0.2, 0.85
"""Share of workers' time that they wait for a lock, and of the moments at which somebody does, from which on it is the
limit: it is never free."""
NETWORK = 0.9
"""Share of the time in which the network takes no more, from which on it is the limit."""
MOST_GROWTH = 4
"""Nobody has seen how much faster more than so many times the workers would be."""

WORKERS: tuple[Limit, ...] = ("workers", "processors", "neighbours", "shared")
"""Limits that are said where the workers never idle."""


def edge(threshold: float, held: bool | None, slack: float = 0.2) -> float:
    """A threshold that is harder to cross in whichever direction would change what was said.

    `held`: whether what lies above it was said; None: nothing was, and the threshold has both directions before it.
    """
    return threshold if held is None else threshold * (1 - slack if held else 1 + slack)


def because(limit: Limit, sentence: str, advice: str = "", workers: int | None = None) -> Verdict:
    """A cause; tone and verdict depend on how much of the time it takes."""
    return Verdict("plain", "", sentence, advice, limit, workers=workers)


def high(threshold: float, held: bool | None) -> float:
    """As `edge`, for a share that is near 1 when all is said."""
    return threshold if held is None else threshold + (-0.02 if held else 0.02)


def held(said: Limit | None, limits: Sequence[Limit]) -> bool | None:
    """Whether one of these causes was said; None: no cause was."""
    return None if said in (None, "training") else said in limits


def all_workers(workers: int) -> str:
    if workers == 1:
        return "The one worker is"
    return "Both workers are" if workers == 2 else f"All {count(workers)} workers are"


def too_slow(what: str, evidence: Evidence, config: Config, said: Limit | None) -> Verdict:
    """The workers never idle: are there too few of them, or too few processors for them?"""
    told = evidence.occupation
    if told is None or not sum(told):
        advice, workers = _enough_workers(evidence, config, evidence.workers * MOST_GROWTH)
        return because("workers", f"{what}: the workers are the limit.", advice, workers)
    running, queued, blocked = (part / sum(told) for part in told)
    if config.local is not None:
        crowding = _crowding(evidence, config, said)
        if crowding is not None:
            return crowding
    elif _is_crowded(told, evidence.allowed, evidence.others, said):
        return _no_processors(evidence, running, queued, said)
    if blocked >= 0.5 and _gained_nothing(evidence):
        return because(
            "shared",
            f"{what}, and more of them make no more batches: something that they share is the limit, as a lock, a disk "
            f"or a server. They wait {percent(blocked)} of the time.",
            "Look for what a sample waits for; fewer workers would do as well.",
        )
    waits = evidence.waits
    if (
        waits is not None
        and blocked * waits.locked >= LOCKED
        and waits.crowded >= high(CROWDED, held(said, ("shared",)))
    ):
        return because(
            "shared",
            f"{what}, but {percent(blocked * waits.locked)} of their time they wait for each other: for a lock, or "
            "something else of which there are not enough for all of them.",
            "Look for the lock in the dataset; more workers would not help, fewer would do as well.",
        )
    room = _room(evidence, config, running)
    advice, workers = _enough_workers(evidence, config, room)
    if room <= evidence.workers * 1.1:
        advice, workers = "More workers would find no processor; make samples cheaper.", None
    if blocked >= 0.5:
        spent = f"They wait for {_blocked_by(waits)} {percent(blocked)} of the time."
    else:
        spent = f"{percent(running)} of a sample's time is computing."
    return because("workers", f"{what}: the workers are the limit. {spent}", advice, workers)


def _blocked_by(waits: Waits | None) -> str:
    if waits is None:
        return "storage, the network, a lock or a timer"
    kinds = {"a lock": waits.locked, "a timer": waits.asleep, "storage, the network or another process": waits.other}
    return max(kinds, key=lambda kind: kinds[kind])


def _gained_nothing(evidence: Evidence) -> bool:
    """Whether half as many workers again, or more, have brought hardly anything."""
    if evidence.earlier is None or not evidence.seconds:
        return False
    workers, made = evidence.earlier
    return evidence.workers >= 1.5 * workers and evidence.made / evidence.seconds < 1.15 * made


def _is_crowded(told: Occupation, allowed: float, others: float, said: Limit | None) -> bool:
    """Whether workers wait for processors, or these have no more to give to samples that need them."""
    busy = sum(told)
    if busy < 0.01:
        return False
    if told.queued / busy >= edge(QUEUED, held(said, ("processors", "neighbours"))):
        return True
    if not allowed or told.processor / busy < 0.5:
        return False
    return told.processor + others >= allowed * high(0.9, held(said, ("processors", "neighbours")))


def _crowding(evidence: Evidence, config: Config, said: Limit | None) -> Verdict | None:
    """What is said where some workers run on other machines and processors are full; None: they are not.

    Workers that are added run there, so it does not matter that those of this machine are full.
    """
    here, far = evidence.here, evidence.far
    if far is not None and far.workers and _is_crowded(far.occupation, float(far.processors), 0.0, said):
        computing = f"{percent(far.occupation.processor / sum(far.occupation))} of a sample's time is computing"
        return because(
            "processors",
            f"The {plural(far.processors, 'processor')} of other machines "
            f"{'is' if far.processors == 1 else 'are'} full, and workers that are added run there: more will not help; "
            f"{computing}.",
            "Make samples cheaper, let more machines help, or give this one more of the workers (local=).",
        )
    if here is None or not _is_crowded(here, evidence.allowed, evidence.others, said):
        return None
    advice, workers = _enough_workers(evidence, config, _room(evidence, config, here.processor / max(sum(here), 0.01)))
    which = f"{_processors(evidence.allowed)} of this machine {'is' if 0 < evidence.allowed < 1.5 else 'are'} full"
    return because(
        "workers",
        f"{which}, but workers that are added run on other machines, which have room.",
        f"Add workers on other machines. {advice}".strip() if workers else advice,
        workers,
    )


def _processors(allowed: float) -> str:
    """Those that this process may use."""
    number = max(1, round(allowed))
    if not allowed:
        return "The processors"
    return {1: "The processor", 2: "Both processors"}.get(number, f"All {count(number)} processors")


def network(far: Elsewhere, snapshot: Snapshot) -> Verdict:
    """The network takes no more of what workers on other machines have finished."""
    each = snapshot.bytes / snapshot.batches if snapshot.batches else 0.0
    return because(
        "network",
        f"Batches are larger than the network carries: {size(far.received)}/s come from other machines in batches of "
        f"{size(each)}, and finished ones wait there {percent(far.full)} of the time.",
        "Smaller batches would help (uint8 instead of float32, or what training can make itself), or more of the "
        "workers on this machine (local=); more workers on others would not.",
    )


def _no_processors(evidence: Evidence, running: float, queued: float, said: Limit | None) -> Verdict:
    allowed = max(1, round(evidence.allowed))
    which = f"{_processors(evidence.allowed)} {'is' if allowed == 1 and evidence.allowed else 'are'}"
    waits = f"workers wait for one {percent(queued)} of the time"
    if evidence.allowed and evidence.others >= edge(OTHERS, held(said, ("neighbours",))) * evidence.allowed:
        taken = f"other processes take {figure(evidence.others)} of {figure(evidence.allowed)} processors"
        return because(
            "neighbours",
            f"{which} full, and {taken}; {waits}.",
            "More workers would not help; end what else runs here, or give this training processors of its own.",
        )
    advice = "Make samples cheaper, or find more processors."
    if evidence.allowed and evidence.workers > 2 * allowed:
        advice = f"{count(allowed)} workers might do as well. Make samples cheaper, or find more processors."
    computing = f"{percent(running / max(1 - queued, 0.01))} of a sample's time is computing"
    queue = f", and {waits}" if queued >= HARMLESS else ""
    return because("processors", f"{which} full: more workers will not help; {computing}{queue}.", advice)


def _room(evidence: Evidence, config: Config, running: float) -> int:
    """For how many workers of this kind there are processors, where those run that are added."""
    if config.local is not None:
        far = evidence.far
        if far is None or not far.processors or running <= 0.01 or config.start_method == "ray":
            return evidence.workers * MOST_GROWTH  # Ray may have more machines than were asked for so far
        here = evidence.workers - far.workers
        return min(evidence.workers * MOST_GROWTH, here + math.floor(far.processors / running + 0.25))
    if not evidence.allowed or running <= 0.01:
        return evidence.workers * MOST_GROWTH
    # The scheduler shares processors out: those whom others have taken give way to workers that need little.
    free = max(evidence.allowed - evidence.others, evidence.allowed / 2)
    return min(evidence.workers * MOST_GROWTH, math.floor(free / running + 0.25))


def _enough_workers(evidence: Evidence, config: Config, room: int) -> tuple[str, int | None]:
    """What more workers would bring, in words, and how many are advised. `room`: there is no use for more.

    Training takes a batch every compute/batches seconds, and each batch costs busy/batches worker-seconds. What more
    than four times the workers would bring is not promised.
    """
    workers, made = max(1, evidence.workers), evidence.made / evidence.seconds if evidence.seconds else 0.0
    ceiling = config.max_workers or workers * MOST_GROWTH
    demand = evidence.demand
    if not made or workers >= ceiling:
        return "", None
    enough = math.ceil(demand / made * evidence.busy * 1.05)
    if 0 < enough <= workers:
        return "", None
    most, doubt = min(ceiling, room), "" if evidence.occupation is not None else ", if there are processors for them"
    if 0 < enough <= most:
        fast = ""
        if evidence.high is not None and evidence.low is not None and evidence.high - evidence.low > SEVERE:
            peak = math.ceil(evidence.busy / max(0.02, 1 - evidence.high) * 1.05)
            fast = f" on average, {count(min(peak, ceiling))} when it is fastest" if peak > enough else ""
        return f"About {count(enough)} workers would keep up{fast}{doubt}.", enough
    if most <= workers:
        return "", None
    times = most / workers
    brought = f"{count(most)} would make about {figure(made * times)} batches/s instead of {figure(made)}"
    return f"More workers would help: {brought}{doubt}.", most
