"""`GET /api/loaders/{id}/predictions`: what other numbers of workers would bring, and what was measured."""

from __future__ import annotations

import time

import msgspec
import pytest
from penstock.protocol import Load, Predictions, Receipt

from tests.backend.harness import Running
from tests.patience import PATIENCE

LOAD = Load(1.0, 4, 400, [(20_000, 1000, 0)] * 50, [500] * 20, 100, allowed=8.0, memory_budget=1 << 29, largest=1000)


def ask(server: Running, loader: str, query: str = "") -> Predictions:
    with server.http("viewer") as client:
        answer = client.get(f"/api/loaders/{loader}/predictions{query}")
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Predictions)


def until_enough(server: Running, loader: str) -> Predictions:
    """A load has no number: nobody says that it came."""
    end = time.monotonic() + PATIENCE
    while not (found := ask(server, loader)).enough:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_predictions_from_what_the_loader_told_and_measurements_from_its_receipts(server: Running) -> None:
    with server.loader("replayed") as loader:
        loader.snapshot()
        nothing = ask(server, "replayed:0:train")
        assert not nothing.enough
        assert "not enough seen" in nothing.reason
        loader.send(LOAD)
        loader.acknowledged(loader.events(Receipt(2.0, 2, 4, 190.0, 0.01, 100, 95.0, 188.0, 180.0, 196.0, "better")))
        found = until_enough(server, "replayed:0:train")
        chosen = ask(server, "replayed:0:train", "?workers=1-3")
        budget = ask(server, "replayed:0:train", "?workers=4&memory_budget=1000")
    by_number = {each.workers: each for each in found.predictions}
    assert {2, 4, 8, 16} <= set(by_number)
    assert by_number[8].batches == pytest.approx(8 / 0.021, rel=0.05)
    assert all(each.low <= each.batches <= each.high for each in found.predictions)
    assert [(each.workers, each.batches) for each in found.measured] == [(2, 95.0), (4, 190.0)]
    assert [each.workers for each in chosen.predictions] == [1, 2, 3]
    assert budget.predictions[0].batches < by_number[4].batches / 2


@pytest.mark.parametrize("workers", ["0", "-1", "3-", "1,2,x", "99999", ",".join(map(str, range(1, 20)))])
def test_what_is_no_number_of_workers_is_refused(server: Running, workers: str) -> None:
    with server.loader("refusing") as loader, server.http("viewer") as client:
        loader.acknowledged(loader.snapshot().seq)
        answer = client.get("/api/loaders/refusing:0:train/predictions", params={"workers": workers})
    assert answer.status_code == 422
    assert "workers" in answer.text


def test_a_load_that_is_no_number_is_refused(server: Running) -> None:
    with server.loader("nan") as loader:
        loader.send(msgspec.structs.replace(LOAD, others=float("nan")))
        loader.acknowledged(loader.snapshot().seq)
        assert not ask(server, "nan:0:train").enough
