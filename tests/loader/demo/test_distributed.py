"""`torchrun -m penstock.demo.distributed`, as in the README."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.backend.harness import ROOT, dashboard, die_with_parent, environment
from tests.loader.demo.conftest import Watched
from tests.loader.support import descendants, wait_until


@contextmanager
def torchrun(home: Path, *arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*command, "-m", "penstock.demo.distributed", *arguments],
        cwd=ROOT,
        env={**environment(home), **more},
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509  no threads here
    )
    try:
        yield process
    finally:
        started = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait()
        wait_until(lambda: not started & descendants(1), "the end of the ranks and their workers")


def test_both_ranks_wait_for_the_dashboard_and_a_resize_reaches_both(tmp_path: Path) -> None:
    with dashboard(tmp_path, "--data", ":memory:") as first:
        port = first.port
    where = {"PENSTOCK_URL": f"http://127.0.0.1:{port}", "PENSTOCK_TOKEN": first.secrets["local"]}
    with (
        torchrun(tmp_path, "--straggler", "1", **where),
        dashboard(tmp_path, "--data", ":memory:", "--port", str(port)) as running,
        running.http() as client,
    ):
        rows = wait_until(lambda: client.get("/api/loaders").json(), "a rank")
        run = Watched(client, rows[0]["identity"]["run"])
        wait_until(lambda: [row["batch"] > 12 for row in run.rows()] == [True, True], "both in one run")

        def straggles() -> bool:
            waits = {row["identity"]["rank"]: 1 - row["rates"]["compute"] for row in run.rows()}
            return bool(waits[1] > waits[0])

        wait_until(straggles, "the straggler to be the one that waits for data")
        commands = run.resize(3)
        assert len(commands) == 2
        for command in commands:
            assert run.reach(command, "applied")["actual"] == 3
