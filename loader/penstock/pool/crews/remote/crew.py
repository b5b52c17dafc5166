"""Workers on other machines: processes that agents fork there, with their batches on a connection to each agent.

An agent that is lost takes its workers with it; their tasks go to others. It is dialed again for as long as the pool
lives, and then has workers again when some are missing. Only when no agent is left, and no worker runs here, the epoch
fails.
"""

from __future__ import annotations

import functools
import logging
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....agent import messages as m
from ....agent.luggage import Luggage
from ....seeding import Bases
from ...inbox import Inbox
from ...signals import emptied
from ..crew import Crew, Machine, Memory, Order, Worker
from ..reports import Died, Failed, HasRoom, PartLost, RecipeWanted
from .dialing import Dialed, Dialer, send_recipe
from .landing import Landing
from .link import Link
from .placing import Placing
from .traffic import Traffic
from .worker import RemoteWorker

if TYPE_CHECKING:
    from ...tasks import Recipe

log = logging.getLogger("penstock")

TICK = 0.5
"""Seconds between two looks at whether agents are still there."""
OVERSLEPT = 2.0
"""Seconds between two such looks after which nothing can be said of an agent's silence."""
ALONE = 30.0
"""Seconds without any agent after which an epoch fails that has no other workers."""
SURPLUS = 30.0
"""Seconds after which places in a cluster that no worker needs are given back."""
TO_END = 5.0
"""Seconds that agents have to end what they started."""


