"""`penstock resize`, `pause` and `resume`: what scripts rely on."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from penstock_dashboard.ports import listen

from tests.backend.harness import Running, until
from tests.backend.terminal.conftest import Call, Train, present
from tests.patience import PATIENCE
from tests.recorded.replay import Fleet


def test_a_run_is_resized_on_all_ranks_and_the_outcome_printed(server: Running, train: Train, call: Call) -> None:
    ranks = [train("wide", rank=rank, world_size=2) for rank in range(2)]
    status, out, _ = call("resize", "wide", "6")
    assert status == 0
    for rank in range(2):
        assert re.search(rf"(?m)^wide:{rank}:train: 2 → 6, applied at batch [\d,]+ after [\d.]+ (m?s|µs)$", out)
    for each in ranks:
        present(server, each.id, 6)


def test_one_loader_is_addressed_in_each_way(server: Running, train: Train, call: Call) -> None:
    both = [train("ways", rank=rank, world_size=2) for rank in range(2)]
    train("ways", name="val")
    for target in ("ways/1/train", "ways:1:train"):
        status, out, _ = call("resize", target, "3", "--json")
        answer = json.loads(out)
        assert status == 0
        assert [(command["loader"], command["state"]) for command in answer["commands"]] == [
            ("ways:1:train", "applied")
        ]
    _, out, _ = call("pause", "ways/train", "--resume-after", "600", "--json")
    told = {command["loader"]: command["resume_after"] for command in json.loads(out)["commands"]}
    assert told == {"ways:0:train": 600.0, "ways:1:train": 600.0}
    assert call("resume", "ways/train")[0] == 0
    states = (server.get(f"/api/loaders/{each.id}")["row"]["state"] for _ in itertools.count() for each in both)
    until(lambda: (next(states), next(states)) == ("running", "running"), "the end of the pause")


def test_an_unknown_name_gets_the_names_there_are(server: Running, fleet: Fleet, call: Call) -> None:
    present(server, fleet.replay("busy", run="known").id, 4)
    for action in ("pause", "resume"):
        for target in ("known/trian", "train", "known/7/train"):
            status, out, err = call(action, target)
            assert (status, out) == (1, "")
            assert f"no loader {target}; there is known/train" in err


def test_what_cannot_be_done_is_an_error(server: Running, fleet: Fleet, call: Call) -> None:
    unwilling = fleet.replay("waiting", run="unwilling")
    present(server, unwilling.id, 2)
    unwilling.refusing = "no room"
    status, out, _ = call("resize", "unwilling/train", "3")
    assert (status, out) == (1, "unwilling:0:train: 2 → 3, rejected: no room\n")
    status, _, err = call("resize", "unwilling", "500")
    assert status == 1
    assert "may have at most 32 workers" in err
    status, _, err = call("pause", "unwilling", token="viewer")
    assert status == 1
    assert "does not have the scope “control”" in err


def test_what_holds_from_the_next_epoch_on_is_told_as_pending(train: Train, call: Call) -> None:
    train("stream", stream=True, workers=3)
    status, out, _ = call("resize", "stream", "5")
    assert (status, out) == (0, "stream:0:train: 3 → 5, pending: holds from the next epoch\n")


def test_no_wait_returns_with_the_command_under_way(server: Running, fleet: Fleet, call: Call) -> None:
    present(server, fleet.replay("waiting", run="hasty").id, 2)
    status, out, _ = call("resize", "hasty", "3", "--no-wait")
    assert (status, out) == (0, "hasty:0:train: 2 → 3, asked: on its way to the loader\n")


def test_a_finished_loader_of_the_run_is_no_error(server: Running, train: Train, call: Call) -> None:
    done = train("mixed", name="val")
    train("mixed")
    done.end()
    until(lambda: server.get("/api/loaders/mixed:0:val")["row"]["presence"] == "finished", "its goodbye")
    status, out, err = call("pause", "mixed")
    assert status == 0
    assert "mixed:0:train: pause, applied" in out
    assert "mixed:0:val: The training has finished" in err


def test_usage_and_an_absent_dashboard_have_statuses_of_their_own(call: Call) -> None:
    assert call("resize", "run/train")[0] == 2
    assert call("resize", "run/train", "many")[0] == 2
    assert call("pause", "a/b/c/d")[0] == 2
    assert call("pause", "run", url="ftp://elsewhere")[0] == 2
    with listen("127.0.0.1", 0) as unused:
        port = unused.getsockname()[1]
    status, _, err = call("pause", "run", url=f"http://127.0.0.1:{port}")
    assert status == 3
    assert "does not answer" in err


@pytest.fixture
def forgetful(server: Running) -> Iterator[str]:
    """The address of a way to the server on which the first answer is lost."""
    listener = listen("127.0.0.1", 0)
    listener.settimeout(PATIENCE)
    threading.Thread(target=_forward, args=(listener, server.port), daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def _forward(listener: socket.socket, port: int) -> None:
    answers = 0
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        with caller, socket.create_connection(("127.0.0.1", port)) as server:
            server.settimeout(PATIENCE)
            caller.settimeout(PATIENCE)
            request = b""
            while not _complete(request):
                request += caller.recv(65536)
            # The server allows only the names it knows itself by.
            server.sendall(
                re.sub(rb"(?i)host: [^\r]+", b"Host: 127.0.0.1:%d\r\nConnection: close" % port, request, count=1)
            )
            answer = b""
            while part := server.recv(65536):
                answer += part
            answers += 1
            if answers > 1:
                caller.sendall(answer)


def _complete(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def test_an_order_whose_answer_was_lost_is_not_given_twice(
    server: Running, train: Train, call: Call, forgetful: str
) -> None:
    train("once")
    status, out, err = call("resize", "once", "4", url=forgetful)
    assert status == 0, err
    assert "2 → 4, applied" in out
    assert len(server.get("/api/loaders/once:0:train/commands")) == 1


def test_the_tuner_is_switched_on_and_off(server: Running, train: Train, call: Call) -> None:
    """It begins with two workers that are too few, and a resize pins what it has found."""
    tuned = train("tuned", max_workers=8)

    def state() -> str | None:
        found = server.get(f"/api/loaders/{tuned.id}")["snapshot"]["tuned"]
        return None if found is None else str(found["state"])

    status, out, _ = call("auto", "tuned/train", "on")
    assert status == 0
    assert re.fullmatch(r"tuned:0:train: autotune on, applied after [\d.]+ (m?s|µs)\n", out)
    until(lambda: any(row["event"]["what"] == "keep" for row in events(server, tuned.id)), "a number that is kept")
    assert call("resize", "tuned/train", "3")[0] == 0
    until(lambda: state() == "pinned", "the pin")
    assert call("auto", "tuned", "off")[0] == 0
    until(lambda: state() is None, "its end")
    assert call("auto", "tuned", "maybe")[0] == 2


def events(server: Running, loader: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"/api/loaders/{loader}/events", kind="tuning")
    return found
