"""From evidence to a verdict: is data the problem, which stage is, what to do about it. Pure.

The argument, once: training waits only in `next()`, and every wait has one kind. Starvation means that nothing is
finished: either all workers are busy or tasks wait for them (they are the limit), or they are idle though the window
has room (whoever hands out tasks is the limit), or the window is full (the memory budget is). A reorder stall means
that batches are finished but an earlier one is not: one slow batch is the limit. A pin wait means that the next batch
is finished but not through the pin stage. But if the workers never idle, they are the limit, whatever the kind of
waiting: behind any other limit the window fills and they run out of tasks. If training hardly waits, it is itself the
limit, and more workers would change nothing.

Workers that are the limit are too few only where more of them would find processors: otherwise these are the limit, or
whoever else uses them.

Thresholds depend on what was said before, so that a load at the edge of two verdicts keeps the one it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from ..protocol import Config, Limit, Snapshot, Stage, Stall, Verdict
from .evidence import Evidence, Waits
from .numbers import KINDS
from .shares import HARMLESS
from .words import count, figure, micros, percent, plural

SEVERE = 0.3
"""From this share on it is the main one."""
SATURATED = 0.8
"""Workers busier than this have nothing to spare."""
NEVER_IDLE = 0.92
"""Workers busier than this never idle."""
QUEUED = 0.15
"""Share of a busy worker's time in which it waits for a processor, from which on processors are the limit."""
OTHERS = 0.25
"""Share of the processors that others must take to be named."""
SPARE = 5.0
"""Seconds that must have been seen before fewer workers are advised."""
LOCKED, CROWDED = 0.2, 0.85
"""Share of workers' time that they wait for a lock, and of the moments at which somebody does, from which on it is the
limit: it is never free."""
NAMEABLE_STALL = 100_000
"""Shorter stalls (µs) are not worth naming."""
SLOW_SAMPLES = "Look at the slowest samples."
"""What to do where single slow batches are the limit."""
MOST_GROWTH = 4
"""Nobody has seen how much faster more than so many times the workers would be."""

STAGES: dict[Limit, Stage] = {
    "training": "training",
    "workers": "workers",
    "processors": "workers",
    "neighbours": "workers",
    "shared": "workers",
    "startup": "workers",
    "failure": "workers",
    "samples": "reorder",
    "pin": "pin",
    "sampler": "sampler",
    "memory": "index",
}
"""Where on the way of a batch a limit is."""

WORKERS: tuple[Limit, ...] = ("workers", "processors", "neighbours", "shared")
"""Limits that are said where the workers never idle."""

_KINDS: dict[str, tuple[Limit, ...]] = {
    "starvation": (*WORKERS, "memory"),
    "reorder_stall": ("samples",),
    "pin_wait": ("pin",),
    "startup": ("startup",),
    "sampler": ("sampler",),
}
"""Kind of waiting → the limits that go with it."""


def plain(verdict: str, sentence: str, limit: Limit = "none") -> Verdict:
    """Neither good nor bad."""
    return Verdict("plain", verdict, sentence.strip(), limit=limit, stage=STAGES.get(limit))


def weigh(
    evidence: Evidence, snapshot: Snapshot, config: Config, said: Limit | None = None, stalls: Sequence[Stall] = ()
) -> Verdict:
    """What limits, by this evidence. `said`: the limit that was named before, if one was; `stalls`: those of the last
    minute."""
    share = evidence.waiting
    waited = f"{evidence.when} training waited {percent(share)} of the time"
    if evidence.low is not None and evidence.high is not None and evidence.high - evidence.low > SEVERE:
        waited += f", between {percent(evidence.low)} and {percent(evidence.high)} by turns"
    waited += "."
    if share < _edge(HARMLESS, None if said is None else said != "training"):
        return replace(_compute_bound(evidence, snapshot, waited), waiting=share)
    cause = _cause(evidence, snapshot, config, said)
    severe = share >= SEVERE
    parts = (waited, cause.sentence, _culprit(snapshot, stalls))
    return replace(
        cause,
        tone="bad" if severe else "warn",
        verdict="Data-bound." if severe else "Partly data-bound.",
        sentence=" ".join(part for part in parts if part),
        stage=STAGES.get(cause.limit),
        waiting=share,
    )


