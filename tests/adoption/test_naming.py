"""Names of loaders whose programs gave them none: what a reader of the line would call them."""

from __future__ import annotations

import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
from penstock.adoption.naming import name_for, name_of

PLACES = {
    "train_loader = make()": "train",
    "trainloader = make()": "train",
    "valLoader = make()": "val",
    "validation_dataloader: object = make()": "val",
    "images = make()": "images",
    "loader = make()": "loader",
    "dl = make()": "dl",
    "first, (second, test_dl) = make(0), (make(0), make())": "test",
    "loaders = {}; loaders['eval'] = make()": "eval",
    "loaders = {'source': make(0), 'train': make()}": "train",
    "loaders = {x: make() for x in ['val']}": "val",
    "loaders = [make() for split in ('test',)]": "test",
    "fit(model=None, train_dataloaders=make())": "train",
    "val = wrapped(make())": "val",
    "if loader := wrapped(make(), 3): pass": "loader",
    "for batch in make(): break": "loader",
    "make()": "loader",
    """
    def train_dataloader():
        return make()
    train_dataloader()
    """: "train",
    """
    def build(dataset, split):
        loader = make()
        return loader
    anything = build(None, "train")
    """: "train",
    """
    class Trainer:
        def _get_dataloader(self, dataset, description):
            return wrapped(make())
        def evaluate(self):
            return self._get_dataloader(None, description="Evaluation")
    Trainer().evaluate()
    """: "eval",
    """
    class Module:
        def setup(self):
            self.valid_dl = make()
    Module().setup()
    """: "val",
    """
    def build():
        return make()
    train_set_loader = build()
    """: "train",
    'class A:\n    def first(self):\n        text = """\nx"""\n        test_loader = make()\nA().first()': "test",
}


@pytest.mark.parametrize("source", PLACES, ids=list(PLACES.values()))
def test_a_loader_is_called_as_where_it_is_made(source: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    names: list[str] = []

    def make(number: int = 1) -> list[Any]:
        if number:
            names.append(name_for(sys._getframe(1)))
        return [number]

    helpers = {"make": make, "wrapped": lambda value, *_: value, "fit": lambda **_: None, "__name__": "__main__"}
    exec(compile(script.read_text(), str(script), "exec"), helpers)
    assert names == [PLACES[source]]


def test_without_a_source_there_is_still_a_name() -> None:
    names: list[str] = []
    exec("train_loader = note()", {"note": lambda: names.append(name_for(sys._getframe(1)))})
    assert names == ["loader"]


class Kept:
    """Something whose end can be seen."""


def test_a_name_keeps_nothing_alive_that_the_function_lets_go() -> None:
    def training(split: str) -> tuple[str, str, str, bool]:
        dataset, made, shared = Kept(), Kept(), Kept()
        gone = [weakref.ref(dataset), weakref.ref(made), weakref.ref(shared)]

        def let_go() -> None:  # so that it is a variable of two functions
            nonlocal shared
            del shared

        loader = name_for(sys._getframe())
        called = name_of(made, sys._getframe())
        let_go()
        del dataset, made
        return split, loader, called, [each() for each in gone] == [None, None, None]

    assert training("val") == ("val", "val", "made", True)


def test_a_name_takes_nothing_from_who_asked_for_the_variables() -> None:
    def training(split: str) -> dict[str, Any]:
        mine = locals()
        assert name_for(sys._getframe()) == split
        return mine

    assert training("val")["split"] == "val"


def test_a_name_leaves_the_variables_of_a_class_body_as_they_are() -> None:
    class Config:
        split = "val"
        loader = name_for(sys._getframe())

    assert (Config.split, Config.loader) == ("val", "val")
