"""`penstock status`: the same facts once, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from penstock import discovery
from penstock.protocol import Limit, LoaderRow, Rates, Verdict
from penstock_dashboard.cli import main

from tests.backend.harness import ROOT, SECRETS, TOKENS, Running, until
from tests.backend.terminal.conftest import Call
from tests.recorded.replay import Fleet


def test_a_line_for_every_loader(fleet: Fleet, call: Call) -> None:
    fleet.replay("waiting", run="table", past=3.0)
    ended = fleet.replay("keeping-up", run="table", name="val")
    until(lambda: "table/val" in call("status")[1], "the second loader")
    fleet.call(ended.leave)
    until(lambda: re.search(r"table/val +finished .* – ", call("status")[1]), "its goodbye")
    line = r"table/train +running +epoch 0, \S+ of 2,500 +2 +\d\S* +\d+ % +the workers "
    until(lambda: re.search(line, call("status")[1]), "a line with everything")


def test_json_names_every_fact(server: Running, fleet: Fleet, call: Call) -> None:
    fleet.replay("waiting", run="facts", past=3.0)
    fleet.replay("keeping-up", run="facts", name="val", past=3.0)
    until(lambda: len(server.get("/api/loaders", run="facts")) == 2, "both loaders")
    status, out, _ = call("status", "facts", "--json")
    loaders = json.loads(out)["loaders"]
    assert status == 0
    assert [loader["id"] for loader in loaders] == ["facts:0:train", "facts:0:val"]
    assert set(LoaderRow.__struct_fields__) | {"waiting", "silence"} == set(loaders[0])
    assert set(loaders[0]["rates"]) == set(Rates.__struct_fields__)
    assert set(loaders[0]["verdict"]) == set(Verdict.__struct_fields__)
    status, out, _ = call("status", "facts/train", "--json")
    (loader,) = json.loads(out)["loaders"]
    assert loader["snapshot"]["workers"][1]["id"] == 1
    assert loader["config"]["max_workers"] == 32
    assert loader["verdict"]["limit"] in get_args(Limit)


def test_one_loader_is_told_at_length(server: Running, fleet: Fleet, call: Call) -> None:
    fleet.replay("waiting", run="length", past=3.0)
    until(lambda: server.get("/api/loaders", run="length"), "the loader")
    status, out, _ = call("status", "length")
    assert status == 0
    assert re.search(r"In the last \d+ s training waited \d+ % of the time\. Both workers are busy", out)
    assert re.search(r"# compute \d+ % +! starvation \d+ %", out)
    assert "▶Workers" in out
    assert len(re.findall(r"(?m)^[01] +\d+ +\w+ ", out)) == 2
    assert "\x1b" not in out


def test_exit_statuses(call: Call) -> None:
    assert call("status", "nowhere")[0] == 1
    status, _, err = call("status", token="publisher")
    assert status == 1
    assert "scope “view”" in err
    assert call("status", "a:b")[0] == 2


def test_the_token_can_be_in_a_file(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    plain, saved = tmp_path / "token", tmp_path / "tokens.json"
    plain.write_text(SECRETS["viewer"] + "\n")
    saved.write_bytes(msgspec.json.encode(TOKENS))
    for path, status in ((plain, 0), (saved, 0), (tmp_path / "absent", 2)):
        assert main(["status", "--url", server.url, "--token-file", str(path)]) == status
    plain.write_text("wrong")
    assert main(["status", "--url", server.url, "--token-file", str(plain)]) == 1


def test_the_dashboard_of_this_machine_is_found(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PENSTOCK_URL", "PENSTOCK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["status"]) == 3
    assert "Start one with `penstock dashboard`" in capsys.readouterr().err
    discovery.write(discovery.Discovery(server.url, SECRETS["local"], os.getpid(), 0.0))
    assert main(["status"]) == 0


def test_scripts_do_not_pay_for_what_they_do_not_use(server: Running) -> None:
    """Neither the server's packages nor torch are loaded to ask a question; and a reader may leave early."""
    code = (
        "import sys; from penstock_dashboard.cli import main; "
        "print(main(), {'torch', 'numpy', 'fastapi'} & set(sys.modules))"
    )
    asked = [sys.executable, "-c", code, "status", "--url", server.url]
    environment = {**os.environ, "PENSTOCK_TOKEN": SECRETS["local"]}
    done = subprocess.run(asked, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("0 set()\n")
    early = f"{sys.executable} -m penstock_dashboard status --url {server.url} | true; exit ${{PIPESTATUS[0]}}"
    left = subprocess.run(["bash", "-c", early], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (left.returncode, left.stderr) == (0, "")