def of_epoch(evidence: Evidence | None, snapshot: Snapshot, config: Config, blamed: Limit | None) -> tuple[str, Limit]:
    """What the last epoch was like, in a sentence, and what limited it. `blamed`: what was named most meanwhile."""
    if evidence is None or not evidence.seconds:
        return "", "none"
    share = evidence.waiting
    waited = f"In the last epoch training waited {percent(share)} of the time"
    limit = "training" if share < HARMLESS else blamed or _cause(evidence, snapshot, config, None).limit
    named = {"none": "", "training": ""}.get(limit, f"; {LIMITS[limit]} limited it")
    return f"{waited}{named}.", limit


LIMITS: dict[Limit, str] = {
    "none": "–",
    "training": "training",
    "workers": "the workers",
    "processors": "the processors",
    "neighbours": "other processes",
    "shared": "what workers share",
    "samples": "slow batches",
    "pin": "the pin stage",
    "sampler": "the sampler",
    "memory": "the memory budget",
    "startup": "starting up",
    "failure": "errors",
}
"""What limits, in a word or two."""


def _edge(threshold: float, held: bool | None, slack: float = 0.2) -> float:
    """A threshold that is harder to cross in whichever direction would change what was said.

    `held`: whether what lies above it was said; None: nothing was, and the threshold has both directions before it.
    """
    return threshold if held is None else threshold * (1 - slack if held else 1 + slack)


def _compute_bound(evidence: Evidence, snapshot: Snapshot, waited: str) -> Verdict:
    workers = evidence.workers
    enough = max(1, math.ceil(evidence.busy * 1.25))
    advice, advised = "", None
    seen = evidence.seconds >= SPARE and snapshot.knows("workers.fetch_us")
    if seen and workers >= 2 and evidence.load < 0.5 and enough < workers:
        would, advised = "one" if enough == 1 else count(enough), enough
        advice = f"The {workers} workers are busy {percent(evidence.load)} of the time; {would} would do."
    fine = "Batches are ready before they are asked for: data is not the limit, training is."
    return Verdict(
        "good", "Compute-bound.", f"{waited} {fine}", advice, "training", STAGES["training"], workers=advised
    )


def _because(limit: Limit, sentence: str, advice: str = "", workers: int | None = None) -> Verdict:
    """A cause; tone and verdict depend on how much of the time it takes."""
    return Verdict("plain", "", sentence, advice, limit, workers=workers)


def _cause(evidence: Evidence, snapshot: Snapshot, config: Config, said: Limit | None) -> Verdict:
    waits = [kind.name for kind in KINDS if kind.waiting]
    main = max(waits, key=lambda kind: evidence.shares[kind] * (1.25 if said in _KINDS.get(kind, ()) else 1.0))
    workers = evidence.workers
    if main in ("reorder_stall", "pin_wait") and workers and evidence.load >= _high(NEVER_IDLE, _held(said, WORKERS)):
        return _too_slow(f"{_all(workers)} busy all the time", evidence, config, said)
    if not snapshot.knows("workers"):
        waits_for = "for an epoch's first batch" if main == "startup" else "for the next batch"
        unseen = "what makes it is not seen from outside"
        return _because("none", f"Most of the waiting is {waits_for}; {unseen}.")
    if main == "starvation":
        return _starvation(evidence, snapshot, config, said)
    if main == "reorder_stall":
        return _because(
            "samples",
            "Batches are finished, but an earlier one is not: single slow batches are the limit.",
            f"{SLOW_SAMPLES} More workers help only a little." if config.in_order else "",
        )
    if main == "pin_wait":
        return _because(
            "pin",
            "Batches are finished but not through the pin stage: pinning is the limit.",
            "Smaller batches or cheaper types (uint8 instead of float32) would help; more workers would not.",
        )
    if main == "sampler":
        return _because(
            "sampler",
            "Training waits for the sampler, which runs in its own thread: the sampler is the limit.",
            "A sampler that costs less for an index would help; more workers would not.",
        )
    return _because(
        "startup",
        "Most of the waiting is for an epoch's first batch.",
        "" if config.persistent_workers else "persistent_workers=True keeps the workers between epochs.",
    )


