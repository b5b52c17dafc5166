"""From evidence to a verdict: is data the problem, which stage is, what to do about it. Pure.

The argument, once: training waits only in `next()`, and every wait has one kind. Starvation means that nothing is
finished: either all workers are busy or tasks wait for them (they are the limit), or they are idle though the window
has room (whoever hands out tasks is the limit), or the window is full (the memory budget is). A reorder stall means
that batches are finished but an earlier one is not: one slow batch is the limit. A pin wait means that the next batch
is finished but not through the pin stage. But if the workers never idle, they are the limit, whatever the kind of
waiting: behind any other limit the window fills and they run out of tasks. If training hardly waits, it is itself the
limit, and more workers would change nothing.

Workers that are the limit are too few only where more of them would find processors, here or on other machines:
otherwise these are the limit, or whoever else uses them (`slowness`). What comes from other machines passes a network:
if that is never free, it is the limit, whatever workers do.

Thresholds depend on what was said before, so that a load at the edge of two verdicts keeps the one it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from ..protocol import Config, Limit, Snapshot, Stage, Stall, Verdict
from .evidence import Evidence
from .numbers import KINDS
from .shares import HARMLESS
from .slowness import NETWORK, SEVERE, WORKERS, all_workers, because, edge, held, high, network, too_slow
from .words import count, micros, percent, plural

SATURATED = 0.8
"""Workers busier than this have nothing to spare."""
NEVER_IDLE = 0.92
"""Workers busier than this never idle."""
SPARE = 5.0
"""Seconds that must have been seen before fewer workers are advised."""
NAMEABLE_STALL = 100_000
"""Shorter stalls (µs) are not worth naming."""
SLOW_SAMPLES = "Look at the slowest samples."
"""What to do where single slow batches are the limit."""

QUICK = 0.0001
"""Seconds for a batch up to which a worker would hardly be quicker: about what it costs to get one from there."""

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
    "network": "workers",
}
"""Where on the way of a batch a limit is."""

_KINDS: dict[str, tuple[Limit, ...]] = {
    "starvation": (*WORKERS, "memory", "network"),
    "reorder_stall": ("samples", "network"),
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
    if share < edge(HARMLESS, None if said is None else said != "training"):
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
    "network": "the network",
    "startup": "starting up",
    "failure": "errors",
}
"""What limits, in a word or two."""


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


def _cause(evidence: Evidence, snapshot: Snapshot, config: Config, said: Limit | None) -> Verdict:
    waits = [kind.name for kind in KINDS if kind.waiting]
    main = max(waits, key=lambda kind: evidence.shares[kind] * (1.25 if said in _KINDS.get(kind, ()) else 1.0))
    workers, far = evidence.workers, evidence.far
    full = far is not None and far.full >= high(NETWORK, held(said, ("network",)))
    if far is not None and full and main in ("starvation", "reorder_stall"):
        return network(far, snapshot)
    if main in ("reorder_stall", "pin_wait") and workers and evidence.load >= high(NEVER_IDLE, held(said, WORKERS)):
        return too_slow(f"{all_workers(workers)} busy all the time", evidence, config, said)
    if not snapshot.knows("workers"):
        waits_for = "for an epoch's first batch" if main == "startup" else "for the next batch"
        unseen = "what makes it is not seen from outside"
        return because("none", f"Most of the waiting is {waits_for}; {unseen}.")
    if main == "starvation":
        return _starvation(evidence, snapshot, config, said)
    if main == "reorder_stall":
        return because(
            "samples",
            "Batches are finished, but an earlier one is not: single slow batches are the limit.",
            f"{SLOW_SAMPLES} More workers help only a little." if config.in_order else "",
        )
    if main == "pin_wait":
        return because(
            "pin",
            "Batches are finished but not through the pin stage: pinning is the limit.",
            "Smaller batches or cheaper types (uint8 instead of float32) would help; more workers would not.",
        )
    if main == "sampler":
        return because(
            "sampler",
            "Training waits for the sampler, which runs in its own thread: the sampler is the limit.",
            "A sampler that costs less for an index would help; more workers would not.",
        )
    return because(
        "startup",
        "Most of the waiting is for an epoch's first batch.",
        "" if config.persistent_workers else "persistent_workers=True keeps the workers between epochs.",
    )


def _read_ahead(evidence: Evidence) -> str:
    """What to do where training makes its batches itself."""
    each = evidence.waiting * evidence.seconds / evidence.yielded if evidence.yielded else math.inf
    if each > QUICK:
        return "num_workers=1 or more would read ahead."
    made = f"A batch is made in {micros(1e6 * each)}, about what it costs to get one from a worker"
    return f"{made}: larger batches or `__getitems__` would bring more."


def _starvation(evidence: Evidence, snapshot: Snapshot, config: Config, said: Limit | None) -> Verdict:
    workers, queues = evidence.workers, snapshot.queues
    if not workers and not snapshot.workers:
        return because(
            "workers",
            "The dataset is read in the training thread itself: there are no workers.",
            _read_ahead(evidence),
        )
    if not snapshot.knows("workers.fetch_us"):
        more = "More workers would help, as far as there are processors for them."
        return because("workers", "Nothing is finished ahead: the workers are the limit.", more)
    busy = evidence.load
    if busy >= high(SATURATED, held(said, WORKERS)):
        return too_slow(f"{all_workers(workers)} busy and nothing is finished ahead", evidence, config, said)
    if queues.index or config.style == "iterable":
        return too_slow("Tasks wait for workers and nothing is finished ahead", evidence, config, said)
    if _no_room(snapshot):
        return because(
            "memory",
            f"The workers are busy only {percent(busy)} of the time, "
            f"and no more may be made ahead ({count(queues.in_flight)} in flight).",
            "A larger memory_budget would let more batches be made ahead.",
        )
    return because(
        "sampler",
        f"Nothing is finished, yet the workers are busy only {percent(busy)} of the time: too few tasks reach them.",
        "Look at the sampler: it runs in the training thread.",
    )


def _no_room(snapshot: Snapshot) -> bool:
    """Whether no task may be handed out before training takes a batch: for want of places, or of bytes for a batch."""
    queues = snapshot.queues
    if 0 < queues.window <= queues.in_flight:
        return True
    each = snapshot.bytes / snapshot.batches if snapshot.batches else 0.0
    return 0 < queues.memory_budget < (queues.in_flight + 1) * each


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
