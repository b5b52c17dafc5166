"""`GET /api/loaders/{id}/quarantine`: every bad sample is found, however many there are."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import msgspec
from penstock.protocol import Quarantined, QuarantineEvent, QuarantinePage
from penstock.quarantine import Quarantine

from tests.backend.harness import Running


def test_all_are_found_by_words_and_saved_for_the_next_run(server: Running, tmp_path: Path) -> None:
    now = time.time() + 1
    many = [Quarantined(str(index), "dataset", f"OSError: file {index} is corrupt", times=2) for index in range(700)]
    odd = Quarantined("a/b.jpg", "dataset", "=TimeoutError: it took more than 1 s", times=1, number=False)
    whole = Quarantined("", "collate_fn", "ValueError: shapes differ", times=1, batch=9)
    with server.loader("bad") as loader:
        loader.events(QuarantineEvent(0.5, [Quarantined("4711", "dataset", "OSError: of the training before")]))
        loader.events(QuarantineEvent(now, many[:500]), QuarantineEvent(now, many[500:]))
        loader.acknowledged(loader.events(QuarantineEvent(now, [odd, many[3], whole, whole])))
        with server.http("viewer") as client:
            path = "/api/loaders/bad:0:train/quarantine"
            first = msgspec.json.decode(client.get(path).content, type=QuarantinePage)
            one = msgspec.json.decode(
                client.get(path, params={"search": "file OSERROR 512"}).content, type=QuarantinePage
            )
            table = client.get(path, params={"format": "csv", "search": "timeout"})
            lines = client.get(path, params={"format": "jsonl"})
            assert client.get(path, params={"limit": 0}).status_code == 422
    assert (first.total, first.matching, len(first.found)) == (703, 703, 200)
    assert [each.where for each in first.found[:3]] == ["collate_fn", "collate_fn", "dataset"]
    assert (one.matching, [each.index for each in one.found]) == (1, ["512"])
    assert list(csv.reader(io.StringIO(table.text)))[1][:3] == ["a/b.jpg", "dataset", "'" + odd.error]
    assert "bad-0-train-quarantine.jsonl" in lines.headers["content-disposition"]
    saved = tmp_path / "bad.jsonl"
    saved.write_bytes(lines.content)
    assert len(json.loads(saved.read_text().splitlines()[0])) == 3
    assert Quarantine(1.0, str(saved), None, lambda _: None).known() == {*range(700), "a/b.jpg"}