def _high(threshold: float, held: bool | None) -> float:
    """As `_edge`, for a share that is near 1 when all is said."""
    return threshold if held is None else threshold + (-0.02 if held else 0.02)


def _held(said: Limit | None, limits: Sequence[Limit]) -> bool | None:
    """Whether one of these causes was said; None: no cause was."""
    return None if said in (None, "training") else said in limits


def _all(workers: int) -> str:
    if workers == 1:
        return "The one worker is"
    return "Both workers are" if workers == 2 else f"All {count(workers)} workers are"


def _starvation(evidence: Evidence, snapshot: Snapshot, config: Config, said: Limit | None) -> Verdict:
    workers, queues = evidence.workers, snapshot.queues
    if not workers and not snapshot.workers:
        return _because(
            "workers",
            "The dataset is read in the training thread itself: there are no workers.",
            "num_workers=1 or more would read ahead.",
        )
    if not snapshot.knows("workers.fetch_us"):
        more = "More workers would help, as far as there are processors for them."
        return _because("workers", "Nothing is finished ahead: the workers are the limit.", more)
    busy = evidence.load
    if busy >= _high(SATURATED, _held(said, WORKERS)):
        return _too_slow(f"{_all(workers)} busy and nothing is finished ahead", evidence, config, said)
    if queues.index or config.style == "iterable":
        return _too_slow("Tasks wait for workers and nothing is finished ahead", evidence, config, said)
    if _no_room(snapshot):
        return _because(
            "memory",
            f"The workers are busy only {percent(busy)} of the time, "
            f"and no more may be made ahead ({count(queues.in_flight)} in flight).",
            "A larger memory_budget would let more batches be made ahead.",
        )
    return _because(
        "sampler",
        f"Nothing is finished, yet the workers are busy only {percent(busy)} of the time: too few tasks reach them.",
        "Look at the sampler: it runs in the training thread.",
    )


def _too_slow(what: str, evidence: Evidence, config: Config, said: Limit | None) -> Verdict:
    """The workers never idle: are there too few of them, or too few processors for them?"""
    told = evidence.occupation
    if told is None or not sum(told):
        advice, workers = _enough_workers(evidence, config, evidence.workers * MOST_GROWTH)
        return _because("workers", f"{what}: the workers are the limit.", advice, workers)
    running, queued, blocked = (part / sum(told) for part in told)
    if queued >= _edge(QUEUED, _held(said, ("processors", "neighbours"))) or _full(evidence, running, said):
        return _no_processors(evidence, running, queued, said)
    if blocked >= 0.5 and _gained_nothing(evidence):
        return _because(
            "shared",
            f"{what}, and more of them make no more batches: something that they share is the limit, as a lock, a disk "
            f"or a server. They wait {percent(blocked)} of the time.",
            "Look for what a sample waits for; fewer workers would do as well.",
        )
    waits = evidence.waits
    if (
        waits is not None
        and blocked * waits.locked >= LOCKED
        and waits.crowded >= _high(CROWDED, _held(said, ("shared",)))
    ):
        return _because(
            "shared",
            f"{what}, but {percent(blocked * waits.locked)} of their time they wait for each other: for a lock, or "
            "something else of which there are not enough for all of them.",
            "Look for the lock in the dataset; more workers would not help, fewer would do as well.",
        )
    room = _room(evidence, running)
    advice, workers = _enough_workers(evidence, config, room)
    if room <= evidence.workers * 1.1:
        advice, workers = "More workers would find no processor; make samples cheaper.", None
    if blocked >= 0.5:
        spent = f"They wait for {_blocked_by(waits)} {percent(blocked)} of the time."
    else:
        spent = f"{percent(running)} of a sample's time is computing."
    return _because("workers", f"{what}: the workers are the limit. {spent}", advice, workers)


def _blocked_by(waits: Waits | None) -> str:
    if waits is None:
        return "storage, the network, a lock or a timer"
    kinds = {"a lock": waits.locked, "a timer": waits.asleep, "storage, the network or another process": waits.other}
    return max(kinds, key=lambda kind: kinds[kind])