class RemoteCrew(Crew):
    """The workers of a pool that are on other machines, and the agents that make them."""

    name = "the loader's agents"

    def __init__(
        self,
        inbox: Inbox,
        addresses: Sequence[str],
        token: bytes,
        local: int,
        begin: tuple[int, int, int],
        placing: Placing | None = None,
        wanted: int = 0,
    ) -> None:
        """`local`: workers with an id below it are not ours. `begin`: the base seed, the number that all ids are below,
        and how often a zygote may die. With `placing`, agents are found by it, at first for `wanted` workers."""
        self._inbox = inbox
        self._addresses = addresses
        self._token = token
        self._local = local
        self._begin = begin
        self._placing = placing
        self._wanted = wanted
        self._surplus_since: float | None = None
        """Since when more places are reserved than used."""
        self._landing = Landing()
        self._links: list[Link] = []
        self._dialers: dict[str, Dialer] = {}
        """Address → who is about to reach it."""
        self._reached: deque[Dialed] = deque()
        """Agents that dialers have reached, until the conductor's thread takes them over."""
        self._traffic: dict[str, Traffic] = {}
        """Address → what came from there. Of those that are gone for good nothing is kept."""
        self._bases: Bases | None = None
        self._ticked = time.monotonic()
        self._alone_since = time.monotonic()
        self._over = self._seeing_off = False
        inbox.every(TICK, self._tick)

    # -- reaching agents ----------------------------------------------------------------------------------------

    def revive(self, recipe: Recipe) -> None:
        """Give the recipe to all who ask for it; at first, wait until every agent has it or cannot be reached."""
        luggage = Luggage.packed(recipe)
        if self._dialers or self._links:
            for dialer in list(self._dialers.values()):
                dialer.give(luggage)
            return
        if self._placing is not None:
            self._place(self._placing)
        for address in self._addresses:
            self._dial(address, luggage)
        dialers = list(self._dialers.values())
        try:
            for dialer in dialers:
                dialer.tried.wait()
        except BaseException:
            self._stop_dialing()
            raise
        for dialer in dialers:
            dialer.give(None)  # those that are reached later ask for it
        self._judge([dialer for dialer in dialers if dialer.reason])

    def _place(self, placing: Placing) -> None:
        """Have Ray find places. Nobody else reads from it yet."""
        placing.open(self._wanted)
        self._addresses = list(placing.room)
        if placing.short and not placing.room and not self._local:
            raise ConnectionError(f"{placing.short}, so there is nobody to make batches")
        if placing.short:
            self._inbox.put(PartLost("places", placing.short))
        self._inbox.watch(placing, self._hear_placing)

    def _hear_placing(self, events: int) -> None:  # noqa: ARG002
        placing = self._placing
        if placing is None:
            return
        short = placing.short
        placing.hear(self._ended)
        if placing.lost:
            self._inbox.unwatch(placing)
            placing.end()
            self._placing = None
            message = f"Ray cannot place any more workers: {placing.lost}. Those that there are go on"
            self._inbox.put(PartLost("Ray", message))
            return
        if placing.short and placing.short != short:
            self._inbox.put(PartLost("places", placing.short))
        known = {link.address for link in self._links} | {each.address for each in self._reached} | {*self._dialers}
        for address in placing.room.keys() - known:
            self._dial(address)
        self._inbox.put(HasRoom(self))

    def _ended(self, address: str, why: str) -> None:
        """Ray says that an agent has ended. If it has not, its connection says so, and that is what counts."""
        dialer = self._dialers.pop(address, None)
        if dialer is not None:
            dialer.stop()
            self._traffic.pop(address, None)
            log.info("the agent at %s is gone: %s", address, why)

    def _judge(self, failed: list[Dialer]) -> None:
        """Some agents could not be reached."""
        unfit = [f"{each.address}: {each.reason}" for each in failed if each.unfit]
        missing = [f"{each.address}: {each.reason}" for each in failed if not each.unfit]
        if unfit:
            self._stop_dialing()
            raise RuntimeError(f"an agent cannot be used: {'; '.join(unfit)}")
        if len(missing) == len(self._addresses) and not self._local and (missing or self._placing is None):
            self._stop_dialing()
            raise ConnectionError(
                f"no agent can be reached, so there is nobody to make batches: {'; '.join(missing)}. "
                "Start `penstock agent` there, and see that the port is open"
            )
        for each in failed:
            message = f"the agent at {each.address} cannot be reached ({each.reason}). It is dialed again"
            self._inbox.put(PartLost(each.address, message))

    def _dial(self, address: str, luggage: Luggage | None = None) -> None:
        base_seed, rows, max_retries = self._begin
        dialer = Dialer(
            address,
            self._token,
            functools.partial(_send, base_seed, rows, max_retries),
            self._has_reached,
            lambda: self._inbox.put(RecipeWanted(self), ring=True),
        )
        dialer.give(luggage)
        self._dialers[address] = dialer
        try:
            dialer.start()
        except RuntimeError as error:  # there may be no more threads
            dialer.reason = str(error)
            dialer.tried.set()

    def _has_reached(self, dialed: Dialed) -> None:
        """A dialer's thread."""
        self._reached.append(dialed)
        if self._over:
            self._close_reached()
        else:
            self._inbox.put(HasRoom(self), ring=True)

    def _take_over(self) -> None:
        for dialed in emptied(self._reached):
            if dialed.slight:
                log.warning("the agent at %s has %s", dialed.address, "; ".join(dialed.slight))
            self._dialers.pop(dialed.address, None)
            traffic = self._traffic.setdefault(dialed.address, Traffic(dialed.host))
            link = Link(dialed, self._inbox, self._landing, traffic, self._lose)
            if self._bases is not None:
                link.send(m.ShareBases(tuple(self._bases)))
            self._links.append(link)

    def _tick(self) -> None:
        self._take_over()
        now = time.monotonic()
        overslept, self._ticked = now - self._ticked > OVERSLEPT, now
        for link in list(self._links):
            link.check(overslept)
        for dialer in self._dialers.values():
            if dialer.unfit:
                message = f"the agent at {dialer.address} cannot be used any more: {dialer.reason}"
                self._inbox.put(PartLost(f"{dialer.address} for good", message))
        if self._placing is not None:
            self._give_back(self._placing, now)
        if self._links or self._local or self._seeing_off:
            self._alone_since = now
        elif now - self._alone_since > ALONE:
            self._alone_since = now
            why = "; ".join(f"{each.address}: {each.reason or 'lost'}" for each in self._dialers.values())
            self._inbox.put(Failed(ConnectionError(f"all agents are lost, and none can be reached again: {why}")))

    def _lose(self, link: Link, why: str) -> None:
        """An agent is gone, and its workers with it."""
        self._links.remove(link)
        if self._seeing_off:
            return
        self._traffic[link.address].cut(sum(worker.outstanding for worker in link.workers.values()))
        message = f"the agent at {link.address} ({link.host}) was lost: {why}"
        self._inbox.put(PartLost(link.address, message))
        for worker in list(link.workers.values()):
            said = f"DataLoader worker {worker.id} (pid {worker.pid} on {link.host}) exited unexpectedly: {message}"
            self._inbox.put(Died(worker, -9, said, worker.at(), -1, False, worker.costs()))
        if self._placing is None or link.address in self._placing.room:
            self._dial(link.address)
        else:
            del self._traffic[link.address]

    # -- workers --------------------------------------------------------------------------------------------------

    def grow(self, key: int, number: int, num_workers: int, epoch: int, order: Order) -> Worker | None:
        self._take_over()
        if number < self._local:
            return None
        links = [link for link in self._links if self._has_room(link)]
        if not links:
            if self._placing is not None:
                self._placing.want(max(num_workers - self._local, self._present() + 1))
            return None
        link = min(links, key=lambda each: len(each.workers) / each.cores)
        worker = RemoteWorker(link, key, number)
        link.grow(worker, num_workers, epoch, order)
        return worker

    def _present(self) -> int:
        return sum(len(link.workers) for link in self._links)

    def _has_room(self, link: Link) -> bool:
        return self._placing is None or len(link.workers) < self._placing.room.get(link.address, 0)

    def _give_back(self, placing: Placing, now: float) -> None:
        """Places that nobody has used for a while are others'."""
        if self._dialers or self._reached or sum(placing.room.values()) <= self._present():
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = now
        elif now - self._surplus_since > SURPLUS:
            self._surplus_since = None
            placing.release({link.address: len(link.workers) for link in self._links})

    def begin_epoch(self, number: int, shared_seed: int | None) -> None:
        for link in self._links:
            link.send(m.StartEpoch(number, shared_seed))

    def bases(self) -> Bases | None:
        return next((link.bases for link in self._links if link.bases is not None), self._bases)

    def share_bases(self, bases: Bases) -> None:
        self._bases = bases
        for link in self._links:
            link.send(m.ShareBases(tuple(bases)))

    def limit(self, nbytes: int) -> None:
        self._landing.limit(nbytes)
        for link in self._links:
            link.limit = nbytes

    def memory(self) -> Memory:
        return self._landing.memory()

    def machines(self) -> list[Machine]:
        links = {link.address: link for link in list(self._links)}
        return [self._machine(address, traffic, links.get(address)) for address, traffic in [*self._traffic.items()]]

    @staticmethod
    def _machine(address: str, traffic: Traffic, link: Link | None) -> Machine:
        workers = [] if link is None else sorted(worker.id for worker in list(link.workers.values()))
        cores = 0 if link is None else link.cores
        return Machine(traffic.host, address, workers, cores, traffic.bytes, traffic.full_ns, traffic.way, traffic.lost)

    def handles(self) -> list[Any]:
        """They are no processes of this machine."""
        return []

    # -- the end: see `session` -----------------------------------------------------------------------------------

    def see_off(self) -> None:
        self._seeing_off = True
        self._take_over()
        for link in self._links:
            link.see_off()

    def lingers(self) -> bool:
        return bool(self._links)

    def end(self) -> None:
        if self._over:
            return
        self._over = True
        self._stop_dialing()
        self._close_reached()
        for link in self._links:
            link.finish(0.0 if link.is_silent() else TO_END)
        self._links.clear()
        if self._placing is not None:
            self._placing.end()

    def _stop_dialing(self) -> None:
        dialers, self._dialers = list(self._dialers.values()), {}
        for dialer in dialers:
            dialer.stop()

    def _close_reached(self) -> None:
        for dialed in emptied(self._reached):
            dialed.socket.close()


def _send(base_seed: int, rows: int, max_retries: int, sock: socket.socket, luggage: Luggage) -> None:
    send_recipe(sock, luggage, base_seed, rows, max_retries)
