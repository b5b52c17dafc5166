"""How long the page takes to draw a flame graph of 5,000 distinct stacks, in Chromium.

Two profiles go to a dashboard, as a loader would send them. The time is from the switch between them, which asks for
another graph, to the frame in which that is drawn: laying it out, painting it, the table behind it, and up to two
frames of waiting for the browser.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from penstock.profiling.parts import PartWriter
from penstock.profiling.stacks import Function
from penstock.profiling.tree import Tree
from penstock.protocol import PROTOCOL, Events, Hello, Identity, Snapshot
from playwright.sync_api import sync_playwright
from websockets.sync.client import connect

from tests.benchmarks.case import Measures
from tests.browser.dashboard import Dashboard

STACKS = 5_000
DEPTH = 12
SWITCHES = 20
DRAWN = """async (profile) => {
  const [choice, canvas] = ["select", "canvas"].map((name) => document.querySelector(`#profile ${name}`));
  delete canvas.dataset.drawn;
  choice.value = profile;
  const began = performance.now();
  choice.dispatchEvent(new Event("change", { bubbles: true }));
  while (canvas.dataset.drawn === undefined) await new Promise(requestAnimationFrame);
  return [performance.now() - began, Number(canvas.dataset.drawn)];
}"""


def measure(variant: str, quick: bool) -> Measures:  # noqa: ARG001
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        dashboard = Dashboard(Path(folder))
        dashboard.start()
        try:
            executable = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            with connect(
                f"ws{dashboard.url[4:]}ws/publish",
                additional_headers={"Authorization": f"Bearer {dashboard.token}"},
                proxy=None,
            ) as socket:
                for message in messages():
                    socket.send(msgspec.msgpack.encode(message))
                return _switch(browser.new_page(viewport={"width": 1280, "height": 1000}), dashboard, quick)
        finally:
            dashboard.stop()


def _switch(page: Any, dashboard: Dashboard, quick: bool) -> Measures:
    page.goto(dashboard.link)
    page.locator("[data-loader='flame:0:train']").wait_for()
    page.goto(f"{dashboard.url}#/loader/flame%3A0%3Atrain")
    panel = page.locator("#profile")
    panel.scroll_into_view_if_needed()
    panel.get_by_label("inside libraries").check()
    page.wait_for_function("document.querySelectorAll('#profile select')[0].options.length === 3")
    times = [page.evaluate(DRAWN, name) for _ in range(2 if quick else SWITCHES) for name in ("first", "second")]
    drawn, painted = (sorted(column)[len(column) // 2] for column in zip(*times, strict=True))
    return {"drawn_ms": drawn, "painted_ms": painted}


def messages() -> list[Hello | Snapshot | Events]:
    """All that is sent."""
    now, said = time.time(), list[Hello | Snapshot | Events]()
    said.append(Hello(PROTOCOL, Identity("flame", "train", incarnation="1"), started=now - 100))
    said.append(Snapshot(0, now, "running"))
    for name, seed in (("first", 1), ("second", 2)):
        said += [Events(len(said) - 1 + place, [part]) for place, part in enumerate(_parts(name, seed, now - 50))]
    return said


def _parts(name: str, seed: int, began: float) -> list[Any]:
    chance, tree = random.Random(seed), Tree()
    writer = PartWriter(tree, {})
    functions = [
        tree.function(Function(f"Photos.step_{number}", f"/home/me/data_{number % 7}.py", number, number % 3 > 0))
        for number in range(300)
    ]
    parts, leaves, sent = [], set[int](), 0
    while len(leaves) < STACKS:
        node = -1
        for _ in range(chance.randrange(DEPTH // 2, DEPTH)):
            # Few ways near the root and many near the leaves, as programs have them.
            node = tree.node(node, chance.choice(functions[: 6 if node < 0 else 40]), chance.randrange(1, 9))
            if chance.random() < 0.1:
                break
        if node not in leaves:
            leaves.add(node)
            tree.add(0, 0, node, chance.randrange(20, 200) * 1_000_000, 10_000_000)
        if len(tree.nodes) - sent > 3_000:
            sent = len(tree.nodes)
            parts.append(writer.write(name, began + 1, began, 9_000.0, 50.0, ended=False))
    parts.append(writer.write(name, began + 1, began, 9_000.0, 50.0, ended=True))
    return parts
