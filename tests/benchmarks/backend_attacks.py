"""The backend under attack, beside honest work: `python -m tests.benchmarks.backend_attacks [--seconds 60]`.

For each attack a dashboard of its own with `--max-size 10M`, 20 honest loaders at 5 Hz and 3 viewers; the attacker is
a process of its own with the weakest token that it needs, or none. Honest ones have another token. What is asked for:
memory below 300 MB, the database and its log below 1.1 × 10 MB, publish to viewer below 500 ms at the 99th
percentile, nobody shut out, nothing lost that was acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from penstock.protocol import loader_id
from websockets.exceptions import WebSocketException

from tests.backend.attacks import Peak, frame, large_events, large_snapshot, push, raw, request, websocket
from tests.backend.harness import SECRETS, Address, Dashboard, dashboard, die_with_parent
from tests.benchmarks.backend_load import WARM_UP, Load, Sight, publish, quantile, show, watch

MOST = 10 << 20
LOADERS, VIEWERS, RATE = 20, 3, 5.0

Attack = Callable[[Address, float], None]
"""Attacks a server until a moment of `time.time()`."""


def forever(until: float, work: Callable[[], None]) -> None:
    while time.time() < until:
        with contextlib.suppress(OSError, WebSocketException, AssertionError, TimeoutError):
            work()
        time.sleep(0.001)


def events(server: Address, until: float) -> None:
    """Two connections send events as fast as they are taken."""

    def one(rank: int) -> None:
        def flood() -> None:
            with server.loader("flood", rank=rank, token="publisher") as loader:
                while time.time() < until:
                    loader.send(large_events(loader.seq, 900 << 10))
                    loader.seq += 1

        forever(until, flood)

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_byte(server: Address, until: float) -> None:
    """An answered request followed by one byte, on as many connections as can be had."""
    held: list[socket.socket] = []

    def more() -> None:
        client = raw(server, request(server, "/healthz"))
        client.settimeout(2.0)
        client.recv(4096)
        client.sendall(b"G")
        held.append(client)
        if len(held) > 6000:
            held.pop(0).close()

    forever(until, more)


def unread_answers(server: Address, until: float) -> None:
    """Requests whose answers are not read."""
    held: list[socket.socket] = []

    def more() -> None:
        client = raw(server, buffer=4096)
        push(client, request(server, "/api/openapi.json"), 50)
        held.append(client)
        if len(held) > 2000:
            held.pop(0).close()

    forever(until, more)


def pings(server: Address, until: float) -> None:
    """A websocket that pings and never reads."""

    def once() -> None:
        client = websocket(server, "/ws/live", "viewer")
        while time.time() < until and push(client, frame(9, b"x" * 125) * 500, 10):
            pass
        client.close()

    forever(until, once)


def unread_viewers(server: Address, until: float) -> None:
    """Viewers that subscribe to all there is, over and over, and never read."""
    names = ",".join(f'"{loader_id("load", rank, "train")}"' for rank in range(LOADERS))
    wanted = frame(1, b'{"type":"subscribe","overview":true,"loaders":[%s]}' % names.encode())
    held: list[socket.socket] = []

    def more() -> None:
        client = websocket(server, "/ws/live", "viewer")
        push(client, wanted, 384)
        held.append(client)
        if len(held) > 200:
            held.pop(0).close()

    forever(until, more)


def gone(server: Address, until: float) -> None:
    """Loaders that send one large snapshot and go."""
    body = msgspec.msgpack.encode(large_snapshot(0))
    number = 0

    def once() -> None:
        nonlocal number
        number += 1
        with server.loader(f"gone{number % 100}", rank=number, token="publisher") as loader:
            loader.send(body)

    forever(until, once)


def still_clock(server: Address, until: float) -> None:
    """A loader whose clock stands still, as fast as it is taken."""

    def flood() -> None:
        with server.loader("still", token="publisher") as loader:
            while time.time() < until:
                loader.snapshot(at=1e9, workers=0)

    forever(until, flood)


def guesses(server: Address, until: float) -> None:
    """Wrong tokens."""

    def guess() -> None:
        with server.http(None) as client:
            for _ in range(50):
                client.post("/api/session", json={"token": os.urandom(8).hex()})

    forever(until, guess)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (events, one_byte, unread_answers, pings, unread_viewers, gone, still_clock, guesses)
}


def attack(name: str, port: int, until: float) -> None:
    die_with_parent()
    ATTACKS[name](Address(port, SECRETS), until)


class Prober(threading.Thread):
    """Somebody with a token who comes anew, several times a second; and who is turned away."""

    def __init__(self, server: Dashboard, until: float) -> None:
        super().__init__(daemon=True)
        self.tries = 0
        self.refused = 0
        self._server = server
        self._until = until

    def run(self) -> None:
        while time.time() < self._until:
            self.tries += 1
            try:
                with self._server.http() as client:
                    client.get("/api/session").raise_for_status()
                    client.post("/api/session", json={"token": SECRETS["local"]}).raise_for_status()
            except Exception:
                self.refused += 1
            time.sleep(0.25)


def lost_events(server: Dashboard, load: Load) -> int:
    """Events of honest loaders that were acknowledged and are not there."""
    sent = len([number for number in range(load.messages) if number % int(10 * load.rate) == 1])
    return sum(
        sent - len(server.get(f"/api/loaders/{load.identifier(rank)}/events", limit=10_000))
        for rank in range(load.loaders)
    )


def measure(folder: Path, name: str, seconds: float) -> list[tuple[str, str]]:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    sights: Any = context.Queue()
    data = folder / name / "data"
    data.mkdir(parents=True)
    with (
        dashboard(folder / name, "--data", str(data), "--max-size", "10M") as server,
        Peak(data).watching() as peak,
        contextlib.ExitStack() as owned,
    ):
        start = time.time() + WARM_UP + 2.0
        load = Load(server.url, SECRETS["local"], LOADERS, 8, RATE, VIEWERS, seconds, start)
        processes = [
            context.Process(target=publish, args=(load, results), daemon=True),
            context.Process(target=watch, args=(load, sights), daemon=True),
        ]
        if name in ATTACKS:
            processes.append(context.Process(target=attack, args=(name, server.port, start + seconds), daemon=True))
        for process in processes:
            process.start()
            owned.callback(process.kill)
            time.sleep(1.0)
        prober = Prober(server, start + seconds)
        prober.start()
        unacknowledged, late, _ = results.get(timeout=seconds + 120)
        sight: Sight = sights.get(timeout=120)
        prober.join(60)
        return [
            ("memory, peak", f"{server.memory / 2**20:.0f} MB"),
            ("disk, peak", f"{peak.bytes / 2**20:.1f} MB ({peak.bytes / MOST:.2f} × --max-size)"),
            ("publish to viewer p50 / p99", _milliseconds(sight.latencies)),
            ("generator late p99", f"{late * 1e3:.0f} ms (if not small, the machine was busy with other work)"),
            ("honest messages not acknowledged", f"{unacknowledged}"),
            ("acknowledged events that are lost", f"{lost_events(server, load)}"),
            ("turned away", f"{prober.refused} of {prober.tries} who came with a token"),
        ]


def _milliseconds(latencies: list[float]) -> str:
    return f"{quantile(latencies, 0.5) * 1e3:.0f} / {quantile(latencies, 0.99) * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each attack")
    parser.add_argument("--only", nargs="+", choices=["none", *ATTACKS], default=["none", *ATTACKS])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for attacked in chosen.only:
            title = (ATTACKS[attacked].__doc__ or "") if attacked in ATTACKS else "Nobody attacks."
            show(f"{attacked}: {title} ({chosen.seconds:g} s)", measure(Path(name), attacked, chosen.seconds))


if __name__ == "__main__":
    main()
