"""Whatever happens to an agent, its workers or the way to it: the stream stays exact, and nothing is left there."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from penstock import Agents
from penstock.agent import handshake
from penstock.agent.service import MOST_STRANGERS
from penstock.pool.crews.remote import crew as remote_crew
from penstock.pool.crews.remote import dialing, link
from penstock.protocol import Pause, Resize

from tests.loader.agent.agents import SECRET, Agent, agents, remote
from tests.loader.agent.runs import TRAINING, Cable, Run, lost
from tests.loader.scenarios import Loaders, await_workers, kill, parent_of, plain, worker_pids
from tests.loader.support import Samples, Scripts, descendants, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    made = Loaders()
    yield made
    made.close()


def session_of(worker: int) -> int:
    return parent_of(parent_of(worker))


# -- deaths -------------------------------------------------------------------------------------------------------


@lost
@pytest.mark.parametrize("what", ["worker", "zygote", "session", "agent"])
def test_a_death_over_there_changes_nothing(loaders: Loaders, tmp_path: Path, what: str) -> None:
    with agents(2) as started:
        run = Run(loaders, tmp_path, remote(started))
        worker = next(pid for pid in run.pids if pid in descendants(started[0].pid))
        victims = {"worker": worker, "zygote": parent_of(worker), "session": session_of(worker)}
        kill(victims.get(what, started[0].pid))
        wait_until(lambda: worker not in worker_pids(run.loader), "the news of its death")
        await_workers(run.loader, 2)
        run.finish()
        run.loader.close()
        wait_until(lambda: not descendants(started[0].pid), "the end of what it had started")


@lost
def test_an_agent_that_comes_back_has_workers_again(
    loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_crew, "ALONE", PATIENCE)
    with agents(1) as started:
        run = Run(loaders, tmp_path, remote(started))
        kill(started[0].pid)
        wait_until(lambda: not worker_pids(run.loader), "the news of their deaths")
        with agents(1, bind=started[0].address) as again:
            run.finish()
            run.loader.close()
            wait_until(lambda: not descendants(again[0].pid), "the end of what it had started")


@lost
def test_an_agent_that_could_not_be_sent_the_dataset_is_sent_it_the_next_time(
    loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_crew, "ALONE", PATIENCE)
    monkeypatch.setattr(dialing, "AGAIN", 0.05)
    with agents(1) as started:
        run = Run(loaders, tmp_path, remote(started))
        send, failed = dialing.send_recipe, threading.Event()

        def fail_once(sock: socket.socket, *arguments: Any) -> None:
            if not failed.is_set():
                failed.set()
                raise ConnectionResetError(104, "cut off")
            send(sock, *arguments)

        monkeypatch.setattr(remote_crew, "send_recipe", fail_once)
        kill(session_of(run.pids[0]))
        run.finish()
        assert failed.is_set()


def test_workers_obey_what_they_were_told_before_they_were_born(
    loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session reads both orders at once."""
    monkeypatch.setattr(link, "SILENCE", 2 * PATIENCE)
    with agents(1) as started:
        run = Run(loaders, tmp_path, remote(started))
        session, conductor = session_of(run.pids[0]), run.iterator.pool.conductor
        engine, roster = run.loader._penstock, conductor.roster
        os.kill(session, signal.SIGSTOP)
        try:
            engine.request(Resize(4))
            wait_until(lambda: len(roster) == 4, "what is asked of the agent")
            engine.request(Pause())
            wait_until(lambda: conductor.paused, "the pause")
        finally:
            os.kill(session, signal.SIGCONT)
        # Those that were there before may stand at a batch, or not.
        born = {2, 3}
        wait_until(
            lambda: (
                born == {each.id for each in run.loader.stats().workers if each.id in born and each.state == "paused"}
            ),
            "their pause",
        )
        run.loader.resume()
        os.kill(session, signal.SIGSTOP)
        try:
            engine.request(Resize(5))
            wait_until(lambda: len(roster) == 5, "what is asked of the agent")
            engine.request(Resize(4))
            wait_until(lambda: len(roster.active()) == 4, "that one is to leave")
        finally:
            os.kill(session, signal.SIGCONT)
        wait_until(lambda: len(roster) == 4, "the one to leave that was not wanted any more")
        run.finish()


