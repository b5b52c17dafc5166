"""A run as one file: complete, safe to open, and without a word to any network."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from penstock.protocol import ErrorEvent, Note, ProfileFunction, ProfilePart, ProfileWeights, Receipt, Stall
from penstock_dashboard.cli import main
from penstock_dashboard.report.charts import Frame, Series, lines, stretches

from tests.backend.harness import Running

HOSTILE = '</script><img src=x onerror=alert(1)> & "quoted"'
NAMES = {"href", "src", "action", "data", "srcset", "xlink:href", "style"}


class Read(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in NAMES and tag != "i"]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("line", "circle", "polygon", "polyline") and tag not in self.open:
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def told(server: Running, run: str) -> str:
    now = time.time()
    with server.loader(run) as loader:
        for second in range(60):
            loader.snapshot(at=now - 60 + second)
        function = ProfileFunction("Images.__getitem__", "/home/me/data.py", 10, True)
        last = loader.events(
            Note(now - 30, f"lr drop {HOSTILE}", 3, 120),
            Stall(now - 20, 900_000, 3, 0, 77, stack="File data.py, line 12"),
            ErrorEvent(now - 10, "dataset", "ValueError", HOSTILE, traceback=f"Traceback {HOSTILE}"),
            Receipt(now - 5, 2, 4, 9.5, 0.01, 100, text="2 → 4 workers brought 1.9 ×"),
            ProfilePart(now - 4, "p", 0, now - 9, 5.0, ended=True, functions=[function], nodes=[0, 0, 12],
                        weights=[ProfileWeights(0, "fetch", [1], [2000], [1500])]),
        )  # fmt: skip
        loader.acknowledged(last)
        with server.http() as client:
            answer = client.get(f"/api/runs/{run}/report")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"] == f'attachment; filename="{run}-report.html"'
    return answer.text


def test_it_has_charts_verdict_receipts_profile_notes_and_events(server: Running) -> None:
    seen = Read(told(server, "whole"))
    assert not seen.open, "every tag is closed"
    assert seen.tags.count("svg") >= 4
    for part in (
        "lr drop",
        "Stall of",
        "held back",
        "1.9 ×",
        "Images.__getitem__",
        "data.py:10",
        "ValueError",
        "line 12",
    ):
        assert part in seen.text, part
    assert re.search(r"batches/s [\d.]+/s on average, [\d.]+/s at most", seen.text)


def test_it_runs_nothing_and_asks_nobody(server: Running) -> None:
    text = told(server, "safe")
    seen = Read(text)
    assert "script" not in seen.tags and "img" not in seen.tags and "link" not in seen.tags
    assert all(address.startswith("#") for address in seen.addresses)
    assert "http://" not in text and "https://" not in text and "url(" not in text
    assert "default-src 'none'" in text
    assert HOSTILE in seen.text, "told as it was said"


def test_an_unknown_run_is_not_found(server: Running) -> None:
    with server.http() as client:
        answer = client.get("/api/runs/nobody/report")
    assert answer.status_code == 404 and "nobody" in answer.json()["detail"]


def test_of_many_ranks_those_that_wait_most_have_chapters(server: Running) -> None:
    loaders = [server.loader("many", rank=rank) for rank in range(40)]
    for loader in loaders:
        loader.snapshot()
    text = told_of(server, "many")
    for loader in loaders:
        loader.socket.close()
    assert text.count("<section") == 32 and text.count("<tr>") == 41
    assert "8 more loaders are in the table only" in text


def told_of(server: Running, run: str) -> str:
    with server.http() as client:
        return client.get(f"/api/runs/{run}/report").text


def test_the_command_saves_it(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", server.secrets["viewer"])
    with server.loader("saved") as loader:
        loader.snapshot()
        assert main(["report", "saved", "-o", str(tmp_path / "r.html"), "--url", server.url]) == 0
    assert "Penstock report: saved" in (tmp_path / "r.html").read_text()
    assert str(tmp_path / "r.html") in capsys.readouterr().out
    assert main(["report", "nobody", "--url", server.url]) == 1
    assert "nobody" in capsys.readouterr().err
    assert main(["report", "saved", "-o", str(tmp_path / "no" / "r.html"), "--url", server.url]) == 1


def test_a_silence_leaves_a_line_open_and_a_slow_pace_does_not() -> None:
    assert stretches([0.0, 0.2, 0.4, 4.0, 8.0, 8.2, 60.0, 60.2]) == [(0, 6), (6, 8)]
    assert stretches([]) == [] and stretches([1.0]) == [(0, 1)]


def test_a_spike_is_drawn_though_its_mean_is_small() -> None:
    at = [0.0, 1.0, 2.0]
    series = Series("x", "accent", [1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 50.0, 1.0])
    drawn = lines("X", at, [series], [], str, 1)
    (band,) = re.findall(r'class="band" points="([^"]+)"', drawn)
    highest = min(float(point.split(",")[1]) for point in band.split())
    assert highest == pytest.approx(Frame(at, 54.0).y(50.0), abs=0.1) and "50.0 at most" in drawn