def _no_room(snapshot: Snapshot) -> bool:
    """Whether no task may be handed out before training takes a batch: for want of places, or of bytes for a batch."""
    queues = snapshot.queues
    if 0 < queues.window <= queues.in_flight:
        return True
    each = snapshot.bytes / snapshot.batches if snapshot.batches else 0.0
    return 0 < queues.memory_budget < (queues.in_flight + 1) * each


def _gained_nothing(evidence: Evidence) -> bool:
    """Whether half as many workers again, or more, have brought hardly anything."""
    if evidence.earlier is None or not evidence.seconds:
        return False
    workers, made = evidence.earlier
    return evidence.workers >= 1.5 * workers and evidence.made / evidence.seconds < 1.15 * made


def _full(evidence: Evidence, running: float, said: Limit | None) -> bool:
    """Whether the processors have no more to give to samples that need them."""
    if not evidence.allowed or evidence.occupation is None or running < 0.5:
        return False
    used = evidence.occupation.processor + evidence.others
    return used >= evidence.allowed * _high(0.9, _held(said, ("processors", "neighbours")))


def _no_processors(evidence: Evidence, running: float, queued: float, said: Limit | None) -> Verdict:
    allowed = max(1, round(evidence.allowed))
    which = {1: "The processor is", 2: "Both processors are"}.get(allowed, f"All {count(allowed)} processors are")
    which = which if evidence.allowed else "The processors are"
    waits = f"workers wait for one {percent(queued)} of the time"
    if evidence.allowed and evidence.others >= _edge(OTHERS, _held(said, ("neighbours",))) * evidence.allowed:
        taken = f"other processes take {figure(evidence.others)} of {figure(evidence.allowed)} processors"
        return _because(
            "neighbours",
            f"{which} full, and {taken}; {waits}.",
            "More workers would not help; end what else runs here, or give this training processors of its own.",
        )
    advice = "Make samples cheaper, or find more processors."
    if evidence.allowed and evidence.workers > 2 * allowed:
        advice = f"{count(allowed)} workers might do as well. Make samples cheaper, or find more processors."
    computing = f"{percent(running / max(1 - queued, 0.01))} of a sample's time is computing"
    queue = f", and {waits}" if queued >= HARMLESS else ""
    return _because("processors", f"{which} full: more workers will not help; {computing}{queue}.", advice)


def _room(evidence: Evidence, running: float) -> int:
    """For how many workers of this kind there are processors."""
    if not evidence.allowed or running <= 0.01:
        return evidence.workers * MOST_GROWTH
    free = max(evidence.allowed - evidence.others, 0.0)
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


def _culprit(snapshot: Snapshot, stalls: Sequence[Stall]) -> str:
    held, hand = snapshot.queues.reorder, awaited(snapshot)
    if held > 1 and hand is not None and hand[0] == snapshot.batch:
        return f"Batch {count(hand[0])} on worker {hand[1]} is holding back {count(held)} finished batches."
    worst = max(stalls, key=lambda stall: stall.us, default=None)
    if worst is None or worst.us < NAMEABLE_STALL:
        return ""
    sample = f" (sample {worst.slowest_index}: {micros(worst.slowest_us)})" if worst.slowest_index else ""
    where = f" on worker {worst.worker}" if worst.worker >= 0 else ""
    return f"The longest stall was {micros(worst.us)}, for batch {count(worst.batch)}{where}{sample}."


def awaited(snapshot: Snapshot) -> tuple[int, int] | None:
    """(batch, worker) that everything finished waits for: the lowest batch that a worker still has in hand."""
    hands = ("fetching", "collating", "sending", "retiring")
    found = [(w.batch, w.id) for w in snapshot.workers if w.state in hands and w.batch >= snapshot.batch]
    return min(found, default=None)


def done(snapshot: Snapshot) -> str:
    """How far a loader has come."""
    return f"{plural(snapshot.batches, 'batch', 'batches')} in {plural(snapshot.epoch + 1, 'epoch')}"
