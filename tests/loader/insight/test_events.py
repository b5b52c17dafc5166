"""Events and commands in words: the page, the terminal and exports show these and have none of their own."""

from __future__ import annotations

import pytest
from penstock.insight.commands import told
from penstock.insight.events import lines, tell
from penstock.protocol import (
    CommandEvent,
    CommandRecord,
    CommandState,
    EpochEvent,
    ErrorEvent,
    Event,
    Receipt,
    Spans,
    Stall,
    Transition,
    WorkerEvent,
)
from penstock.telemetry.ledger import CROWD, Ledger


@pytest.mark.parametrize(
    ("event", "text", "tone"),
    [
        (
            Stall(1.0, 830_000, 9, 0, 100, 2, "91723", 790_000),
            "Stall of 830 ms: batch 100 on worker 2 held back 9 finished batches; slowest sample 91723 took 790 ms",
            "plain",
        ),
        (
            Stall(1.0, 9_000_000, 9, 0, 100, 2, ongoing=True),
            "Stall of 9.0 s so far: batch 100 on worker 2 holds back 9 finished batches",
            "plain",
        ),
        (
            WorkerEvent(1.0, "died", 1, 7, -9, "SIGKILL", 977, True),
            "Worker 1 (pid 7) died at batch 977: SIGKILL; its tasks went to others",
            "bad",
        ),
        (WorkerEvent(1.0, "born", 0, 7, others=[(1, 8), (2, 9)]), "3 workers started", "plain"),
        (
            ErrorEvent(1.0, "collate_fn", "ValueError", "odd\nmore", batch=3, worker=1),
            "collate_fn failed in worker 1 at batch 3: ValueError: odd",
            "bad",
        ),
        (
            EpochEvent(1.0, "failed", 2, 7, "ValueError: 7\nmore"),
            "Epoch 2 failed after 7 batches: ValueError: 7",
            "bad",
        ),
        (
            CommandEvent(1.0, "resize", "applied", "laptop", "c1", before=2, actual=6, at_batch=5120, took_us=140_000),
            "Resize 2 → 6 applied at batch 5,120 in 140 ms by laptop",
            "good",
        ),
        (CommandEvent(1.0, "pause", "timed_out", "laptop", "c1"), "Pause timed out by laptop", "bad"),
        (Receipt(1.0, 2, 4, 10.0, 0.1, 50, brought="worse", text="Fewer"), "Fewer", "bad"),
        (Spans(1.0, 1.0, []), "", "plain"),
    ],
)
def test_an_event_in_words(event: Event, text: str, tone: str) -> None:
    assert tell(event)[:2] == (text, tone)


def test_short_stalls_and_births_in_a_row_are_one_line() -> None:
    shown = lines(
        [
            Stall(1.0, 4_000, 1, 0, 1),
            Stall(2.0, 6_000, 1, 0, 2),
            Stall(3.0, 830_000, 9, 0, 3),
            Stall(4.0, 9_000_000, 9, 0, 4, ongoing=True),
            Stall(4.0, 12_000_000, 9, 0, 4),
            WorkerEvent(5.0, "born", 0, 7, others=[(1, 8)]),
            WorkerEvent(6.0, "born", 2, 9),
        ]
    )
    said = [line.text for line in shown]
    assert said[0] == "3 workers started"
    assert said[1].startswith("Stall of 12 s"), "what was told while it lasted is told anew"
    assert said[2].startswith("Stall of 830 ms")
    assert said[3:] == ["2 short stalls, 10.0 ms in all"]


def test_a_crowd_that_starts_at_once_is_one_event_and_nobody_is_lost() -> None:
    ledger = Ledger()
    for number in range(64):
        ledger.worker("born", number, 1000 + number)
    ledger.worker("died", 3, 1003, -9)
    for number in range(CROWD - 1):
        ledger.worker("born", number, 2000 + number)
    crowd, death, *few = [event for event in ledger.take_events() if isinstance(event, WorkerEvent)]
    assert [(crowd.worker, crowd.pid), *crowd.others] == [(number, 1000 + number) for number in range(64)]
    assert (death.what, death.others) == ("died", [])
    assert [event.pid for event in few] == [2000 + number for number in range(CROWD - 1)]


@pytest.mark.parametrize(
    ("state", "phase", "head", "text"),
    [
        ("accepted", "asked", "Asked", "2 → 6 workers; on its way to the loader"),
        ("delivered", "under way", "Delivered", "2 → 6 workers; the loader is at it"),
        ("pending", "under way", "Pending", "2 → 6 workers; holds from the next epoch"),
        ("applied", "done", "Applied", "2 → 6 workers at batch 5,120 after 140 ms"),
        ("rejected", "failed", "Rejected", "2 → 6 workers: no reason given"),
        ("timed_out", "failed", "Timed out", "2 → 6 workers: the loader did not answer after 140 ms"),
        ("superseded", "failed", "Superseded", "2 → 6 workers: a newer command took its place"),
    ],
)
def test_a_command_in_words(state: CommandState, phase: str, head: str, text: str) -> None:
    """Nothing is called done before the loader says so."""
    asked = [Transition("accepted", 1.0)]
    record = CommandRecord("c", "r:0:t", "resize", "me", "here", state, asked, workers=6, before=2, took_us=140_000)
    if state == "applied":
        record = CommandRecord(
            "c",
            "r:0:t",
            "resize",
            "me",
            "here",
            state,
            asked,
            workers=6,
            before=2,
            actual=6,
            at_batch=5120,
            took_us=140_000,
        )
    found = told(record)
    assert (found.phase, found.head, found.text) == (phase, head, text)
