"""`penstock runs`: against a real backend."""

from __future__ import annotations

from tests.backend.harness import Running, until
from tests.backend.terminal.conftest import Call


def test_runs_are_listed_pinned_hidden_and_deleted(call: Call, server: Running) -> None:
    with server.loader("placed"):
        _place_another(call, server)


def _place_another(call: Call, server: Running) -> None:
    with server.loader("outworn") as loader:
        loader.snapshot()
        loader.acknowledged(loader.goodbye())
    until(lambda: not server.backend.registry.get(loader.id).connected)  # type: ignore[union-attr]
    assert call("runs", "pin", "outworn") == (0, "outworn: pinned\n", "")
    status, said, _ = call("runs")
    listed = [line for line in said.splitlines() if "placed" in line or "outworn" in line]
    assert status == 0
    assert listed[0].split()[:4] == ["outworn", "1", "loader,", "pinned"]
    assert listed[1].split()[:5] == ["placed", "1", "loader,", "1", "connected"]
    assert call("status")[1].splitlines()[1].split()[0] == "outworn/train", "what is pinned is on top"

    assert call("runs", "hide", "outworn")[0] == 0
    assert "outworn" not in call("status")[1]
    assert "outworn" in call("status", "outworn")[1], "by name it is shown"
    assert "outworn" in call("runs")[1]

    status, _, error = call("runs", "delete", "outworn")
    assert (status, error) == (1, "penstock runs: say --yes to delete without being asked\n")
    status, said, _ = call("runs", "delete", "outworn", "--yes")
    assert (status, said) == (0, "outworn: Deleted, with 1 loader, by local (127.0.0.1)\n")
    assert "outworn" not in call("runs")[1]
    told = [line.split(None, 1)[1].strip() for line in call("runs", "log", "outworn")[1].splitlines()]
    assert [line.split(": ")[1].split(",")[0] for line in told] == ["Deleted", "Hidden", "Pinned"]


def test_what_cannot_be_done_is_said(call: Call, server: Running) -> None:
    with server.loader("alive"):
        status, _, error = call("runs", "delete", "alive", "--yes")
        assert status == 1
        assert "cannot be deleted: 1 loader is connected" in error
        assert call("runs", "hide")[0] == 1
        assert call("runs", "hide", "nobody")[0] == 1
        assert call("runs", "hide", "alive", token="viewer")[0] == 1
