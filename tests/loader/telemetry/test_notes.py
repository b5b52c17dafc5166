"""What the training script says of itself is on the dashboard where it said it."""

from __future__ import annotations

from typing import Any

import pytest
from penstock import DataLoader
from penstock.insight.events import describe
from penstock.protocol import Note

from tests.loader.support import Samples
from tests.loader.telemetry.servers import GoodServer, until


def notes(server: GoodServer) -> list[Note]:
    return [event for event in server.only.events if isinstance(event, Note)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_note_is_told_with_its_place(server: GoodServer, workers: int) -> None:
    with DataLoader(Samples("int", 12), num_workers=workers, monitor=server.url, name="noted") as train:
        train.note("before the first epoch")
        for number, _ in enumerate(train):
            if number == 4:
                train.note("lr drop")
        train.note("x" * 1000)
        until(lambda: len(notes(server)) == 3)
    first, second, third = notes(server)
    assert (first.text, first.epoch, first.batch) == ("before the first epoch", 0, 0)
    assert (second.text, second.epoch, second.batch) == ("lr drop", 0, 5)
    assert third.text == "x" * 256 and third.batch == 12
    assert first.at <= second.at <= third.at
    assert describe(second) == "Note: lr drop"


def test_a_note_without_a_dashboard_does_nothing() -> None:
    train = DataLoader(Samples("int", 3), monitor=False)
    for _ in range(5000):
        train.note("again")
    assert len(list(train)) == 3


@pytest.mark.parametrize("text", [None, 3, b"bytes"])
def test_what_is_not_a_text_is_refused(text: Any) -> None:
    with pytest.raises(TypeError, match="a note must be a text"):
        DataLoader(Samples("int", 1), monitor=False).note(text)
