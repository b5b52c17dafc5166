"""Is data the problem, and which stage is? The dashboard's argument in the dashboard's words.

It is argued for at the top of `frontend/src/live/diagnosis.ts`. Both are tested with the cases in
`frontend/tests/diagnosis.json`, so that the two cannot say different things.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.protocol import Config, Presence, Rates, Snapshot, Stall

from ..rates import alive
from ..terminal.shares import Shares, of_times, waiting
from ..terminal.words import age, count, micros, percent, plural

Tone = Literal["good", "warn", "bad", "plain"]
Stage = Literal["sampler", "index", "workers", "reorder", "pin", "data", "training"]

HARMLESS = 0.05
"""Below this share of waiting, data is not the problem."""
SEVERE = 0.3
"""From this share on it is the main one."""
SATURATED = 0.8
"""Workers busier than this have nothing to spare."""
NEVER_IDLE = 0.92
"""Workers busier than this never idle."""
NAMEABLE_STALL = 100_000
"""Shorter stalls (µs) are not worth naming."""


@dataclass(frozen=True)
class Evidence:
    snapshot: Snapshot
    config: Config
    presence: Presence
    shares: Shares | None
    """Over the last 10 s, as the rates are; None while no time has passed in an epoch."""
    rates: Rates
    """Means over the last 10 s."""
    stalls: Sequence[Stall] = ()
    """Stalls of the last minute."""
    silence: float = 0.0
    """Seconds since the newest data."""
    failure: str = ""
    """Why the last epoch failed, if it did."""


@dataclass(frozen=True)
class Diagnosis:
    tone: Tone
    verdict: str
    sentence: str
    advice: str = ""
    """What to do about it; empty if nothing."""
    limit: Stage | None = None
    """The stage that limits; None if there is none to name."""


def diagnose(evidence: Evidence) -> Diagnosis:
    return _ended(evidence) or _suspended(evidence) or _running(evidence)


def awaited(snapshot: Snapshot) -> tuple[int, int] | None:
    """(batch, worker) that everything finished waits for: the lowest batch that a worker still has in hand."""
    hands = ("fetching", "collating", "sending", "retiring")
    found = [(w.batch, w.id) for w in snapshot.workers if w.state in hands and w.batch >= snapshot.batch]
    return min(found, default=None)


def _ended(evidence: Evidence) -> Diagnosis | None:
    snapshot, presence = evidence.snapshot, evidence.presence
    if snapshot.state == "failed":
        reason = evidence.failure.strip().split("\n", 1)[0] or "The loader gave no reason."
        return Diagnosis("bad", "Failed.", f"Epoch {snapshot.epoch} ended in an error. {reason}")
    done = f"{plural(snapshot.batches, 'batch', 'batches')} in {plural(snapshot.epoch + 1, 'epoch')}"
    if presence == "finished" or snapshot.state == "closed":
        return Diagnosis("plain", "Finished.", f"The loader said goodbye after {done}. {_last_epoch(snapshot)}")
    if presence == "lost":
        heard = f"Nothing has been heard for {age(evidence.silence)}"
        why = "the loader did not say goodbye: its process was killed or cut off."
        return Diagnosis("bad", "Lost.", f"{heard}, and {why}")
    if snapshot.state == "finished":
        ended = f"Epoch {snapshot.epoch} has ended. {_last_epoch(snapshot)}"
        return Diagnosis("plain", "Between epochs.", ended)
    if snapshot.state == "idle":
        return Diagnosis("plain", "Idle.", "No epoch is under way.")
    return None


def _last_epoch(snapshot: Snapshot) -> str:
    shares = of_times(snapshot.epoch_times)
    return "" if shares is None else f"In the last epoch training waited {percent(waiting(shares))} of the time."


def _suspended(evidence: Evidence) -> Diagnosis | None:
    snapshot, queues = evidence.snapshot, evidence.snapshot.queues
    if snapshot.state == "paused":
        ready = queues.data
        left = (
            f"{plural(ready, 'batch is', 'batches are')} still ready." if ready else "Nothing is ready: training waits."
        )
        return Diagnosis("plain", "Paused.", f"No new task is taken up. {left}")
    if snapshot.batch == 0 and queues.data == 0 and queues.pin == 0:
        return Diagnosis("plain", "Starting.", "The epoch's first batch is not finished yet.")
    return None


def _running(evidence: Evidence) -> Diagnosis:
    if evidence.shares is None:
        return Diagnosis("plain", "Measuring.", "Not enough data yet to say what limits.")
    share = waiting(evidence.shares)
    waited = f"In the last 10 s training waited {percent(share)} of the time."
    if share < HARMLESS:
        return _compute_bound(evidence, waited)
    cause = _cause(evidence, evidence.shares)
    severe = share >= SEVERE
    parts = (waited, cause.sentence, _culprit(evidence.snapshot, evidence.stalls))
    return replace(
        cause,
        tone="bad" if severe else "warn",
        verdict="Data-bound." if severe else "Partly data-bound.",
        sentence=" ".join(part for part in parts if part),
    )


def _compute_bound(evidence: Evidence, waited: str) -> Diagnosis:
    workers, busy_workers = alive(evidence.snapshot), evidence.rates.busy
    busy = busy_workers / workers if workers else 0.0
    enough = max(1, math.ceil(busy_workers * 1.25))
    advice = ""
    if workers >= 2 and busy < 0.5 and enough < workers and evidence.snapshot.knows("workers.fetch_us"):
        would = "one" if enough == 1 else count(enough)
        advice = f"The {workers} workers are busy {percent(busy)} of the time; {would} would do."
    fine = "Batches are ready before they are asked for: data is not the limit, training is."
    return Diagnosis("good", "Compute-bound.", f"{waited} {fine}", advice, "training")


def _because(sentence: str, advice: str, limit: Stage | None) -> Diagnosis:
    """A cause; tone and verdict depend on how much of the time it takes."""
    return Diagnosis("plain", "", sentence, advice, limit)


def _cause(evidence: Evidence, shares: Shares) -> Diagnosis:
    main = max(("starvation", "reorder_stall", "pin_wait", "startup", "sampler"), key=lambda kind: shares[kind])
    config, workers = evidence.config, alive(evidence.snapshot)
    if main in ("reorder_stall", "pin_wait") and workers and evidence.rates.busy / workers >= NEVER_IDLE:
        sentence = f"{_all(workers)} busy all the time: the workers are the limit."
        return _because(sentence, _enough_workers(evidence.rates, shares, workers, config), "workers")
    if not evidence.snapshot.knows("workers"):
        waits = "for an epoch's first batch" if main == "startup" else "for the next batch"
        unseen = "what makes it is not seen from outside"
        return _because(f"Most of the waiting is {waits}; {unseen}.", "", None)
    if main == "starvation":
        return _starvation(evidence, shares)
    if main == "reorder_stall":
        return _because(
            "Batches are finished, but an earlier one is not: single slow batches are the limit.",
            "Look at the slowest samples below; more workers help only a little." if config.in_order else "",
            "reorder",
        )
    if main == "pin_wait":
        return _because(
            "Batches are finished but not through the pin stage: pinning is the limit.",
            "Smaller batches or cheaper types (uint8 instead of float32) would help; more workers would not.",
            "pin",
        )
    if main == "sampler":
        return _because(
            "Training waits for the sampler, which runs in its own thread: the sampler is the limit.",
            "A sampler that costs less for an index would help; more workers would not.",
            "sampler",
        )
    return _because(
        "Most of the waiting is for an epoch's first batch.",
        "" if config.persistent_workers else "persistent_workers=True keeps the workers between epochs.",
        "workers",
    )


def _all(workers: int) -> str:
    if workers == 1:
        return "The one worker is"
    return "Both workers are" if workers == 2 else f"All {count(workers)} workers are"


def _starvation(evidence: Evidence, shares: Shares) -> Diagnosis:
    workers, rates, queues = alive(evidence.snapshot), evidence.rates, evidence.snapshot.queues
    if not workers:
        return _because(
            "The dataset is read in the training thread itself: there are no workers.",
            "num_workers=1 or more would read ahead.",
            "workers",
        )
    more = "More workers would help, as far as there are cores for them."
    if evidence.config.engine == "torch":
        return _because("Nothing is finished ahead: the workers are the limit.", more, "workers")
    busy = rates.busy / workers
    if busy >= SATURATED:
        sentence = f"{_all(workers)} busy and nothing is finished ahead: the workers are the limit."
        return _because(sentence, _enough_workers(rates, shares, workers, evidence.config), "workers")
    if queues.index:  # a pause, a gap between epochs or a smaller pool may be among the 10 s
        return _because(
            "Tasks wait for workers and nothing is finished ahead: the workers are the limit.", more, "workers"
        )
    if 0 < queues.window <= queues.in_flight:
        return _because(
            f"The workers are busy only {percent(busy)} of the time, "
            f"and the window is full ({count(queues.in_flight)} in flight).",
            "A larger memory_budget would let more batches be made ahead.",
            "index",
        )
    return _because(
        f"Nothing is finished, yet the workers are busy only {percent(busy)} of the time: too few tasks reach them.",
        "Look at the sampler: it runs in the training thread.",
        "sampler",
    )


def _enough_workers(rates: Rates, shares: Shares, workers: int, config: Config) -> str:
    """Workers that would keep training fed: it takes a batch every compute/batches seconds, and each batch costs
    busy/batches worker-seconds. More than fourfold growth is not promised: something else will limit first.
    """
    active = 1 - shares["paused"]
    if not shares["compute"] > 0.02 * active or not rates.busy > 0:
        return "More workers would help, as far as there are cores for them."
    enough = math.ceil(rates.busy / (shares["compute"] / active) * 1.05)
    most = min(config.max_workers, workers * 4) if config.max_workers else workers * 4
    if enough <= workers:
        return ""
    if enough > most:
        return f"Even {count(most)} workers would hardly keep up; make single samples cheaper."
    return f"About {count(enough)} workers would keep up, if there are cores for them."


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
