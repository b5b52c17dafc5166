"""The backend under load, on loopback: `python -m tests.benchmarks.backend_load [--seconds 60]`.

Loaders are played by one process and viewers by another, so that neither holds up the other; the backend is
the real command in a third. Latency is from the moment a snapshot is taken to the moment a viewer has
decoded its frame, by the one clock of this machine. Half of the viewers watch the overview, the others
share all loaders among themselves, and look at 64 each at the most. With `--own-pace` loaders publish as often as the
backend tells them to, which is what real ones do; else all publish at `--rate`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]
from penstock.insight.rates import FIELDS
from penstock.protocol import Ack, Events, Pace, Rates, Stall, Subscribe, ToLoader, Welcome
from penstock_dashboard.settings import Retention
from penstock_dashboard.store import HistoryAsked
from penstock_dashboard.store.history import read_history
from penstock_dashboard.store.samples import Sample, pack
from penstock_dashboard.store.sqlite import compacting
from penstock_dashboard.store.sqlite.records import StoredChunks
from penstock_dashboard.store.sqlite.schema import open_database
from websockets.asyncio.client import connect

from tests.backend.harness import Dashboard, dashboard, die_with_parent, make_hello, make_snapshot

WARM_UP = 3.0


class Load(msgspec.Struct, frozen=True):
    url: str
    token: str
    loaders: int
    workers: int
    rate: float
    viewers: int
    seconds: float
    start: float
    """Unix time at which the loaders begin."""
    stalled: bool = False
    """One more viewer subscribes to much and never reads."""
    run: str = "load"
    own_pace: bool = False
    """Loaders publish as often as the backend wants."""

    @property
    def messages(self) -> int:
        return int(self.seconds * self.rate)

    def identifier(self, rank: int) -> str:
        return f"{self.run}:{rank}:train"

    def socket(self, path: str) -> Any:
        return connect(
            f"ws{self.url.removeprefix('http')}{path}",
            additional_headers={"Authorization": f"Bearer {self.token}"},
            compression=None,
            max_size=1 << 25,
            max_queue=None,
            open_timeout=60,
            proxy=None,
            ping_interval=None,
        )


# ---------------------------------------------------------------------------------------- the loaders'
# process


AT_ONCE = 100
"""Loaders that connect at a time: strangers have few seats, and real loaders that find none come back later."""


async def _publish(
    load: Load, rank: int, door: asyncio.Semaphore, unacknowledged: list[int], late: list[float], sent: list[int]
) -> None:
    async with contextlib.AsyncExitStack() as held:
        async with door:
            socket = await held.enter_async_context(load.socket("/ws/publish"))
            hello = make_hello(load.run, rank=rank, interval_us=int(1e6 / load.rate))
            await socket.send(msgspec.msgpack.encode(hello))
            welcome = msgspec.msgpack.decode(await socket.recv(), type=ToLoader)
        assert isinstance(welcome, Welcome), welcome
        acked = -1
        pace = welcome.interval_us / 1e6

        async def listen() -> None:
            nonlocal acked, pace
            async for data in socket:
                message = msgspec.msgpack.decode(data, type=ToLoader)
                if isinstance(message, Ack):
                    acked = message.seq
                elif isinstance(message, Pace):
                    pace = message.interval_us / 1e6

        listener = asyncio.create_task(listen())
        seq = number = 0
        due = load.start + rank / load.loaders / load.rate
        while due < load.start + load.seconds:
            await asyncio.sleep(max(0.0, due - time.time()))
            late.append(time.time() - due)
            due += max(1 / load.rate, pace) if load.own_pace else 1 / load.rate
            number += 1
            if number % int(10 * load.rate) == 2:
                await socket.send(msgspec.msgpack.encode(Events(seq, [Stall(time.time(), 1000, 3, 0, number)])))
                seq += 1
            await socket.send(msgspec.msgpack.encode(make_snapshot(seq, time.time(), load.workers)))
            seq += 1
        deadline = time.time() + 20.0
        while acked < seq - 1 and time.time() < deadline:
            await asyncio.sleep(0.1)
        unacknowledged.append(seq - 1 - acked)
        sent.append(seq)
        listener.cancel()


def publish(load: Load, results: Any) -> None:
    """Play all loaders."""
    die_with_parent()

    async def main() -> None:
        unacknowledged: list[int] = []
        late: list[float] = []
        sent: list[int] = []
        door = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(_publish(load, rank, door, unacknowledged, late, sent) for rank in range(load.loaders)))
        results.put((sum(unacknowledged), quantile(late, 0.99), sum(sent)))

    asyncio.run(main())


# ---------------------------------------------------------------------------------------- the viewers'
# process


class _Moment(msgspec.Struct):
    seq: int
    at: float


class _Seen(msgspec.Struct):
    """Just enough of a message to viewers, to be a quick reader."""

    type: str
    loader: str = ""
    snapshot: _Moment | None = None
    events: list[dict[str, Any]] = []


class Sight(msgspec.Struct):
    latencies: list[float] = []
    frames: int = 0
    events: int = 0
    overviews: int = 0
    skipped: int = 0
    """Snapshots that were never shown, by their numbers."""
    gaps: int = 0


async def _watch(load: Load, number: int, sight: Sight) -> None:
    decoder = msgspec.json.Decoder(_Seen)
    watchers = max(1, load.viewers // 2)
    overview = number >= watchers
    mine = [] if overview else [load.identifier(rank) for rank in range(number, load.loaders, watchers)]
    shown = 0
    async with load.socket("/ws/live") as socket:
        await socket.send(msgspec.json.encode(Subscribe(overview, mine[:64])).decode())
        end = load.start + load.seconds + 3.0
        while (left := end - time.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    data = await socket.recv()
            except TimeoutError:
                break
            message = decoder.decode(data)
            if message.snapshot is not None and message.type == "frame":
                sight.latencies.append(time.time() - message.snapshot.at)
                shown += 1
            elif message.type == "happened":
                sight.events += len(message.events)
            elif message.type == "overview":
                sight.overviews += 1
            elif message.type == "gap":
                sight.gaps += 1
    sight.frames += shown
    sight.skipped += max(0, len(mine[:64]) * load.messages - shown)


def _stall(load: Load) -> socket.socket:
    """A viewer that subscribes to much and then never reads again."""
    host, _, port = load.url.removeprefix("http://").partition(":")
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect((host, int(port)))
    stalled.sendall(
        f"GET /ws/live HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {load.token}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    stalled.recv(1024)
    wanted = msgspec.json.encode(Subscribe(True, [load.identifier(rank) for rank in range(64)]))
    stalled.sendall(b"\x81\xfe" + len(wanted).to_bytes(2, "big") + b"\0\0\0\0" + wanted)
    return stalled


def watch(load: Load, results: Any) -> None:
    """Play all viewers."""
    die_with_parent()

    async def main() -> None:
        sights = [Sight() for _ in range(load.viewers)]
        stalled = await asyncio.to_thread(_stall, load) if load.stalled else None
        await asyncio.gather(*(_watch(load, number, sight) for number, sight in enumerate(sights)))
        if stalled is not None:
            stalled.close()
        results.put(
            Sight(
                latencies=[value for sight in sights for value in sight.latencies],
                frames=sum(sight.frames for sight in sights),
                events=sum(sight.events for sight in sights),
                overviews=sum(sight.overviews for sight in sights),
                skipped=sum(sight.skipped for sight in sights),
                gaps=sum(sight.gaps for sight in sights),
            )
        )

    asyncio.run(main())


# -------------------------------------------------------------------------------------------------- measuring


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def measure(server: Dashboard, load: Load) -> list[tuple[str, str]]:
    """Run one load and return figures in words."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    sights: Any = context.Queue()
    load = msgspec.structs.replace(load, start=time.time() + WARM_UP + load.loaders / 100)
    processes = [
        context.Process(target=publish, args=(load, results), daemon=True),
        context.Process(target=watch, args=(load, sights), daemon=True),
    ]
    backend = psutil.Process(server.process.pid)
    processes[0].start()
    time.sleep(WARM_UP / 2 + load.loaders / 200)  # viewers come once the loaders are known
    processes[1].start()
    memory: list[float] = []
    health: list[float] = []
    with contextlib.ExitStack() as owned:
        for process in processes:
            owned.callback(process.kill)
        client = owned.enter_context(server.http())
        time.sleep(max(0.0, load.start - time.time()))
        backend.cpu_percent()
        before = backend.cpu_times()
        while time.time() < load.start + load.seconds:
            time.sleep(0.25)
            memory.append(backend.memory_info().rss / 2**20)
            asked = time.perf_counter()
            client.get("/healthz").raise_for_status()
            health.append(time.perf_counter() - asked)
        cpu = backend.cpu_percent()
        after = backend.cpu_times()
        lost, lateness, sent = results.get(timeout=60)
        used = after.user + after.system - before.user - before.system
        sight: Sight = sights.get(timeout=60)
        for process in processes:
            process.join(30)
    early = memory[int(len(memory) * 0.2)]
    return [
        ("messages sent", f"{sent}"),
        ("processor time a message", f"{used / sent * 1e6:.0f} µs (viewers, acknowledgements and storage included)"),
        ("/healthz p50, p99, max", ", ".join(f"{quantile(health, q) * 1e3:.0f} ms" for q in (0.5, 0.99, 1.0))),
        ("not acknowledged", f"{lost}"),
        (
            "not shown to their viewer",
            f"{'–' if load.own_pace else sight.skipped} (gaps told: {sight.gaps})",
        ),
        ("frames / events / overviews shown", f"{sight.frames} / {sight.events} / {sight.overviews}"),
        ("publish to viewer p50", f"{quantile(sight.latencies, 0.5) * 1e3:.1f} ms"),
        ("publish to viewer p99", f"{quantile(sight.latencies, 0.99) * 1e3:.1f} ms"),
        ("publish to viewer max", f"{max(sight.latencies, default=0) * 1e3:.1f} ms"),
        ("generator late p99", f"{lateness * 1e3:.1f} ms (if not small, the machine was busy with other work)"),
        ("load average of the machine", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"),
        ("backend CPU", f"{cpu:.0f} % of one core"),
        ("backend RSS at 20 % of the time", f"{early:.0f} MB"),
        ("backend RSS at the end", f"{memory[-1]:.0f} MB ({(memory[-1] / early - 1) * 100:+.1f} %)"),
    ]


def measure_history(folder: Path) -> list[tuple[str, str]]:
    """24 h at 5 Hz of one loader, through the real compaction with a clock that runs faster."""
    path = folder / "day.db"
    connection = open_database(path)
    begin = 1_700_000_040.0  # a full minute
    for minute in range(1440):
        samples = [
            Sample(at, pack(Rates(*[at % 97 + column for column in range(len(FIELDS))])))
            for at in (begin + minute * 60 + n / 5 for n in range(300))
        ]
        connection.execute("BEGIN")
        compacting.compact(connection, {1: samples}, {}, {}, begin + minute * 60 + 60)
        compacting.expire(connection, Retention(), begin + minute * 60 + 60)
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    end = begin + 86400.0
    rows = [("24 h × 5 Hz on disk", f"{path.stat().st_size / 2**20:.1f} MB")]
    for points in (600, 2000, 5000):
        rows.append((f"history of 24 h, {points} points", _time_history(connection, begin, end, points)))
    rows.append(("history of 10 min, 3000 points", _time_history(connection, end - 600, end, 3000)))
    connection.close()
    return rows


def _time_history(connection: sqlite3.Connection, start: float, end: float, points: int) -> str:
    def ask() -> int:
        asked = HistoryAsked(1, "run:0:train", start, end, points, 0.2, end)
        found = read_history(StoredChunks(connection, 1), [], asked, Retention())
        msgspec.json.encode(found)
        return len(found.at)

    times = []
    for _ in range(7):
        before = time.perf_counter()
        count = ask()
        times.append(time.perf_counter() - before)
    return f"{sorted(times)[3] * 1e3:.1f} ms for {count} buckets"


def show(title: str, rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each load")
    parser.add_argument("--loaders", type=int, default=500)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2.0, help="snapshots per second of each loader")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--own-pace", action="store_true", help="loaders publish as often as the backend wants")
    parser.add_argument("--only", choices=("load", "stalled", "history"), default=None)
    chosen = parser.parse_args(arguments)
    wanted: Callable[[str], bool] = lambda name: chosen.only in (None, name)  # noqa: E731
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if wanted("history"):
            show("One loader's day", measure_history(folder))
        if not (wanted("load") or wanted("stalled")):
            return
        with dashboard(folder, "--data", str(folder / "data")) as server:
            load = Load(
                server.url,
                server.secrets["local"],
                chosen.loaders,
                chosen.workers,
                chosen.rate,
                chosen.viewers,
                chosen.seconds,
                0.0,
                own_pace=chosen.own_pace,
            )
            pace = f"at their own pace (looking at {load.rate:g} Hz)" if load.own_pace else f"at {load.rate:g} Hz"
            size = f"{load.loaders} loaders × {load.workers} workers {pace}"
            if wanted("load"):
                show(f"{size}, {load.viewers} viewers, {load.seconds:g} s", measure(server, load))
            if wanted("stalled"):
                stalled = msgspec.structs.replace(load, stalled=True, run="stalled")
                show("The same, and one more viewer that never reads", measure(server, stalled))


if __name__ == "__main__":
    main()
