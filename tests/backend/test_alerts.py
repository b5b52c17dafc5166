"""Alerts: what is worth one, from when to when, and that whoever should be told is."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.protocol import Alert, Alerts, Errors
from penstock_dashboard.alerts import senders
from penstock_dashboard.alerts.book import MOST, AlertBook
from penstock_dashboard.alerts.rules import RULES, Rules, Seen
from penstock_dashboard.settings import AlertSettings, Settings

from tests.backend.harness import BRISK, serving, until
from tests.backend.receivers import receiver

FINE = Seen(
    lived=True,
    presence="connected",
    state="running",
    limit="training",
    sentence="",
    progress=(0, 0),
    waiting=False,
    rss=1e9,
    largest=5e8,
    workers=2,
    quarantined=0,
    error="",
)


class Story:
    """One loader, looked at every second of a clock of its own."""

    def __init__(self, **rules: Any) -> None:
        self.told: list[Alert] = []
        self.book = AlertBook(Rules(**rules), self.told.append)
        self.now = 1000.0

    def goes_on(self, seconds: int, batches: bool = True, growing: float = 0.0, **more: Any) -> list[str]:
        """Which rules hold at the end."""
        for _ in range(seconds):
            self.now += 1
            seen = msgspec.structs.replace(FINE, **{"rss": 1e9 + growing * self.now, **more})
            if batches:
                seen = msgspec.structs.replace(seen, progress=(0, int(self.now)))
            self.book.look("run:0:train", seen, self.now)
        return sorted(alert.rule for alert in self.book.alerts if alert.ended is None)


def test_nothing_is_said_of_a_training_that_is_well() -> None:
    story = Story()
    assert story.goes_on(3600) == []
    assert story.goes_on(10, presence="finished", state="finished") == []
    assert story.told == []


def test_waiting_for_data_is_told_after_five_minutes_without_a_break() -> None:
    story = Story()
    assert story.goes_on(200, limit="workers") == []
    assert story.goes_on(1) == []
    assert story.goes_on(299, limit="processors", sentence="Both are full.") == []
    assert story.goes_on(5, limit="workers", sentence="There are too few.") == ["data-bound"]
    assert story.told[0].text == "There are too few."
    assert story.goes_on(1, limit="training") == []
    assert [alert.ended is None for alert in story.told] == [True, False]


def test_a_stall_is_told_only_of_a_training_that_waits() -> None:
    story = Story()
    assert story.goes_on(300, batches=False, waiting=False) == []  # it validates, or saves
    assert story.goes_on(50, batches=False, waiting=True) == []
    assert story.goes_on(20, batches=False, waiting=True) == ["stalled"]
    assert story.goes_on(1, waiting=True) == []
    assert story.goes_on(300, batches=False, state="paused", waiting=True) == []


def test_lost_and_failed_are_told_at_once_and_not_of_those_that_were_gone_before() -> None:
    story = Story()
    story.goes_on(1)
    assert story.goes_on(1, presence="lost") == ["lost"]
    assert story.goes_on(1) == []
    assert story.goes_on(1, state="failed", error="ValueError: torn") == ["failed"]
    assert "torn" in story.told[-1].text
    restarted = Story()
    assert restarted.goes_on(100, presence="lost", lived=False) == []
    assert restarted.goes_on(1) == []
    assert restarted.goes_on(1, presence="lost") == ["lost"]


def test_memory_that_only_grows_is_told_but_not_a_sawtooth_or_a_larger_pool() -> None:
    assert Story().goes_on(700, growing=1e6) == ["memory"]
    assert Story().goes_on(700, growing=1e3) == []
    one = Story()
    for minute in range(12):
        one.goes_on(60, largest=1e8 * (1 + minute / 10))
    assert [alert.text for alert in one.told] == ["One worker's memory has grown by 100% over 10 minutes."]
    sawtooth = Story()
    for _ in range(20):
        assert sawtooth.goes_on(50, growing=1e6) == []
        assert sawtooth.goes_on(20, rss=1e9) == []
    resized = Story()
    assert resized.goes_on(400, growing=1e6) == []
    assert resized.goes_on(400, growing=1e6, workers=4) == []


def test_quarantine_is_told_with_its_number_and_rules_can_be_left_out() -> None:
    story = Story()
    assert story.goes_on(1, quarantined=1) == ["quarantine"]
    assert story.goes_on(1, quarantined=3) == ["quarantine"]
    assert len(story.told) == 1
    assert story.book.alerts[0].text == "3 samples are in quarantine."
    assert Story(on=frozenset(("lost",))).goes_on(400, quarantined=1, limit="workers") == []


def test_a_cluster_that_goes_down_at_once_does_not_fill_the_book() -> None:
    book = AlertBook(Rules(), lambda _: None)
    for rank in range(2 * MOST):
        book.look(f"run:{rank}:train", FINE, 1.0)
        book.look(f"run:{rank}:train", msgspec.structs.replace(FINE, presence="lost"), 2.0)
    assert len(book.alerts) == MOST
    assert book.alerts[0].loader == f"run:{2 * MOST - 1}:train"
    assert book.forget(book.alerts[0].loader, 3.0)
    assert book.alerts[0].ended is None
    assert book.sweep(1e6)


def test_more_alerts_than_are_shown_are_told_once_each() -> None:
    told: list[Alert] = []
    book, lost = AlertBook(Rules(), told.append), msgspec.structs.replace(FINE, presence="lost")
    loaders = [f"run:{rank}:train" for rank in range(MOST + 3)]
    for loader in loaders:
        book.look(loader, FINE, 1.0)
    for at in (2.0, 3.0, 4.0):
        for loader in loaders:
            book.look(loader, lost, at)
    assert [alert.loader for alert in told] == loaders
    for loader in loaders:
        book.look(loader, FINE, 5.0)
    assert [alert.loader for alert in told if alert.ended is not None] == loaders
    assert len(book.alerts) == MOST


@given(st.lists(st.sampled_from(["connected", "stale", "lost", "finished"]), max_size=30))
def test_each_alert_begins_once_and_ends_at_most_once(presences: list[Any]) -> None:
    told: list[Alert] = []
    book = AlertBook(Rules(), told.append)
    for at, presence in enumerate(presences):
        book.look("run:0:train", msgspec.structs.replace(FINE, presence=presence), float(at))
    begun = [alert.id for alert in told if alert.ended is None]
    ended = [alert.id for alert in told if alert.ended is not None]
    assert len(set(begun)) == len(begun) and len(set(ended)) == len(ended)
    assert set(ended) <= set(begun)
    assert {alert.id for alert in book.alerts if alert.ended is None} == set(begun) - set(ended)


class Relay:
    """One loader that two replicas look at in turn; each hears what the other changes."""

    def __init__(self) -> None:
        self.told: list[Alert] = []
        self.books = [AlertBook(Rules(), self.told.append, writer) for writer in range(2)]
        self.now = 1000.0

    def goes_on(self, who: int, seconds: int = 1, **more: Any) -> list[str]:
        """Which rules hold at the end; both agree."""
        for _ in range(seconds):
            self.now += 1
            progress = (0, int(self.now))
            self.books[who].look("run:0:train", msgspec.structs.replace(FINE, progress=progress, **more), self.now)
            self.books[1 - who].leave("run:0:train")
            for alert in self.books[who].take_news():
                assert self.books[1 - who].learn(alert)
                assert not self.books[1 - who].learn(alert), "a second time is no news"
        assert self.books[0].alerts == self.books[1].alerts
        return [alert.rule for alert in self.books[0].holding]


def test_what_one_replica_saw_for_minutes_goes_on_at_another_that_has_seen_nothing_yet() -> None:
    relay = Relay()
    assert relay.goes_on(0, 310, limit="workers") == ["data-bound"]
    assert relay.goes_on(1, 5, limit="none") == ["data-bound"]
    assert relay.goes_on(1, 5, limit="workers") == ["data-bound"]
    assert relay.goes_on(0, 5, limit="none") == ["data-bound"]
    assert len(relay.told) == 1
    assert relay.goes_on(0, limit="training") == []
    assert [alert.ended is None for alert in relay.told] == [True, False]
    assert relay.goes_on(1, presence="lost", lived=False) == [], "it was gone before"
    relay.goes_on(0, presence="lost")
    assert relay.goes_on(1, presence="lost", lived=False) == ["lost"], "whoever looks next goes on with what holds"


@given(st.lists(st.tuples(st.sampled_from(["connected", "stale", "lost", "finished"]), st.integers(0, 1)), max_size=30))
def test_whoever_looks_each_alert_is_told_once_and_its_end_once(steps: list[tuple[Any, int]]) -> None:
    relay = Relay()
    for presence, who in steps:
        relay.goes_on(who, presence=presence)
    told = [(alert.id, alert.ended is None) for alert in relay.told]
    assert len(set(told)) == len(told)
    assert [begins for _, begins in told] == [place % 2 == 0 for place in range(len(told))]


def test_an_alert_that_two_began_at_once_is_shown_once() -> None:
    first, second = (AlertBook(Rules(), lambda _: None, writer) for writer in (1, 2))
    for book in (first, second):
        book.look("run:0:train", msgspec.structs.replace(FINE, presence="lost"), 5.0)
    mine, theirs = first.take_news(), second.take_news()
    assert mine[0].id != theirs[0].id
    assert not first.learn(theirs[0]) and second.learn(mine[0])
    assert first.alerts == second.alerts == mine


def test_page_webhook_and_command_are_told_of_a_loader_that_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "PAUSE", 0.01)
    note = folder / "told.jsonl"
    script = folder / "note.py"
    script.write_text(
        "import os, sys\n"
        f"open({str(note)!r}, 'a').write(sys.stdin.read() + '\\n')\n"
        "assert os.environ['PENSTOCK_ALERT_RULE'] == 'failed'\n"
    )
    with receiver([500, 302]) as (url, heard):
        alerts = AlertSettings(webhooks=(url,), commands=(f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}",))
        settings = Settings(data=folder / "data", timing=BRISK, alerts=alerts)
        with serving(settings, folder) as server, server.loader("alerted") as loader, server.viewer() as viewer:
            assert viewer.alerts.alerts == []
            loader.snapshot()
            until(lambda: server.backend.registry.get(loader.id).brief, "the first snapshot")  # type: ignore[union-attr]
            assert server.get("/api/alerts")["alerts"] == []
            server.call(server.backend.lookout.look)
            loader.snapshot(state="failed", errors=Errors(1, 1.0, "ValueError: torn", fatal=True))
            shown = viewer.expect(Alerts)
            assert [(alert.rule, alert.loader, alert.ended) for alert in shown.alerts] == [("failed", loader.id, None)]
            assert "torn" in shown.alerts[0].text
            until(lambda: heard, "the webhook, after two refusals")
            assert (heard[0]["state"], heard[0]["alert"]["rule"]) == ("firing", "failed")
            assert heard[0]["url"] == f"{server.url}/#/loader/alerted%3A0%3Atrain"
            until(lambda: note.exists() and note.read_text().endswith("\n"), "the command")
            assert json.loads(note.read_text())["alert"]["loader"] == loader.id
            loader.snapshot(state="running")
            until(lambda: any(told["state"] == "ended" for told in heard), "its end")
            assert server.get("/api/alerts")["alerts"][0]["ended"] is not None


def test_a_loader_that_fails_before_anybody_looked_is_told_and_not_again_after_a_restart(folder: Path) -> None:
    settings = Settings(data=folder / "data", timing=BRISK)
    with serving(settings, folder) as server, server.loader("short") as loader:
        loader.snapshot(state="failed", errors=Errors(1, 1.0, "ValueError: torn", fatal=True))
        until(lambda: server.get("/api/alerts")["alerts"], "the alert")
        loader.goodbye()
    with serving(settings, folder) as server:
        server.call(server.backend.lookout.look)
        assert server.backend.registry.get("short:0:train").state == "failed"  # type: ignore[union-attr]
        assert server.get("/api/alerts")["alerts"] == []
        with server.loader("short", incarnation="second") as loader:
            loader.snapshot(state="failed", errors=Errors(1, 1.0, "ValueError: torn again", fatal=True))
            until(lambda: server.get("/api/alerts")["alerts"], "the alert of the next training")


def test_one_who_cannot_be_told_is_named_and_a_command_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "PAUSE", 0.01)
    monkeypatch.setattr(senders, "PATIENCE", 0.2)
    hanging = senders.Sender(senders.Command("sleep 3600"))
    hanging.put(senders.Told("firing", Alert(1, "run:0:train", "lost", 1.0, "It is silent."), ""))
    until(lambda: "did not end" in hanging.problem, "the hanging command's end")
    hanging.stop()
    refused = senders.Sender(senders.Webhook("http://127.0.0.1:1/"))
    refused.put(senders.Told("firing", Alert(1, "run:0:train", "lost", 1.0, "It is silent."), ""))
    until(lambda: "refused" in refused.problem, "the reason")
    refused.stop()


def test_a_command_that_has_ended_is_not_killed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be somebody else's by then."""
    killed: list[int] = []
    target = senders.Command("true")
    target.send(senders.Told("firing", Alert(1, "run:0:train", "lost", 1.0, "It is silent."), ""))
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    target.stop()
    assert killed == []


def test_all_rules_are_known_to_the_command_line() -> None:
    import argparse

    from penstock_dashboard.dashboard import _command, _rules, _webhook

    assert _rules(",".join(RULES)).on == frozenset(RULES)
    assert _rules("data-bound=10m,lost") == Rules(frozenset(("data-bound", "lost")), data_bound=600.0)
    assert _rules("none").on == frozenset()
    for wrong in ("lots", "lost=5m", "stalled=soon"):
        with pytest.raises(argparse.ArgumentTypeError):
            _rules(wrong)
    with pytest.raises(argparse.ArgumentTypeError, match="no command"):
        _command("there-is-no-such-command --now")
    with pytest.raises(argparse.ArgumentTypeError, match="address"):
        _webhook("file:///etc/passwd")
