"""Commands from acceptance to outcome. No IO of its own: it is given a way to store, to show and to send.

    accepted ─▶ delivered ─▶ (pending ─▶) applied | rejected | superseded
        └────────────┴──────────┴───────▶ timed_out

1. A command is stored before it is sent, so whatever a loader does, we know who asked.
2. It is sent when the loader is connected, and again whenever the loader connects anew while it is open:
commands state absolute targets, so once more is the same as once.
3. Not delivered within `reconnect` seconds, or delivered without an outcome within `outcome` seconds: timed
out. A pending one waits for the loader's next epoch and has no deadline, but ends when the loader does.
4. A newer command with the same concern (`protocol.Order`) supersedes an older one that is still here.
Those the loader already has, it supersedes itself and says so.
5. The last four states are final: whatever comes later about that command is ignored.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from penstock.insight.commands import told
from penstock.protocol import (
    MAX_WORKERS,
    ORDERS,
    Command,
    CommandRecord,
    CommandState,
    Order,
    Outcome,
    Resize,
    Transition,
    action_of,
)

from .problems import InvalidField, Problem
from .registry import Entry
from .settings import Limits, Timing
from .store import CommandStored

FINAL: frozenset[CommandState] = frozenset({"applied", "rejected", "timed_out", "superseded"})
MOST_KEYS = 20_000
"""Idempotency keys that are remembered."""
MOST_KEYED = 100_000
"""Commands that they stand for, together."""
KEYS_KEPT = 86400.0
"""Seconds for which an Idempotency-Key is remembered across restarts and by other replicas."""
MOST_OVER = 1024
"""Commands of which it is remembered that they are over."""


class Open:
    """A command under way."""

    def __init__(self, record: CommandRecord, stored: CommandStored, deadline: float | None) -> None:
        self.record = record
        self.stored = stored
        self.deadline = deadline
        self.sent = False
        self.elsewhere = False
        """Another replica has delivered it, and says what becomes of it."""


class Asker(msgspec.Struct, frozen=True):
    """Who wants it, from where, and under which Idempotency-Key."""

    by: str
    origin: str
    idempotency: str = ""
    request: str = ""
    """Fingerprint of the request."""


class CommandBook:
    """All commands that are under way, by loader."""

    def __init__(
        self,
        limits: Limits,
        timing: Timing,
        store: Callable[[CommandStored], None],
        show: Callable[[CommandStored, CommandRecord], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._timing = timing
        self._store = store
        self._show = show
        self._clock = clock
        self._open: dict[str, dict[str, Open]] = {}
        """Loader → id → command, oldest first."""
        self._keys: OrderedDict[str, tuple[str, dict[str, None]]] = OrderedDict()
        """Idempotency → fingerprint of the request, ids of the commands."""
        self._keyed = 0
        self._over: OrderedDict[str, CommandStored] = OrderedDict()
        """The last that ended here: the store may not have it yet."""
        self.finished: dict[tuple[str, str], int] = {}
        """(action, final state) → how many, for the metrics."""

    def restore(self, stored: list[CommandStored]) -> None:
        """Take in what the store remembers, oldest first; what was under way gets its time anew."""
        for item in stored:
            record = msgspec.json.decode(item.record, type=CommandRecord)
            if item.idempotency:
                self._remember(item.idempotency, item.request, item.id)
            if record.state not in FINAL and record.action in ORDERS:  # a newer version may have known more
                self._file(Open(record, item, self._deadline(record.state)))

    def adopt(self, stored: CommandStored) -> None:
        """Take on a command that another replica stored, for a loader that is here."""
        if stored.id in self._over:
            return
        known = self._open.get(stored.loader, {}).get(stored.id)
        record = msgspec.json.decode(stored.record, type=CommandRecord)
        if known is not None:
            known.elsewhere = False
        elif record.state not in FINAL and record.action in ORDERS:
            self._file(Open(record, stored, self._deadline(record.state)))

    def learn(self, stored: CommandStored) -> None:
        """Another replica has moved a command."""
        record = msgspec.json.decode(stored.record, type=CommandRecord)
        # Its key is not remembered: the other may be killed before it has stored this. `recall` asks the store.
        known = self._open.get(stored.loader, {}).get(stored.id)
        if known is not None:
            known.record, known.stored, known.elsewhere = record, stored, True
            if record.state in FINAL:
                self._unfile(known)
        self._show(stored, record)

    def open_here(self, loader: str) -> list[str]:
        """Commands under way for a loader that no other replica sees to."""
        return [name for name, command in self._open.get(loader, {}).items() if not command.elsewhere]

    def stored(self, identifier: str, loader: str) -> CommandStored | None:
        """A command that is under way here, or was lately, as it is stored or will be at once."""
        command = self._open.get(loader, {}).get(identifier)
        return self._over.get(identifier) if command is None else command.stored

    # --------------------------------------------------------------------------------------------- asking

    def remember(self, stored: list[CommandStored]) -> None:
        """Commands of one request that another replica took, oldest first: their key is known here from now on."""
        for item in stored:
            self._remember(item.idempotency, item.request, item.id)

    def repeated(self, asker: Asker) -> list[str] | None:
        """Ids of the commands that this very request made before; a problem if the key was for another
        one.
        """
        known = self._keys.get(asker.idempotency) if asker.idempotency else None
        if known is None:
            return None
        if known[0] != asker.request:
            raise Problem(422, "idempotency-key-reused", "This Idempotency-Key came with a different request before.")
        return list(known[1])

    def check(self, entry: Entry, order: Order) -> None:
        """Raise a problem if this loader cannot do that."""
        if entry.refuses:
            raise Problem(409, "control-refused", f"{entry.id}: {entry.refuses}")
        if entry.hello.protocol < order.since:
            reason = f"{entry.id} runs an older Penstock, which does not know “{action_of(order)}”."
            raise Problem(409, "loader-too-old", reason)
        if len(self._open.get(entry.id, ())) >= self._limits.open_commands:
            raise Problem(409, "too-many-commands", f"{entry.id} has too many commands under way.")
        most = entry.hello.config.max_workers or MAX_WORKERS
        if isinstance(order, Resize) and order.workers > most:
            reason = f"{entry.id} may have at most {most} workers"
            raise Problem(422, "too-many-workers", f"{reason}.", errors=[InvalidField("workers", reason)])

    def accept(self, entry: Entry, order: Order, asker: Asker, group: str = "") -> CommandRecord:
        """Take a checked command on. It must be stored before it is delivered."""
        now = time.time()
        record = CommandRecord(
            id=secrets.token_hex(8),
            loader=entry.id,
            action=action_of(order),
            by=asker.by[:256],
            origin=asker.origin[:256],
            state="accepted",
            transitions=[Transition("accepted", now)],
            group=group,
            before=entry.workers,
            **msgspec.structs.asdict(order),
        )
        record = told(record)
        for other in list(self._open.get(entry.id, {}).values()):
            if other.record.state == "accepted" and other.record.order.concern == order.concern != "":
                self._move(other, "superseded", reason=f"a newer command came: {record.id}")
        encoded = msgspec.json.encode(record)
        stored = CommandStored(record.id, entry.id, entry.run, now, asker.idempotency, asker.request, encoded)
        if asker.idempotency:
            self._remember(asker.idempotency, asker.request, record.id)
        self._file(Open(record, stored, self._deadline("accepted")))
        self._store(stored)
        self._show(stored, record)
        return record

    # ------------------------------------------------------------------------------------------- delivering

    def deliver(self, entry: Entry, anew: bool = False) -> None:
        """Send what is open. `anew`: also what an earlier connection was sent."""
        if entry.send is None:
            return
        for command in list(self._open.get(entry.id, {}).values()):
            if anew or not command.sent:
                command.sent = True
                entry.send(Command(command.record.id, command.record.order, command.record.by))

    def outcome(self, entry: Entry, outcome: Outcome) -> None:
        """A loader says what became of a command."""
        command = self._open.get(entry.id, {}).get(outcome.command)
        if command is None:
            return
        state = command.record.state
        if outcome.state == state or (state == "pending" and outcome.state == "delivered"):
            return
        if state == "accepted" and outcome.state != "delivered":
            self._move(command, "delivered")
        self._move(command, outcome.state, actual=outcome.actual, at_batch=outcome.at_batch, reason=outcome.reason)

    def ended(self, entry: Entry, reason: str) -> None:
        """The loader will not answer any more."""
        for command in list(self._open.get(entry.id, {}).values()):
            self._move(command, "timed_out", reason=reason)

    def sweep(self) -> None:
        now = self._clock()
        for commands in list(self._open.values()):
            for command in list(commands.values()):
                if command.deadline is not None and command.deadline < now and not command.elsewhere:
                    what = "no outcome" if command.record.state == "delivered" else "the loader did not take it"
                    self._move(command, "timed_out", reason=f"{what} in time")

    def find(self, identifier: str) -> CommandRecord | None:
        """A command under way."""
        for commands in self._open.values():
            if identifier in commands:
                return commands[identifier].record
        return None

    @property
    def open_count(self) -> int:
        return sum(map(len, self._open.values()))

    # ---------------------------------------------------------------------------------------------- inside

    def _move(
        self,
        command: Open,
        state: CommandState,
        *,
        actual: int | None = None,
        at_batch: int | None = None,
        reason: str = "",
    ) -> None:
        now = time.time()
        before = command.record
        moved = msgspec.structs.replace(
            before,
            state=state,
            transitions=[*before.transitions, Transition(state, now)],
            actual=actual,
            at_batch=at_batch,
            reason=reason,
            took_us=max(0, int((now - before.transitions[0].at) * 1e6)),
        )
        command.record = told(moved)
        command.deadline = self._deadline(state)
        command.stored = msgspec.structs.replace(command.stored, record=msgspec.json.encode(command.record))
        if state in FINAL:
            self._unfile(command)
            self._over[command.record.id] = command.stored
            while len(self._over) > MOST_OVER:
                self._over.popitem(last=False)
            counted = (before.action, state)
            self.finished[counted] = self.finished.get(counted, 0) + 1
        self._store(command.stored)
        self._show(command.stored, command.record)

    def _deadline(self, state: CommandState) -> float | None:
        if state == "accepted":
            return self._clock() + self._timing.reconnect
        return self._clock() + self._timing.outcome if state == "delivered" else None

    def _file(self, command: Open) -> None:
        self._open.setdefault(command.record.loader, {})[command.record.id] = command

    def _unfile(self, command: Open) -> None:
        commands = self._open[command.record.loader]
        commands.pop(command.record.id, None)
        if not commands:
            del self._open[command.record.loader]

    def _remember(self, idempotency: str, request: str, identifier: str) -> None:
        identifiers = self._keys.setdefault(idempotency, (request, {}))[1]
        if identifier in identifiers:
            return
        identifiers[identifier] = None
        self._keyed += 1
        while len(self._keys) > MOST_KEYS or (self._keyed > MOST_KEYED and len(self._keys) > 1):
            self._keyed -= len(self._keys.popitem(last=False)[1][1])
