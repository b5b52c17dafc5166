"""Comparing stretches of time over the API, and in the terminal: what a loader really sent, stored and read back."""

from __future__ import annotations

import time

import pytest
from penstock.protocol import CommandEvent, EpochEvent, Times
from penstock_dashboard.cli import main

from tests.backend.harness import SECRETS, FakeLoader, Running


def tell(loader: FakeLoader, begin: float, seconds: float, waiting: float, workers: int) -> None:
    """Snapshots of a stretch in which training waited for such a share of the time."""
    for step in range(int(seconds * 5)):
        us = loader.seq * 200_000
        times = Times(compute_us=int(us * (1 - waiting)), starvation_us=int(us * waiting))
        loader.snapshot(at=begin + step * 0.2, times=times, workers=workers)


def test_before_and_after_a_resize_in_one_loader(server: Running) -> None:
    begin = time.time() - 60
    with server.loader("resized") as loader:
        loader.events(EpochEvent(begin, "started", 0))
        tell(loader, begin, 20, 0.5, 2)
        loader.events(CommandEvent(begin + 20, "resize", "applied", before=2, actual=4))
        # Counters go on from where they are, at another pace.
        first = loader.seq * 200_000
        for step in range(100):
            gone = step * 200_000
            loader.snapshot(
                at=begin + 21 + step * 0.2,
                times=Times(compute_us=first // 2 + gone, starvation_us=first // 2),
                workers=4,
                batches=2 * loader.seq + 6 * step,
            )
        loader.acknowledged(loader.seq - 1)
        at = begin + 20
        found = server.get("/api/compare", a=f"{loader.id}@before:{at:.3f}", b=f"{loader.id}@after:{at:.3f}")
        whole = server.get("/api/compare", a="resized", b=f"{loader.id}@epoch:0")
    numbers = {each["name"]: each for each in found["numbers"]}
    assert (found["a"]["title"], found["b"]["title"]) == ("before 2 → 4 workers", "after 2 → 4 workers")
    assert (numbers["workers"]["a"], numbers["workers"]["b"]) == (2, 4)
    assert numbers["batches"]["a"] == pytest.approx(10, rel=0.1)
    assert numbers["batches"]["b"] == pytest.approx(40, rel=0.1)
    assert numbers["batches"]["brought"] == "better"
    assert numbers["waiting"]["a"] == pytest.approx(0.5, abs=0.05)
    assert found["b"]["verdict"]["limit"] == "training"
    assert found["sentence"].startswith("The second is faster: ")
    assert found["a"]["history"]["at"][-1] <= at + 0.5 < found["b"]["history"]["at"][0]
    assert whole["a"]["loader"] == loader.id
    assert whole["a"]["start"] == pytest.approx(begin, abs=1.0)


def test_two_runs_in_the_terminal(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, waiting in (("slow", 0.6), ("swift", 0.0)):
        with server.loader(run) as loader:
            tell(loader, time.time() - 30, 10, waiting, 2)
            loader.acknowledged(loader.seq - 1)
    monkeypatch.setenv("PENSTOCK_TOKEN", SECRETS["viewer"])
    assert main(["compare", "slow", "swift", "--url", server.url]) == 0
    said = capsys.readouterr().out
    assert "first   slow:0:train, all that is stored: Data-bound." in said
    assert "Training waits 0 % of the time instead of 60 %." in said
    assert ["Training", "waits", "for", "data", "60", "%", "0", "%", "−60", "points"] in [
        line.split() for line in said.splitlines()
    ]
    assert main(["compare", "slow", "nobody", "--url", server.url]) == 1
    assert "No loader and no run “nobody” is known." in capsys.readouterr().err
    assert main(["compare", "slow@epoch:9", "swift", "--url", server.url]) == 1
    assert "The beginning of epoch 9 is not stored; none is known." in capsys.readouterr().err
