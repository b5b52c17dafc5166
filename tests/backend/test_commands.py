"""Commands, from who asked to what came of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock.protocol import Command, Config, Pause, Resize
from penstock_dashboard.settings import Limits, Settings

from tests.backend.harness import BRISK, Address, Running, serving, until


def order(server: Address, identifier: str, key: str | None = None, **body: Any) -> Any:
    with server.http() as client:
        headers = {"Idempotency-Key": key} if key else {}
        return client.post(f"/api/loaders/{identifier}/commands", json=body, headers=headers)


def states(server: Address, identifier: str) -> list[str]:
    return [step["state"] for step in server.get(f"/api/commands/{identifier}")["transitions"]]


def becomes(server: Address, identifier: str, state: str) -> Any:
    return until(
        lambda: (found := server.get(f"/api/commands/{identifier}"))["state"] == state and found,
        f"the state {state}",
    )


def test_a_command_is_accepted_delivered_and_applied(server: Running) -> None:
    with server.loader("obeys") as loader:
        loader.snapshot()
        loader.acknowledged(0)
        answer = order(server, loader.id, action="resize", workers=6)
        assert answer.status_code == 202
        record = answer.json()
        assert record["state"] == "accepted" and record["before"] == 2
        assert answer.headers["location"] == f"/api/commands/{record['id']}"
        command = loader.expect(Command)
        assert (command.order, command.by) == (Resize(6), "local")
        loader.outcome(command, "delivered")
        loader.outcome(command, "applied", actual=6, at_batch=5120, took_us=140_000)
        found = becomes(server, record["id"], "applied")
        assert [step["state"] for step in found["transitions"]] == ["accepted", "delivered", "applied"]
        assert (found["actual"], found["at_batch"]) == (6, 5120)
        assert (found["by"], found["origin"]) == ("local", "127.0.0.1")
        assert found["took_us"] > 0


def test_a_loader_may_answer_at_once_or_refuse(server: Running) -> None:
    with server.loader("refuses") as loader:
        record = order(server, loader.id, action="pause", resume_after=60).json()
        command = loader.expect(Command)
        assert command.order == Pause(60)
        loader.outcome(command, "rejected", reason="an epoch is being abandoned")
        found = becomes(server, record["id"], "rejected")
        assert states(server, record["id"]) == ["accepted", "delivered", "rejected"]
        assert found["reason"] == "an epoch is being abandoned"
        loader.outcome(command, "applied")  # a final state is final
        loader.acknowledged(loader.events())
        assert server.get(f"/api/commands/{record['id']}")["state"] == "rejected"


def test_pending_until_the_next_epoch(server: Running) -> None:
    with server.loader("iterable") as loader:
        record = order(server, loader.id, action="resize", workers=4).json()
        command = loader.expect(Command)
        loader.outcome(command, "delivered")
        loader.outcome(command, "pending")
        becomes(server, record["id"], "pending")
        loader.outcome(command, "applied", actual=4, at_batch=0)
        becomes(server, record["id"], "applied")


def test_the_same_key_is_the_same_command(server: Running) -> None:
    with server.loader("idempotent") as loader:
        first = order(server, loader.id, "key-1", action="resize", workers=3).json()
        again = order(server, loader.id, "key-1", action="resize", workers=3).json()
        assert again["id"] == first["id"]
        other = order(server, loader.id, "key-1", action="resize", workers=4)
        assert other.status_code == 422
        assert other.json()["type"].endswith("idempotency-key-reused")
        assert loader.expect(Command).id == first["id"]
        assert len(server.get(f"/api/loaders/{loader.id}/commands")) == 1


def test_the_key_holds_across_a_restart(folder: Path) -> None:
    settings = Settings(data=folder / "data", timing=BRISK)
    with serving(settings, folder) as server, server.loader() as loader:
        first = order(server, loader.id, "again", action="pause").json()
    with serving(settings, folder) as server, server.loader() as loader:
        assert order(server, loader.id, "again", action="pause").json()["id"] == first["id"]
        assert loader.expect(Command).id == first["id"], "and what was under way is delivered"


def test_a_loader_that_comes_back_in_time_still_gets_its_command(server: Running) -> None:
    with server.loader("blinks") as loader:
        loader.snapshot()
        loader.acknowledged(0)
    record = order(server, "blinks:0:train", action="pause").json()
    with server.loader("blinks") as again:
        command = again.expect(Command)
        assert command.id == record["id"]
        again.outcome(command, "applied")
        becomes(server, record["id"], "applied")


def test_a_command_that_nobody_takes_times_out(folder: Path) -> None:
    timing = msgspec.structs.replace(BRISK, reconnect=0.5)
    with serving(Settings(timing=timing), folder) as server, server.loader() as loader:
        silent = order(server, loader.id, action="pause").json()
        assert "did not take it" in becomes(server, silent["id"], "timed_out")["reason"]


def test_a_command_without_an_outcome_times_out(folder: Path) -> None:
    timing = msgspec.structs.replace(BRISK, outcome=0.5)
    with serving(Settings(timing=timing), folder) as server, server.loader() as loader:
        taken = order(server, loader.id, action="resize", workers=1).json()
        command = loader.expect(Command)
        assert command.id == taken["id"]
        loader.outcome(command, "delivered")
        assert "no outcome" in becomes(server, taken["id"], "timed_out")["reason"]


def test_a_newer_command_supersedes_an_older_one_that_was_not_taken(server: Running) -> None:
    with server.loader("superseded") as loader:
        first = order(server, loader.id, action="resize", workers=3).json()
        pause = order(server, loader.id, action="pause").json()
        second = order(server, loader.id, action="resize", workers=5).json()
        assert states(server, first["id"]) == ["accepted", "superseded"]
        assert states(server, pause["id"]) == ["accepted"]
        assert states(server, second["id"]) == ["accepted"]


def test_what_is_under_way_ends_with_the_loader(server: Running) -> None:
    with server.loader("ends") as loader:
        record = order(server, loader.id, action="pause").json()
        loader.goodbye()
        assert "ended" in becomes(server, record["id"], "timed_out")["reason"]
        assert order(server, loader.id, action="pause").status_code == 409


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"action": "resize"}, "workers"),
        ({"action": "resize", "workers": 0}, "workers"),
        ({"action": "resize", "workers": -3}, "workers"),
        ({"action": "resize", "workers": 65}, "workers"),
        ({"action": "resize", "workers": 1e300}, "workers"),
        ({"action": "resize", "workers": "many"}, "workers"),
        ({"action": "pause", "workers": 3}, "workers"),
        ({"action": "pause", "resume_after": 0}, "resume_after"),
        ({"action": "pause", "resume_after": 1e9}, "resume_after"),
        ({"action": "resume", "resume_after": 5}, "resume_after"),
        ({"action": "explode"}, "action"),
        ({"action": "pause", "extra": 1}, "extra"),
        ({}, "action"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused_with_the_field(server: Running, body: Any, field: str) -> None:
    with server.loader("picky") as loader:
        answer = order(server, loader.id, **body)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["errors"][0]["field"] == field


def test_a_loader_without_control_takes_no_commands(server: Running) -> None:
    with server.loader("closed", config=Config(control=False)) as loader:
        answer = order(server, loader.id, action="pause")
        assert answer.status_code == 409
        assert "allow_control" in answer.json()["detail"]


def test_a_run_wide_command_reaches_every_rank_and_reports_each(server: Running) -> None:
    with (
        server.loader("wide", rank=0) as first,
        server.loader("wide", rank=1) as second,
        server.loader("wide", rank=2, config=Config(control=False)),
        server.loader("wide", name="val") as val,
        server.http() as client,
    ):
        body = {"action": "resize", "workers": 4, "name": "train"}
        headers = {"Idempotency-Key": "wide-1"}
        answer = client.post("/api/runs/wide/commands", json=body, headers=headers)
        assert answer.status_code == 202
        result = answer.json()
        assert {record["loader"] for record in result["commands"]} == {first.id, second.id}
        assert [refused["loader"] for refused in result["refused"]] == ["wide:2:train"]
        again = client.post("/api/runs/wide/commands", json=body, headers=headers).json()
        assert {record["id"] for record in again["commands"]} == {record["id"] for record in result["commands"]}
        for loader in (first, second):
            command = loader.expect(Command)
            loader.outcome(command, "applied", actual=4)
        for record in result["commands"]:
            assert becomes(server, record["id"], "applied")["group"] == result["group"]
        assert len(server.get("/api/runs/wide/commands")) == 2
        assert not [message for message in val.received if isinstance(message, Command)]
        assert client.post("/api/runs/nowhere/commands", json={"action": "pause"}).status_code == 404


def test_a_restart_of_the_same_training_takes_over_what_is_under_way(server: Running) -> None:
    with server.loader("reborn") as loader:
        record = order(server, loader.id, action="pause").json()
        loader.expect(Command)
    with server.loader("reborn", incarnation="second", started=time.time()) as again:
        assert again.expect(Command).id == record["id"]


def test_commands_are_rate_limited(folder: Path) -> None:
    limits = Limits(commands=5, command_rate=0.01, open_commands=1000)
    with serving(Settings(timing=BRISK, limits=limits), folder) as server, server.loader() as loader:
        answers = [order(server, loader.id, action="pause") for _ in range(8)]
        assert [answer.status_code for answer in answers] == [202] * 5 + [429] * 3
        assert int(answers[-1].headers["retry-after"]) >= 1
