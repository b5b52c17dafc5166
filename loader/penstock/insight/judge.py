"""The judge: it is told every snapshot and event of one loader, and says what limits. No IO.

It keeps to what it said unless that is wrong for good: thresholds have slack, a new limit must be seen twice, and words
change at most once a second. A load that has changed is seen by what the last moments say for themselves. One that
changes back and forth gets one verdict, over a longer time and with its range.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from operator import itemgetter

from msgspec import UNSET
from msgspec.structs import replace as with_fields

from ..protocol import Config, EpochEvent, Event, Limit, Presence, Rates, Snapshot, Stall, Verdict, WorkerEvent
from .away import Away
from .evidence import SATURATED, Evidence, Stretch, between, crew_of, is_drained
from .evidence import of_epoch as evidence_of_epoch
from .hanging import stuck
from .line import with_line
from .rates import Meter, Totals, over
from .shares import HARMLESS, of_times
from .slowness import NETWORK
from .verdict import done, of_epoch, plain, weigh
from .words import count, plural

GAP = 5.0
"""Seconds between two snapshots from which on it is not known what happened between them."""
CHANGES = ((1.6, 0.15), (2.2, 0.05))
"""A load has changed if it was another for so many seconds, with a share of waiting that differs by more than that."""
MORE = 0.6
"""Seconds that must have been seen before, to compare."""
TURNS = 3
"""Changes of load, within the time that is kept, from which on the load is said to alternate."""
STEADY = 15.0
"""Seconds without a change after which it does not any more."""
EVERY = 0.35
"""Seconds between two looks at the evidence,"""
RARELY = 0.95
"""and while nobody watches: it is most of what a message costs a dashboard of thousands of loaders."""
SPOKEN = 1.0
"""Seconds for which words stay that say the same with other figures."""
SHORT_EPOCH = 6.0
"""Epochs shorter than so many seconds are judged several at once."""
LONG_EPOCH = 120.0
"""Seconds of an epoch from which on it does not matter how long its first batch took."""
MINUTE = 60.0
DEATHS = 3
"""Workers that must have died within a minute for it to be the main thing."""


class Judge:
    """Is given the snapshots of one loader, one after another, and says what limits its training."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.meter = Meter()
        self.watched = True
        """Whether somebody waits for the verdict, so that it should follow at once."""
        self._snapshot: Snapshot | None = None
        self._alone = True
        """Of what was before the last snapshot, nothing is known."""
        self._crew: tuple[tuple[int, int], ...] = ()
        self._stretch = Stretch()
        self._starts: deque[Totals] = deque(maxlen=64)
        """How the counters stood when an epoch began, for epochs under the same conditions."""
        self._turns: deque[float] = deque(maxlen=TURNS)
        """When the load changed."""
        self._stalls: deque[Stall] = deque(maxlen=64)
        self._deaths: deque[tuple[float, int]] = deque(maxlen=64)
        """(moment, how many workers)"""
        self._last_death: WorkerEvent | None = None
        self._failure = ""
        self._earlier: tuple[int, float] | None = None
        """Workers before the last resize, and batches a second that they made."""
        self._began: Totals | None = None
        """How the counters stood at the first snapshot of the epoch."""
        self._ran: tuple[Snapshot, Totals, int] | None = None
        """The last moment of the epoch at which there was something to do for all, and how many workers there were."""
        self._away = Away()
        self._moment: Totals | None = None
        """The last snapshot, without what went by while training was elsewhere."""
        self._drained: Totals | None = None
        """The first moment at which nothing of the epoch was left to hand out."""
        self._blamed: dict[Limit, float] = {}
        """Limit → seconds that training waited in this epoch while it was named."""
        self._looked = 0.0
        self._limit: Limit = "none"
        """What was named, while something runs."""
        self._next: Limit = "none"
        """What the last look named."""
        self._said: Verdict | None = None
        self._said_at = 0.0

    # -- what it is told ------------------------------------------------------------------------------------

    def take(self, snapshot: Snapshot) -> Rates:
        """The next snapshot; returns the rates since the one before."""
        before = self._snapshot
        if before is not None and not 0 <= snapshot.at - before.at <= GAP:
            before = None
        last = self.meter.last
        rates, now = self.meter.take(snapshot), self.meter.last
        assert now is not None
        if before is not None and last is not None and snapshot.state == "running" and snapshot.times == before.times:
            self._away.add(last, now)
        moment = self._moment = self._away.without(now)
        crew, self._alone = crew_of(snapshot), before is None
        if before is None:
            self._stretch.begin(moment)
            self._starts.clear()
        elif self._is_edge(before, snapshot, crew):
            self._remember(snapshot, crew)
            self._forget_load()
            self._drained = None
            self._stretch.begin(moment)
        elif snapshot.times == before.times:
            pass  # training is elsewhere
        elif snapshot.state == "running" and not is_drained(snapshot, self.config):
            self._stretch.add(moment)
            self._ran, self._drained = (snapshot, moment, len(crew)), None
        elif self._drained is None:
            self._drained = moment
        self._count_epochs(before, snapshot, moment)
        if before is not None and snapshot.recoveries > before.recoveries:
            self._deaths.append((snapshot.at, snapshot.recoveries - before.recoveries))
        self._snapshot, self._crew = snapshot, crew
        if self._said is None or not 0 <= snapshot.at - self._looked < (EVERY if self.watched else RARELY):
            self._look(snapshot)
        return rates

    def note(self, event: Event) -> None:
        """Something happened."""
        if isinstance(event, Stall):
            if not event.ongoing and event.cause == "reorder_stall":
                self._stalls.append(event)
        elif isinstance(event, WorkerEvent) and event.what == "died":
            self._last_death = event
        elif isinstance(event, EpochEvent):
            self._failure = event.reason if event.what == "failed" else ""

    def recent(self) -> Rates:
        """Rates over the last 10 s."""
        return self.meter.recent()

    def carried(self) -> float:
        """Bytes a second that came from other machines, if the network took no more; 0: it does, or there are none."""
        lately = self._stretch.whole(len(self._crew))
        return 0.0 if lately is None or lately.far is None or lately.far.full < NETWORK else lately.far.received

    def last_epoch(self) -> Rates:
        """Rates over the whole last epoch: what its workers did while there was something to do for all of them."""
        snapshot, found = self._snapshot, Rates()
        if snapshot is None:
            return found
        shares = of_times(snapshot.epoch_times) or {}
        if self._began is not None and self._ran is not None and self._ran[1].at > self._began.at:
            _, moment, workers = self._ran
            found = with_fields(over(self._began, moment), workers=float(workers))
        whole = evidence_of_epoch("", snapshot)
        if whole is not None and whole.seconds:
            found = with_fields(found, batches=snapshot.batch / whole.seconds)
        return with_fields(found, **shares)

    def _is_edge(self, before: Snapshot, now: Snapshot, crew: tuple[tuple[int, int], ...]) -> bool:
        """Whether what comes does not belong to what was."""
        return (
            now.epoch != before.epoch
            or now.state != before.state
            or crew != self._crew
            or now.times.paused_us != before.times.paused_us
            or now.times.startup_us != before.times.startup_us
        )

    def _remember(self, now: Snapshot, crew: tuple[tuple[int, int], ...]) -> None:
        """Before a resize: what the workers made, if they did all they could."""
        whole = self._stretch.whole(len(self._crew))
        if len(crew) == len(self._crew) or now.state != "running":
            return
        if whole is not None and whole.enough and whole.load >= SATURATED:
            self._earlier = whole.workers, whole.made / whole.seconds

    def _forget_load(self) -> None:
        self._turns.clear()
        self._said = None
        self._limit = self._next = "none"

    def _count_epochs(self, before: Snapshot | None, now: Snapshot, moment: Totals) -> None:
        if before is not None and (now.target != before.target or now.times.paused_us != before.times.paused_us):
            self._starts.clear()
        if before is not None and now.epoch != before.epoch:
            self._starts.append(moment)
        if before is None or now.epoch != before.epoch:
            self._began, self._ran, self._blamed = moment, None, {}

    # -- what it says ---------------------------------------------------------------------------------------

    def verdict(self, presence: Presence = "connected") -> Verdict:
        """What limits now, as far as is known. `presence`: what is known of the connection to the loader."""
        snapshot = self._snapshot
        if snapshot is None:
            return plain("Measuring.", "Nothing has been heard of the loader yet.")
        return self._broken(snapshot) or self._ended(snapshot, presence) or stuck(snapshot) or self._running(snapshot)

    def _broken(self, snapshot: Snapshot) -> Verdict | None:
        errors = snapshot.errors
        if errors is not UNSET and errors.fatal:
            whose = (
                "The training's own code raised it" if errors.where == "training" else f"It came out of {errors.where}"
            )
            sentence = f"{errors.text}. {whose}, at {done(snapshot)}, and nobody caught it."
            return Verdict("bad", "Died of an error.", sentence, "The traceback is among the events.", "failure")
        if snapshot.state == "failed":
            reason = self._failure.strip().split("\n", 1)[0] or "The loader gave no reason."
            return Verdict("bad", "Failed.", f"Epoch {snapshot.epoch} ended in an error. {reason}", limit="failure")
        died = sum(number for at, number in self._deaths if at > snapshot.at - MINUTE)
        if died < DEATHS or snapshot.state not in ("running", "paused"):
            return None
        last = self._last_death
        how = "" if last is None else last.signal or f"exit code {last.exitcode}"
        work = f" at batch {count(last.batch)}" if last is not None and last.batch >= 0 else ""
        detail = f" The last one ended with {how}{work}." if how else ""
        sentence = f"{plural(died, 'worker')} died in the last minute; others took over their tasks.{detail}"
        advice = (
            "Find out what ends them: memory (SIGKILL), a crash in native code (SIGSEGV), or an exit in the dataset."
        )
        return Verdict("bad", "Workers keep dying.", sentence, advice, "failure", "workers")

    def _ended(self, snapshot: Snapshot, presence: Presence) -> Verdict | None:
        over = presence == "finished" or snapshot.state == "closed"
        if over or presence == "lost":
            told, limit = self._last_epoch(snapshot)
            if over:
                return plain("Finished.", f"The loader said goodbye after {done(snapshot)}. {told}", limit)
            why, hung = "The loader did not say goodbye: its process was killed or cut off.", stuck(snapshot)
            told = told if hung is None else f"{hung.sentence.replace('has waited', 'had waited', 1)} {told}"
            return Verdict("bad", "Lost.", f"{why} It was at {done(snapshot)}. {told}".strip(), limit=limit)
        if snapshot.state == "finished" and not self._in_short_epochs():
            told, limit = self._last_epoch(snapshot)
            return plain("Between epochs.", f"Epoch {snapshot.epoch} has ended. {told}", limit)
        if snapshot.state == "idle":
            return plain("Idle.", "No epoch is under way.")
        if snapshot.state == "paused":
            ready = snapshot.queues.data
            left = f"{plural(ready, 'batch is', 'batches are')} still ready." if ready else "Nothing is ready."
            waits = "" if ready else " Training waits."
            return plain("Paused.", f"No new task is taken up. {left}{waits}")
        return None

    def _last_epoch(self, snapshot: Snapshot) -> tuple[str, Limit]:
        """The whole of it, in a sentence, and what limited it. What its workers did, they did before they left."""
        whole, seen = evidence_of_epoch("", snapshot), snapshot
        if whole is not None and self._ran is not None and self._began is not None:
            seen, moment, workers = self._ran
            work = between("", self._began, moment, workers)
            if work is not None:
                whole = replace(whole, workers=workers, busy=work.busy, made=work.made)
                whole = replace(whole, yielded=work.yielded, occupation=work.occupation, others=work.others)
                whole = replace(whole, far=work.far)
        blamed = {limit: spent for limit, spent in self._blamed.items() if limit not in ("training", "none")}
        most = max(blamed.items(), key=itemgetter(1))[0] if blamed else None
        return of_epoch(whole, seen, self.config, most)

    def _running(self, snapshot: Snapshot) -> Verdict:
        if self._said is not None:
            return self._said
        queues = snapshot.queues
        if snapshot.batch == 0 and queues.data == 0 and queues.pin == 0:
            return plain("Starting.", "The epoch's first batch is not finished yet.")
        return plain("Measuring.", "Too little has been seen yet to say what limits.")

    @property
    def _held(self) -> Limit | None:
        """What was named, and shall not change for noise; None: nothing was said yet."""
        return None if self._said is None else self._limit

    def _look(self, snapshot: Snapshot) -> None:
        """Weigh the evidence, and change what is said if it must be."""
        passed, self._looked = snapshot.at - self._looked, snapshot.at
        if self._said is not None and self._said.waiting and 0 < passed < GAP:
            self._blamed[self._limit] = self._blamed.get(self._limit, 0.0) + passed * self._said.waiting
        evidence = self._evidence(snapshot)
        if evidence is None:
            self._said = None
            self._limit = self._next = "none"
            return
        stalls = [stall for stall in self._stalls if stall.at > snapshot.at - MINUTE]
        found = with_line(weigh(evidence, snapshot, self.config, self._held, stalls), snapshot)
        seen_twice = found.limit == self._next or self._said is None
        self._next = found.limit
        if self._said is not None and found.limit != self._limit and not seen_twice:
            return
        same = self._said is not None and (found.limit, found.tone) == (self._limit, self._said.tone)
        if not same or not 0 <= snapshot.at - self._said_at < SPOKEN:
            self._said, self._said_at, self._limit = found, snapshot.at, found.limit

    def _evidence(self, snapshot: Snapshot) -> Evidence | None:
        """What there is to go by; None: not enough."""
        workers = len(self._crew)
        if self._in_short_epochs():
            return self._of_epochs(workers)
        rest = self._of_rest()
        if rest is not None:
            return rest
        whole = self._stretch.whole(workers)
        if whole is None or not whole.enough:
            alone = evidence_of_epoch("In this epoch", snapshot) if self._alone else None
            return alone if alone is not None and alone.enough and snapshot.state == "running" else None
        whole = self._since_change(whole, snapshot, workers)
        if self._earlier is not None:
            whole = replace(whole, earlier=self._earlier)
        starting = self._of_starting(workers)
        return whole if starting is None or starting.shares["startup"] < whole.waiting else starting

    def _since_change(self, whole: Evidence, snapshot: Snapshot, workers: int) -> Evidence:
        """The evidence since the load changed; over a longer time, if it changes again and again."""
        assert self._moment is not None
        turns, at = self._turns, self._moment.at
        alternates = len(turns) == TURNS and at - turns[-1] < STEADY
        for seconds, difference in CHANGES:
            fresh = self._stretch.lately(seconds, workers)
            if fresh is None or not fresh.enough or whole.seconds < fresh.seconds + MORE:
                continue
            if abs(fresh.waiting - whole.waiting) <= difference:
                continue
            now = weigh(fresh, snapshot, self.config, self._held).limit
            before = weigh(whole, snapshot, self.config, self._held).limit
            if now != before:
                turns.append(at)
                self._stretch.cut(at - seconds)
                self._next = now
                whole = self._stretch.whole(workers) or fresh
                break
        return (self._stretch.long(workers) or whole) if alternates else whole

    def _of_rest(self) -> Evidence | None:
        """The end of an epoch, if training takes what is left of it without waiting; None: there is nothing to say.

        All is made by then, so workers are not looked at.
        """
        if self._drained is None or self._moment is None:
            return None
        found = between("Since the epoch's last batch was handed out", self._drained, self._moment, 0)
        return found if found is not None and found.enough and found.waiting < HARMLESS else None

    def _in_short_epochs(self) -> bool:
        starts, moment = self._starts, self._moment
        return (
            moment is not None
            and len(starts) >= 2
            and starts[-1].at - starts[-2].at < SHORT_EPOCH
            and moment.at - starts[-1].at < 2 * SHORT_EPOCH
        )

    def _of_epochs(self, workers: int) -> Evidence | None:
        """Whole epochs, so many as fit into the last seconds."""
        last = self._moment
        assert last is not None
        first = next((start for start in self._starts if start.at >= last.at - 2 * SHORT_EPOCH), self._starts[-2])
        when = f"In the last {max(1, round(last.at - first.at))} s"
        found = between(when, first, last, workers or self._most_workers())
        return found if found is not None and found.enough else None

    def _of_starting(self, workers: int) -> Evidence | None:
        """Whole epochs, if much of their time went by before their first batch; None: it did not."""
        starts = self._starts
        if len(starts) < 2 or starts[-1].at - starts[0].at > LONG_EPOCH * (len(starts) - 1):
            return None
        epochs = plural(len(starts) - 1, "epoch")
        found = between(f"In the last {epochs}", starts[0], starts[-1], workers)
        return found if found is not None and found.shares["startup"] >= 0.05 else None

    def _most_workers(self) -> int:
        return 0 if self._snapshot is None else self._snapshot.target
