"""The processors that a training may use, what others take of them, and what its workers do with them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.insight.occupation import occupation
from penstock.protocol import Worker
from penstock.telemetry.processors import ProcessorWatch, affinity, busy_ms, quota

from tests.loader.support import DataLoader, Samples
from tests.loader.telemetry.datasets import Unhurried
from tests.loader.telemetry.servers import until

TICK = 1000 / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path / "proc"


def group(proc: Path, line: str, **limits: str) -> Path:
    """A hierarchy of control groups; this process is in what `line` says. Limits by path of their file."""
    (proc / "self/cgroup").write_text(line)
    root = proc.parent / "cgroup"
    for path, text in limits.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "limits", "granted"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2.0),
        ("0::/a/b\n", {"cpu.max": "50000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 0.5),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("4:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"}, 2.5),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("9:memory:/\n0::/\n", {}, None),
    ],
)  # fmt: skip
def test_the_least_quota_on_the_way_up_holds(
    proc: Path, line: str, limits: dict[str, str], granted: float | None
) -> None:
    assert quota(proc, group(proc, line, **limits)) == granted


def test_without_such_files_there_is_no_limit_and_nothing_is_known_of_others(tmp_path: Path) -> None:
    assert quota(tmp_path / "none", tmp_path) is None
    seen = ProcessorWatch(tmp_path / "none", tmp_path).look(0)
    assert seen.allowed == len(affinity())
    assert seen.others_ms == 0


def test_others_are_what_is_neither_training_nor_its_workers(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [0]
    monkeypatch.setattr(time, "process_time_ns", lambda: own[0])
    here = sorted(affinity())[0]
    foreign = max(affinity()) + 1

    def machine(busy_s: float, elsewhere_s: float) -> None:
        ticks = int(busy_s * 1000 / TICK)
        lines = [
            f"cpu{here} {ticks} 0 0 900 50 0 0 0 0 0",
            f"cpu{foreign} {int(elsewhere_s * 1000 / TICK)} 0 0 9 5 0 0 0",
        ]
        (proc / "stat").write_text("cpu 1 1 1 1 1 1 1 1 1 1\n" + "\n".join(lines) + "\nintr 5 5 5\n")

    watch = ProcessorWatch(proc, group(proc, "0::/\n"))
    machine(10, 0)
    assert watch.look(0).others_ms == 0
    machine(13, 50)  # three seconds on our processors: half a one training's, one the workers'
    own[0] = 500_000_000
    assert watch.look(1000).others_ms == pytest.approx(1500, abs=2 * TICK)
    machine(14, 99)  # all of it ours, and a little more, by clocks that tick apart
    assert watch.look(2030).others_ms == pytest.approx(1500, abs=2 * TICK)
    machine(15, 99)
    assert watch.look(2030).others_ms == pytest.approx(2470, abs=2 * TICK)


@pytest.mark.skipif(sys.platform != "linux", reason="from /proc")
def test_time_that_another_process_takes_of_our_processors_is_counted() -> None:
    watch = ProcessorWatch()
    before, busy = watch.look(0).others_ms, busy_ms(Path("/proc"), affinity())
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-S", "-c", spin], check=True)
    after = watch.look(0)
    assert busy is not None
    assert after.others_ms - before >= 400
    assert 0 < after.allowed <= len(affinity())


class Spinning(Samples):
    """Every sample takes so much processor time."""

    seconds = 0.01

    def __getitem__(self, key: Any) -> Any:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return super().__getitem__(key)


@pytest.mark.skipif(sys.platform != "linux", reason="from /proc")
@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("dataset", [Unhurried(length=100_000), Spinning(length=100_000)], ids=["sleeping", "spinning"])
def test_workers_that_sleep_are_blocked_and_workers_that_compute_are_not(dataset: Samples) -> None:
    with DataLoader(dataset, batch_size=2, num_workers=2) as made:
        looks = [Worker(0, 0, "starting")]
        batches: Iterator[Any] = iter(made)

        def look() -> bool:
            """Keep what was told just after the scheduler was asked; True when that was twice, far enough apart."""
            next(batches)
            now = next(iter(made.stats().workers), looks[0])
            if (now.cpu_ms, now.queued_ms) != (looks[-1].cpu_ms, looks[-1].queued_ms):
                looks.append(now)
            return len(looks) > 2 and looks[-1].batches >= looks[1].batches + 80

        until(look)
        first, last = looks[1], looks[-1]
        busy = (
            last.fetch_us + last.collate_us + last.send_us - first.fetch_us - first.collate_us - first.send_us
        ) / 1e3
        parts = occupation(busy, last.cpu_ms - first.cpu_ms, last.queued_ms - first.queued_ms)
        stats = made.stats()
        text = str(stats)
        batches = iter(())
    assert stats.knows("workers.queued_ms")
    assert 0 < stats.processors.allowed <= len(affinity())
    assert stats.processors.training_ms > 0
    assert (parts.blocked > parts.processor) == isinstance(dataset, Unhurried)
    assert {"cpu", "queued", "blocked", "%"} <= set(text.split())
