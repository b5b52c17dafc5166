"""The parts of the way between training and an agent, each for itself."""

from __future__ import annotations

import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from penstock import Agents, RayWorkers, SharedList
from penstock.agent.luggage import Luggage, Origin, Trunk
from penstock.agent.options import TOKEN
from penstock.agent.versions import differences
from penstock.agent.wire import ConnectionEndedError, Wire
from penstock.pool.crews.codec import Encoded
from penstock.pool.crews.remote.clock import ClockOffset
from penstock.pool.crews.remote.landing import LandedPayload, Landing
from penstock.pool.tasks import Recipe

# -- frames ---------------------------------------------------------------------------------------------------------


class Pair:
    """Two ends of a connection."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        self.one, self.other = Wire(ours, Trunk), Wire(theirs, Trunk)

    def close(self) -> None:
        self.one.close()
        self.other.close()


frames = st.lists(st.tuples(st.integers() | st.text(), st.lists(st.binary(max_size=2000), max_size=3)), max_size=8)


@given(frames)
def test_frames_arrive_as_they_were_sent(sent: list[tuple[Any, list[bytes]]]) -> None:
    pair = Pair()
    try:
        for thing, contents in sent:
            pair.one.send((thing,), [(memoryview(each), None) for each in contents])
        got: list[tuple[Any, list[bytes]]] = []
        while len(got) < len(sent):
            pair.one.flush()
            if pair.other.wait(5):
                got += [
                    (message[0], [bytes(place.view) for place in places]) for message, places in pair.other.receive()
                ]
        assert got == sent
    finally:
        pair.close()


def test_what_is_larger_than_any_buffer_arrives() -> None:
    pair = Pair()
    try:
        large: Any = np.random.default_rng(0).integers(0, 255, 30_000_000, np.uint8)
        pair.one.send(("large",), [(memoryview(large), large)])
        pair.one.send(("small",))
        got: list[Any] = []
        while len(got) < 2:
            pair.one.flush()
            if pair.other.wait(0.01):
                got += pair.other.receive()
        assert [message for message, _ in got] == [("large",), ("small",)]
        assert np.array_equal(np.frombuffer(got[0][1][0].view, np.uint8), large)
        assert not pair.one.has_outgoing()
        assert pair.other.received > large.nbytes
    finally:
        pair.close()


def test_an_end_is_seen_after_what_came_before_it() -> None:
    pair = Pair()
    try:
        pair.one.send(("last words",))
        pair.one.flush()
        pair.one.finish()
        assert pair.other.wait(5)
        got: list[Any] = []
        with pytest.raises(ConnectionEndedError):
            while pair.other.wait(5):
                got += pair.other.receive()
        assert got == [(("last words",), [])]
    finally:
        pair.close()


# -- the recipe -----------------------------------------------------------------------------------------------------


def sent(dataset: Any) -> Any:
    """The dataset, as it arrives."""
    recipe = Recipe(dataset, False, True, torch.utils.data.default_collate, False, 1, None)
    luggage = Luggage.packed(recipe)
    trunks = [Trunk(len(view)) for view in luggage.contents]
    for trunk, view in zip(trunks, luggage.contents, strict=True):
        trunk.view[:] = view
    assert len(luggage.pickled) < 5000, "contents are not in the pickle"
    return Luggage(luggage.pickled, [trunk.view for trunk in trunks], luggage.origin).open().dataset


def test_a_recipe_arrives_as_it_is() -> None:
    tensor = torch.randn(40_000).share_memory_()
    base = torch.arange(60_000)
    dataset = [tensor, base[10:20], base, np.ones(30_000), SharedList(["a", "b"]), torch.empty(0), {"n": 1}]
    got = sent(dataset)
    assert torch.equal(got[0], tensor)
    assert torch.equal(got[1], base[10:20])
    got[2][10] = -1
    assert got[1][0] == -1, "what shares memory here does so there"
    assert np.array_equal(got[3], dataset[3])
    assert list(got[4]) == ["a", "b"]
    assert got[5].shape == (0,)
    assert got[6] == {"n": 1}


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    script = str(tmp_path / "train.py")
    luggage = Luggage(b"c__main__\nMine\n.", [], Origin([], str(tmp_path), "", script))
    with pytest.raises(FileNotFoundError, match=rf"{script}.*is not on {socket.gethostname()}"):
        luggage.open()


def test_a_path_of_trainings_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_there.py").write_text("class Mine: pass\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(Path.cwd())
    luggage = Luggage(b"cfound_there\nMine\n.", [], Origin([str(tmp_path), "/not/there"], "/not/there", "", ""))
    assert luggage.open().__name__ == "Mine"  # type: ignore[attr-defined]
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["found_there"]


# -- where batches land ---------------------------------------------------------------------------------------------


def payload(landing: Landing, size: int) -> LandedPayload:
    landed = landing.place(size)
    landed.view[:] = bytes(range(256)) * (size // 256)
    structure = pickle.dumps(pickle.PickleBuffer(bytearray(1)), 5, buffer_callback=lambda _: None)
    return LandedPayload(Encoded(structure, [(0, size)], b"", 0, size), landed)


def test_memory_is_used_again_when_the_last_view_of_it_is_gone() -> None:
    landing = Landing()
    batch = torch.frombuffer(payload(landing, 1 << 20).open(0), dtype=torch.uint8)
    address, part = batch.data_ptr(), batch[7:]
    del batch
    assert landing.memory()[:2] == (1, 0)
    other = torch.frombuffer(payload(landing, 1 << 20).open(0), dtype=torch.uint8)
    assert other.data_ptr() != address
    assert part[0] == 7
    del part
    assert landing.memory()[:2] == (1, 1)
    again = torch.frombuffer(payload(landing, 1 << 20).open(0), dtype=torch.uint8)
    assert again.data_ptr() == address
    del again, other
    landing.limit(0)
    assert landing.memory() == (0, 0, 0)


def test_a_batch_that_nobody_wants_gives_its_memory_back() -> None:
    landing = Landing()
    unwanted = payload(landing, 1 << 16)
    assert landing.memory().used == 1
    unwanted.discard()
    assert landing.memory().used == 0


# -- clocks, versions, arguments --------------------------------------------------------------------------------------


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=1))
def test_a_clock_is_told_to_within_half_of_the_quickest_exchange(offset: int, ways: list[tuple[int, int]]) -> None:
    """`ways`: what each message took there, and its answer back."""
    clock, now = ClockOffset(), 10**16
    for there, back in ways[-32:]:
        clock.learn(now, now + there - offset, now + there + back)
        now += 10**9
    assert abs(clock.offset - offset) <= min(sum(each) for each in ways[-32:]) / 2 + 1
    assert clock.here(-1) == -1


def test_versions_that_may_change_batches_are_told_from_others() -> None:
    here = {"Python": "3.11.2", "torch": "2.13.0", "penstock": "0.1.0"}
    assert differences(here, dict(here)) == ([], [])
    there = {"Python": "3.11.9", "torch": "2.14.0", "penstock": "0.1.1"}
    grave, slight = differences(here, there)
    assert grave == ["torch 2.14.0, not 2.13.0", "penstock 0.1.1, not 0.1.0"]
    assert slight == ["Python 3.11.9, not 3.11.2"]
    assert differences(here, {})[0] == ["Python none, not 3.11.2", "torch none, not 2.13.0", "penstock none, not 0.1.0"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("host:1",), "addresses must be a list"),
        (([],), "addresses must be a list"),
        ((["host"],), "host:port"),
        ((["host:x"],), "host:port"),
        ((["::1:5"],), "host:port"),
        ((["a:1", "a:1"],), "named twice"),
        ((["a:1"], -1), "local must not be negative"),
    ],
)
def test_arguments_that_cannot_be_meant_are_named(arguments: tuple[Any, ...], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Agents(*arguments)


def test_the_token_is_given_or_in_the_environment_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(ValueError, match=TOKEN):
        Agents(["[::1]:5"]).secret()
    with pytest.raises(ValueError, match="too short"):
        Agents(["host:5"], token="short").secret()
    monkeypatch.setenv(TOKEN, "from the environment")
    assert Agents(["host:5"]).secret() == b"from the environment"
    given_token = Agents(["host:5"], token="given as an argument")
    assert given_token.secret() == b"given as an argument"
    assert "given" not in repr(given_token)


def test_what_ray_is_asked_for_each_worker() -> None:
    assert RayWorkers(num_cpus=2, resources={"jpeg": 1}).bundle() == {"CPU": 2.0, "jpeg": 1.0}
    with pytest.raises(ValueError, match="must need something"):
        RayWorkers(num_cpus=0)
    with pytest.raises(ValueError, match="num_cpus must be a number and not negative"):
        RayWorkers(num_cpus=-1)
    with pytest.raises(TypeError, match="local must be an int"):
        RayWorkers(local=1.5)  # type: ignore[arg-type]
