"""The README's pictures, taken from the real pages: `PENSTOCK_SCREENSHOTS=DIR pytest tests/browser -k pictures`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .dashboard import Dashboard
from .publisher import Fleet
from .simulated import Scenario

FOLDER = os.environ.get("PENSTOCK_SCREENSHOTS", "")


@pytest.mark.skipif(not FOLDER, reason="PENSTOCK_SCREENSHOTS does not name a folder")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(browser: Browser, dashboard: Dashboard, fleet: Fleet, theme: str) -> None:
    folder = Path(FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    fleet.add(Scenario(run="resnet50-cifar", fetch=80, slow_every=250), 90)
    fleet.add(Scenario(run="resnet50-cifar", name="val", workers=1, fetch=15, step=30, length=400), 30)
    for rank in range(8):
        fetch = 150 if rank == 5 else 25
        fleet.add(Scenario(run="llama", rank=rank, world_size=8, workers=2, fetch=fetch, step=22, seed=rank), 9)
    context = browser.new_context(
        color_scheme="dark" if theme == "dark" else "light", viewport={"width": 1280, "height": 1960}
    )
    page = context.new_page()
    page.goto(dashboard.link)
    page.get_by_text("waits").first.wait_for(timeout=30_000)
    page.set_viewport_size({"width": 1280, "height": 620})
    page.screenshot(path=folder / f"overview-{theme}.png")
    page.set_viewport_size({"width": 1280, "height": 1960})
    page.goto(f"{dashboard.url}#/loader/resnet50-cifar%3A0%3Atrain")
    page.get_by_test_id("verdict").get_by_text("bound").wait_for()
    page.get_by_role("spinbutton", name="Workers").fill("6")
    page.get_by_role("button", name="Apply 4 → 6").click()
    page.get_by_test_id("outcome").get_by_text("Throughput").wait_for(timeout=30_000)
    page.screenshot(path=folder / f"loader-{theme}.png")
    context.close()
