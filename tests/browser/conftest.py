"""A real backend, a real Chromium, and loaders: recorded ones to look at, real ones to steer (`tests/recorded`)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.recorded.replay import Fleet, Replayed
from tests.recorded.shapes import Shape
from tests.recorded.stage import Stage, Trained

from .dashboard import Dashboard

sync_api = pytest.importorskip("playwright.sync_api")
from playwright.sync_api import (  # noqa: E402
    Browser,
    BrowserContext,
    Page,
    Playwright,
    expect,
    sync_playwright,
)

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "backend" / "penstock_dashboard" / "static"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    if (STATIC / "index.html").exists():
        return
    npm = shutil.which("npm")
    if npm is None or not (ROOT / "frontend" / "node_modules").exists():
        pytest.skip("the frontend is not built: run `npm ci && npm run build` in frontend/")
    subprocess.run([npm, "run", "build"], cwd=ROOT / "frontend", check=True)


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    # Machines that run tests are busy; what is asserted here is that things happen, not how fast.
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Gone when other tests come: Chromium starts and ends processes as it likes, and some of them count theirs."""
    try:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    except sync_api.Error as error:
        pytest.skip(f"no Chromium: {str(error).splitlines()[0]}")
    yield browser
    browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(PATIENCE * 1000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page on which any error in the console fails the test."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    # A refused sign-in, a backend that is down, a name that is unknown: the browser itself logs those.
    expected = re.compile(r"Failed to load resource|WebSocket connection to|ERR_CONNECTION_REFUSED")
    assert [error for error in errors if not expected.search(error)] == []


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    dashboard = Dashboard(tmp_path)
    dashboard.start()
    yield dashboard
    dashboard.stop()


@pytest.fixture
def fleet(dashboard: Dashboard) -> Iterator[Fleet]:
    fleet = Fleet(dashboard.url, dashboard.token)
    yield fleet
    fleet.close()


@pytest.fixture
def train(fleet: Fleet) -> Replayed:
    """One recorded loader with four busy workers and twenty seconds of past."""
    return fleet.replay("busy", run="demo", past=20.0)


@pytest.fixture(scope="package")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture
def steered(stage: Stage, dashboard: Dashboard) -> Iterator[Trained]:
    """One real loader with four busy workers, which does what it is told."""
    yield stage.train(dashboard.url, dashboard.token, Shape(fetch=0.14, step=0.009), run="real")
    stage.clear()


@pytest.fixture
def signed_in(page: Page, dashboard: Dashboard) -> Callable[[str], Page]:
    """Open a page of the dashboard by its link, as from a terminal."""

    def open_page(loader: str = "") -> Page:
        page.goto(dashboard.link)
        page.get_by_test_id("live-badge").get_by_text("live").first.wait_for()
        if loader:
            page.goto(f"{dashboard.url}#/loader/{loader.replace(':', '%3A')}")
            page.get_by_test_id("batch").wait_for()
        return page

    return open_page


@pytest.fixture
def training(dashboard: Dashboard) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Run a training script in a process of its own, published to the dashboard."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PENSTOCK_URL": dashboard.url,
            "PENSTOCK_TOKEN": dashboard.token,
            "PENSTOCK_RUN": "real",
            "PYTHONPATH": str(ROOT),
        }
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", script],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
