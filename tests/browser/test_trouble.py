"""What the page says when something goes wrong, and when it is over: while it lasts and after."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import httpx
from playwright.sync_api import Page, expect

from tests.browser.dashboard import Dashboard

Training = Callable[[str], "subprocess.Popen[str]"]
Open = Callable[..., Page]
LOADER = "real:0:train"

HEAD = """
import os, sys, threading, time
from loader import DataLoader

class Data:
    def __len__(self):
        return LENGTH
    def __getitem__(self, index):
        return load(index)

def load(index):
    BODY

train = DataLoader(Data(), batch_size=4, num_workers=2, name="train", stack_after=0.5)
for epoch in range(EPOCHS):
    for batch in train:
        time.sleep(0.005)
"""


def script(body: str, length: int = 4000, epochs: int = 1000) -> str:
    return HEAD.replace("BODY", body).replace("LENGTH", str(length)).replace("EPOCHS", str(epochs))


def test_an_error_is_everywhere(training: Training, signed_in: Open, page: Page) -> None:
    """State, verdict, events, title, and the row of the overview; after the training is gone as before."""
    body = 'time.sleep(0.002)\n    if index == 400: raise ValueError("no such picture")\n    return index'
    process = training(script(body))
    signed_in(LOADER)
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("Died of an error.")
    expect(verdict).to_contain_text("ValueError: no such picture")
    expect(verdict).to_have_class(re.compile(r"\bbad\b"))
    expect(page.get_by_label("Loader", exact=True).locator(".pill").first).to_have_text("failed")
    expect(page).to_have_title(re.compile("✕ failed · train"))
    events = page.get_by_role("region", name="Events")
    told = events.get_by_text(re.compile(r"Dataset failed in worker \d at batch \d+, sample 400: ValueError: no such"))
    told.first.click()
    expect(events.locator("pre").first).to_contain_text(re.compile(r"in load\s+ValueError: no such picture"))
    assert process.wait() == 1
    expect(verdict).to_contain_text("Died of an error.")
    page.get_by_role("link", name="Penstock").click()
    line = page.locator(f"[data-loader='{LOADER}']")
    expect(line).to_contain_text("failed")
    expect(line).to_contain_text("ValueError: no such picture")


def test_workers_that_keep_dying_turn_the_verdict_red(training: Training, signed_in: Open, page: Page) -> None:
    body = (
        "time.sleep(0.002)\n    if index % 97 == 96 and not seen[index]: seen[index] = 1; os._exit(7)\n    return index"
    )
    training("import multiprocessing\nseen = multiprocessing.Array('b', 4000)\n" + script(body))
    signed_in(LOADER)
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("Workers keep dying.")
    expect(verdict).to_contain_text("exit code 7")
    expect(verdict).to_have_class(re.compile(r"\bbad\b"))


def test_a_hang_is_shown_while_it_lasts(training: Training, signed_in: Open, page: Page, dashboard: Dashboard) -> None:
    """With the user's own functions on the stack, all of it on demand; up to date; and no guess when it is over."""
    body = "time.sleep(0.002)\n    return stuck(index) if index == 400 else index"
    body += "\n\ndef stuck(index):\n    threading.Event().wait()"
    training(script(body))
    signed_in(LOADER)
    panel = page.get_by_role("region", name=re.compile(r"Training has waited [\d.]+ s for batch 100"))
    expect(panel.locator("pre")).to_contain_text("in stuck")
    expect(panel.locator("pre")).not_to_contain_text("threading.py")
    panel.get_by_role("button", name="All frames").click()
    expect(panel.locator("pre")).to_contain_text("threading.py")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name=re.compile("Copy")).click()
    assert "in stuck" in page.evaluate("navigator.clipboard.readText()")
    expect(page.get_by_test_id("verdict")).to_contain_text("Stuck.")
    expect(page.get_by_label("Loader", exact=True)).not_to_contain_text(re.compile(r"\bleft\b"))
    events = page.get_by_role("region", name="Events")
    expect(events.get_by_text(re.compile(r"(Stall of|Training has waited) \d+ s"))).to_have_count(1)
    page.get_by_role("button", name=re.compile("Stack of worker 1 now")).click()
    expect(page.get_by_test_id("stack").locator("pre, p.dim").first).to_be_visible()
    headers = {"Authorization": f"Bearer {dashboard.token}"}
    with httpx.Client(base_url=dashboard.url, headers=headers) as client:
        answer = client.post(f"api/loaders/{LOADER}/commands", json={"action": "stack", "worker": 0})
    assert answer.status_code == 202


def test_a_training_that_is_over_shows_its_whole_last_epoch(training: Training, signed_in: Open, page: Page) -> None:
    """True shares and cards, every chart with figures though nobody scrolled there, and in colour."""
    process = training(script("time.sleep(0.01)\n    return index", length=800, epochs=1))
    assert process.wait() == 0
    signed_in(LOADER)
    expect(page.get_by_test_id("verdict")).to_contain_text("Finished.")
    expect(page.get_by_role("button", name="Epoch", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-share='starvation']")).to_have_text(re.compile(r"[1-9]\d* %"))
    expect(page.get_by_test_id("stage-workers")).to_have_text(re.compile(r"^[1-9][\d.]* / "))
    expect(page.get_by_test_id("stage-training")).not_to_have_text("–")
    expect(page.locator(".body.stale")).to_have_count(0)
    for panel in ("throughput", "busy"):
        readout = page.locator(f"[data-panel='{panel}'] .readout b").first
        expect(readout).to_have_text(re.compile(r"^(0\.\d*[1-9]\d*|[1-9][\d.,]*)$"))
        assert not page.locator(f"[data-panel='{panel}']").evaluate("e => e.getBoundingClientRect().top < -10000")
    painted = page.locator("canvas").evaluate_all(
        """canvases => canvases.map(each => {
            const { data } = each.getContext("2d").getImageData(0, 0, each.width, each.height);
            for (let place = 3; place < data.length; place += 4) if (data[place] > 0) return true;
            return false;
        })"""
    )
    assert painted and all(painted), "nothing waits to be scrolled to"