@lost
def test_with_no_agent_left_the_epoch_fails_with_the_reason(
    loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_crew, "ALONE", 0.2)
    with agents(1) as started:
        run = Run(loaders, tmp_path, remote(started))
        kill(started[0].pid)
        with pytest.raises(ConnectionError, match=f"all agents are lost.*{started[0].address}"):
            run.rest.result()


@lost
def test_local_workers_go_on_alone(loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_crew, "ALONE", 0.0)
    with agents(1) as started:
        run = Run(loaders, tmp_path, remote(started, local=1), num_workers=3)
        assert run.pids[0] not in descendants(started[0].pid), "the first one is here"
        assert set(run.pids[1:]) <= descendants(started[0].pid)
        kill(started[0].pid)
        wait_until(lambda: worker_pids(run.loader) == run.pids[:1], "the news of their deaths")
        run.finish()


def freeze(agent: Agent) -> list[int]:
    """A machine that stands still. Returns what stood there."""
    stopped = [agent.pid, *descendants(agent.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


@lost
def test_a_frozen_machine_is_found_out(loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SILENCE", 1.5)
    with agents(2) as started:
        run = Run(loaders, tmp_path, remote(started))
        stopped = freeze(started[0])
        gone = set(stopped) & set(run.pids)
        wait_until(lambda: not gone & set(worker_pids(run.loader)), "the news")
        await_workers(run.loader, 2)
        run.finish()
        run.loader.close()
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not descendants(started[0].pid), "the end of what it had started, when it goes on")


@lost
def test_a_connection_that_is_cut_is_found_out(
    loaders: Loaders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE", 1.5)
    with agents(2) as started:
        cable = Cable(started[0].address)
        try:
            run = Run(loaders, tmp_path, Agents([cable.address, started[1].address], token=SECRET))
            there = descendants(started[0].pid) & set(run.pids)
            cable.cut()
            wait_until(lambda: not there & set(worker_pids(run.loader)), "the news")
            await_workers(run.loader, 2)
            run.finish()
            run.loader.close()
        finally:
            cable.end()
        wait_until(lambda: not descendants(started[0].pid), "the end of what it had started, when it hears of it")


def test_nothing_is_left_over_there_when_training_is_killed(script: Scripts, tmp_path: Path) -> None:
    with agents(1) as started, script(TRAINING, started[0].address, str(tmp_path), SECRET) as running:
        assert running.line() == "under way"
        assert len(descendants(started[0].pid)) >= 4, "a session, a zygote and two workers"
        kill(running.pid)
        wait_until(lambda: not descendants(started[0].pid), "the end of what it had started")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@lost
def test_an_agent_that_is_told_to_end_ends_everything(loaders: Loaders, tmp_path: Path, number: int) -> None:
    with agents(2) as started:
        run = Run(loaders, tmp_path, remote(started))
        below = descendants(started[0].pid)
        os.kill(started[0].pid, number)
        assert started[0].process.wait() == 0
        assert not below & descendants(os.getpid())
        run.finish()


# -- who may use an agent -----------------------------------------------------------------------------------------


def test_another_token_is_refused(loaders: Loaders) -> None:
    with agents(1) as started:
        made = loaders(Samples(), num_workers=1, workers=Agents([started[0].address], token="another one, as long"))
        with pytest.raises(RuntimeError, match=f"{started[0].address}: it was started with another token"):
            iter(made)
        assert "does not know the token" in started[0].end()


class Touches:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def greeted(agent: Agent) -> tuple[socket.socket, bytes]:
    host, port = agent.address.split(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    return sock, sock.recv(handshake.GREETING_SIZE, socket.MSG_WAITALL)


def test_nothing_of_a_strangers_is_unpickled(loaders: Loaders, tmp_path: Path) -> None:
    trap = tmp_path / "unpickled"
    bomb = pickle.dumps((Touches(trap), []), 5)
    with agents(1) as started:
        for proof in (bytes(handshake.ANSWER_SIZE), handshake.answer(b"guessed", handshake.greeting()), bomb * 9):
            sock, _ = greeted(started[0])
            with sock:
                sock.sendall(proof + len(bomb).to_bytes(4, "little") + bomb)
                try:
                    said = sock.recv(1000)
                    assert not said or said.startswith(handshake.REFUSED)
                    while sock.recv(1000):
                        pass
                except ConnectionResetError:
                    pass  # it closed with something unread
        assert not descendants(started[0].pid)
        assert plain(loaders(Samples(), num_workers=1, workers=remote(started))) == [[n] for n in range(10)]
        assert not trap.exists()


def test_an_answer_that_was_overheard_is_of_no_use() -> None:
    with agents(1) as started:
        first, said = greeted(started[0])
        overheard = handshake.answer(SECRET.encode(), said)
        second, _ = greeted(started[0])
        with first, second:
            second.sendall(overheard)
            assert second.recv(1) == handshake.REFUSED
            first.sendall(overheard)
            assert first.recv(1) == handshake.ACCEPTED


def test_strangers_get_little_room_and_little_time(loaders: Loaders) -> None:
    with agents(1) as started:
        strangers = [greeted(started[0])[0] for _ in range(MOST_STRANGERS + 4)]
        try:
            assert strangers[0].recv(1) == b"", "the oldest has made room"
            strangers[-1].sendall(b"x")
            assert strangers[-1].recv(1) == b"", "its time is over"
            assert plain(loaders(Samples(), num_workers=1, workers=remote(started))) == [[n] for n in range(10)]
        finally:
            for each in strangers:
                each.close()


class Impostor:
    """Listens in an agent's place, and says what it is told to."""

    def __init__(self, *said: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._said = said
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as sock:
            for each in self._said:
                sock.sendall(each)
            with suppress(ConnectionResetError):  # what it said was not what was waited for
                while sock.recv(1000):
                    pass

    def end(self) -> None:
        self._thread.join()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n" + bytes(40),), "it is not an agent"),
        ((b"PENSTOCK AGENT 0\n" + bytes(32),), "another version of Penstock"),
        ((handshake.greeting(), handshake.ACCEPTED + bytes(32)), "it does not know the token"),
    ],
)
def test_an_impostor_is_found_out(loaders: Loaders, said: tuple[bytes, ...], why: str) -> None:
    impostor = Impostor(*said)
    try:
        made = loaders(Samples(), num_workers=1, workers=Agents([impostor.address], token=SECRET))
        with pytest.raises(RuntimeError, match=why):
            iter(made)
    finally:
        impostor.end()


# -- what is not there --------------------------------------------------------------------------------------------


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_an_agent_that_is_not_there_is_said_and_done_without(loaders: Loaders) -> None:
    missing = closed_port()
    with agents(1) as started:
        made = loaders(Samples(), num_workers=2, workers=Agents([missing, started[0].address], token=SECRET))
        with pytest.warns(UserWarning, match=f"agent at {missing} cannot be reached.*refused.*dialed again"):
            assert plain(made) == [[n] for n in range(10)]


def test_without_any_agent_there_is_an_error(loaders: Loaders) -> None:
    missing = closed_port()
    made = loaders(Samples(), num_workers=2, workers=Agents([missing], token=SECRET))
    with pytest.raises(ConnectionError, match=f"no agent can be reached.*{missing}.*refused.*penstock agent"):
        iter(made)


def test_an_agent_that_says_nothing_is_not_waited_for(loaders: Loaders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing.dial, "__defaults__", (0.3,))
    impostor = Impostor()
    try:
        made = loaders(Samples(), num_workers=1, workers=Agents([impostor.address], token=SECRET))
        with pytest.raises(ConnectionError, match="it does not answer"):
            iter(made)
    finally:
        impostor.end()


def test_a_module_that_is_not_there_is_named(loaders: Loaders, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    module.Mine = type("Mine", (Samples,), {"__module__": "only_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    with agents(1) as started:
        made = loaders(module.Mine(), num_workers=1, workers=remote(started))
        with pytest.raises(ModuleNotFoundError, match=rf"only_here.*is not to be found on {socket.gethostname()}"):
            list(made)


def test_what_cannot_be_pickled_is_named(loaders: Loaders) -> None:
    with agents(1) as started:
        made = loaders(Samples(), num_workers=1, workers=remote(started), collate_fn=lambda samples: samples)
        with pytest.raises(TypeError, match=r"collate_fn .*cannot be pickled, and workers on other machines need"):
            iter(made)


OTHER_TORCH = """
import sys
import penstock.agent.versions as versions
import torch
torch.__version__ = "1.0.0"
from penstock_dashboard.cli import main
sys.exit(main())
"""


def test_versions_that_differ_are_said(loaders: Loaders) -> None:
    with agents(1, program=("-c", OTHER_TORCH)) as started:
        made = loaders(Samples(), num_workers=1, workers=remote(started))
        with pytest.raises(RuntimeError, match=r"it has torch 1\.0\.0, not .*: install the same"):
            iter(made)
