"""The README's pictures, of the real pages over real trainings: `make screenshots`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from .conftest import ROOT
from .dashboard import Dashboard

FOLDER = os.environ.get("PENSTOCK_SCREENSHOTS", "")
WIDTH = 1280

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="PENSTOCK_SCREENSHOTS does not name a folder"),
    pytest.mark.timeout(300),
]

Demo = Callable[[str, str], None]


@pytest.fixture
def demo(dashboard: Dashboard) -> Iterator[Demo]:
    """Run a scenario of the demo, published to the dashboard under a run's name."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(scenario: str, run: str) -> None:
        where = {"PENSTOCK_URL": dashboard.url, "PENSTOCK_TOKEN": dashboard.token, "PENSTOCK_RUN": run}
        command = [sys.executable, "-m", "penstock.demo", "--scenario", scenario]
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **where}, stdout=subprocess.DEVNULL, start_new_session=True
            )
        )

    yield start
    for process in processes:
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.fixture(params=["light", "dark"])
def pictured(browser: Browser, request: pytest.FixtureRequest) -> Iterator[tuple[Page, str]]:
    """A page in a theme, and the theme's name."""
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    context = browser.new_context(color_scheme=request.param, viewport={"width": WIDTH, "height": 1960})
    context.set_default_timeout(90_000)
    yield context.new_page(), request.param
    context.close()


def test_pictures_of_a_loader(pictured: tuple[Page, str], dashboard: Dashboard, demo: Demo) -> None:
    page, theme = pictured
    demo("starved", "demo")
    page.goto(dashboard.link)
    page.locator("[data-loader]").first.click()
    page.get_by_test_id("verdict").get_by_text("Data-bound.").wait_for()
    page.wait_for_timeout(30_000)  # something to see in the charts
    page.get_by_role("spinbutton", name="Workers").fill("6")
    page.get_by_role("button", name="Apply 2 → 6").click()
    page.get_by_test_id("outcome").get_by_text("Throughput").wait_for()
    page.wait_for_timeout(10_000)  # and what came of it
    page.screenshot(path=Path(FOLDER) / f"loader-{theme}.png")


def test_pictures_of_the_overview(pictured: tuple[Page, str], dashboard: Dashboard, demo: Demo) -> None:
    page, theme = pictured
    demo("starved", "images")
    demo("many-ranks", "six-ranks")
    page.set_viewport_size({"width": WIDTH, "height": 620})
    page.goto(dashboard.link)
    page.get_by_text("Rank 3 waits").first.wait_for()
    page.wait_for_timeout(15_000)
    page.screenshot(path=Path(FOLDER) / f"overview-{theme}.png")
