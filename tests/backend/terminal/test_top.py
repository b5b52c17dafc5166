"""`penstock top` in a real terminal, over a real backend."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from penstock.protocol import Command

from tests.backend.harness import SECRETS, Running, dashboard, environment, until
from tests.backend.terminal.conftest import Train
from tests.backend.terminal.screen import COLOUR, LAUNCH, Screen, screen
from tests.recorded.replay import Fleet

ENTER, ESCAPE, DOWN, CTRL_C = "\r", "\x1b", "\x1b[B", "\x03"
LEFT_THE_SCREEN = b"\x1b[?25h\x1b[?1049l"


@pytest.fixture
def as_local(server: Running) -> dict[str, str]:
    return {"PENSTOCK_URL": server.url, "PENSTOCK_TOKEN": SECRETS["local"]}


def batch(shown: Screen) -> int:
    return int(shown.shows(r"batch ([\d,]+) of")[1].replace(",", ""))


def commands(server: Running, loader: str) -> list[str]:
    return [command["action"] for command in server.get(f"/api/loaders/{loader}/commands")]


def test_a_loader_is_chosen_opened_and_left(fleet: Fleet, as_local: dict[str, str]) -> None:
    fleet.replay("busy", run="first", past=5.0)
    fleet.replay("waiting", run="first", name="val", past=5.0)
    with screen("top", "first", **as_local) as shown:
        shown.shows(r"› first/train +running +4 ")
        shown.press("j")
        shown.shows(r"› first/val +running +2 ")
        shown.press("k" + DOWN + ENTER)
        shown.shows(r"first/val +rank 0 of 1")
        shown.shows(
            r"compute \d+ % +. starvation \d+ % +. reorder stall \d+ % +. pin wait \d+ %\n. paused \d+ % +. startup"
        )
        shown.shows(r"Sampler +→ +Index +→ +▶?Workers +→ +▶?Reorder +→ +▶?Pin +→ +Data +→ +▶?Training")
        shown.shows(r"(?m)^0 +\d+ +\w+ ")
        assert COLOUR.search(shown.output)
        seen = batch(shown)
        until(lambda: batch(shown) > seen, "the numbers to move")
        assert all(len(line) <= 80 for line in shown.lines)
        shown.resize(150, 45)
        shown.shows(r"Reorder buffer +→")
        shown.press("?")
        shown.shows("pause or resume")
        shown.press("x" + ESCAPE)
        shown.shows("› first/val")


def test_pause_and_resize_show_what_came_of_them(train: Train, as_local: dict[str, str]) -> None:
    train("steered")
    with screen("top", "steered/train", **as_local) as shown:
        shown.shows("Nothing has been asked yet")
        shown.press("++")
        shown.shows("Workers 2 → 4 +Enter applies")
        shown.press(ESCAPE)
        shown.shows(r"Workers 2 +\+ or -")
        shown.press("++" + ENTER)
        shown.shows(r"Applied: 2 → 4 workers at batch [\d,]+ after [\d.]+ m?s\.")
        shown.shows(r"Workers 4 +\+ or -")
        shown.shows(r"(?m)^3 +\d+ +\w+ ")
        shown.press("p")
        shown.shows(r"Applied: pause at batch")
        shown.shows(r"(?m)^paused ")
        shown.shows("Paused. No new task is taken up")
        shown.press("p")
        shown.shows(r"Applied: resume at batch")
        shown.shows(r"(?m)^running ")


def test_nothing_is_called_done_before_the_loader_says_so(fleet: Fleet, as_local: dict[str, str]) -> None:
    silent = fleet.replay("waiting", run="silent", past=2.0)
    with screen("top", "silent", **as_local) as shown:
        shown.shows("Nothing has been asked yet")
        shown.press("+" + ENTER)
        shown.shows("Asked: 2 → 3 workers; on its way to the loader")
        shown.shows("Workers 2 → 3 +applying …")
        seen = batch(shown)
        until(lambda: batch(shown) > seen + 10, "time to pass")
        assert "Applied" not in shown.text and "Workers 2" in shown.text
        silent.refusing = "no room for it"
        shown.press("+" + ENTER)
        shown.shows("Rejected: 2 → 4 workers: no room for it")


def test_a_token_that_may_only_view_is_told_why_keys_are_off(server: Running, fleet: Fleet) -> None:
    fleet.replay("waiting", run="viewed", past=2.0)
    with screen("top", "viewed", PENSTOCK_URL=server.url, PENSTOCK_TOKEN=SECRETS["viewer"]) as shown:
        shown.shows("Read-only: the dashboard was started with --read-only, or your token may only")
        shown.press("p++" + ENTER)
        shown.press("p")
        shown.shows("These keys are off")
        assert "→ 3" not in shown.text
    assert commands(server, "viewed:0:train") == []


@pytest.mark.parametrize(("ending", "status"), [("q", 0), (CTRL_C, 130), (signal.SIGTERM, 143)])
def test_the_terminal_is_given_back(
    ending: str | signal.Signals, status: int, fleet: Fleet, as_local: dict[str, str]
) -> None:
    fleet.replay("waiting", run=f"ending-{status}", past=2.0)
    with screen("top", f"ending-{status}", **as_local) as shown:
        shown.shows("Workers 2")
        assert shown.settings != shown.before
        if isinstance(ending, str):
            shown.press(ending)
        else:
            shown.process.send_signal(ending)
        assert shown.ended() == status
        assert shown.settings == shown.before
        assert shown.output.endswith(LEFT_THE_SCREEN)


def test_the_terminal_is_given_back_when_something_fails() -> None:
    failing = "from penstock_dashboard.terminal.tty import Terminal\nwith Terminal(): raise RuntimeError('on purpose')"
    with screen(code=LAUNCH + failing) as shown:
        assert shown.ended() == 1
        assert shown.settings == shown.before
        _, _, after = shown.output.rpartition(LEFT_THE_SCREEN)
        assert b"on purpose" in after


def test_no_colours_where_they_are_not_wanted(fleet: Fleet, as_local: dict[str, str]) -> None:
    fleet.replay("waiting", run="plain", past=5.0)
    for more, escapes in (({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False)):
        with screen("top", "plain", **as_local, **more) as shown:
            shown.shows("Workers 2")
            shown.shows("# compute")
            assert not COLOUR.search(shown.output)
            assert (b"\x1b" in shown.output) == escapes
            shown.press("q")
            assert shown.ended() == 0


def test_what_others_wrote_is_not_obeyed_by_the_terminal(server: Running, as_local: dict[str, str]) -> None:
    with server.loader("rude") as loader:
        loader.snapshot()
        with screen("top", "rude", **as_local) as shown:
            shown.shows("Nothing has been asked yet")
            shown.press("+" + ENTER)
            command = loader.expect(Command)
            loader.outcome(command, "rejected", reason="\x1b[2J\x1b]0;owned\x07no")
            shown.shows(r"Rejected: 2 → 3 workers: .*owned no")
            assert b"\x1b]0;owned" not in shown.output


def test_it_comes_back_by_itself_when_the_dashboard_does(tmp_path: Path) -> None:
    home = environment(tmp_path)
    paths = {name: home[name] for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME")}
    with dashboard(tmp_path) as first:
        with first.loader("lasting") as loader:
            loader.snapshot()
            loader.acknowledged(0)
        with screen("top", **paths) as shown:  # found by its discovery file
            shown.shows("› lasting/train")
            first.stop()
            shown.shows("not connected")
            with dashboard(tmp_path) as second, second.loader("newer") as loader:
                loader.snapshot()
                shown.shows("newer/train")
                shown.shows("lasting/train")
                assert "not connected" not in shown.text


def test_it_says_what_to_start_when_there_is_no_dashboard(tmp_path: Path) -> None:
    home = environment(tmp_path)
    with screen("top", **{name: home[name] for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME")}) as shown:
        assert shown.ended() == 3
        shown.shows("no dashboard runs on this machine. Start one with `penstock dash")
        assert b"\x1b" not in shown.output
