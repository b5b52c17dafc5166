"""A moment as a link, notes of the training over the charts, and the report: of a real training."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, Request, expect

from tests.browser.dashboard import Dashboard
from tests.browser.test_pages import violations

SCRIPT = """
import ctypes, os, time
ctypes.CDLL(None).prctl(1, 9)  # the kernel ends us with the test, however that ends
from penstock import DataLoader

train = DataLoader(list(range(100000)), batch_size=4, num_workers=1, name="train")
for number, batch in enumerate(train):
    if number == 20:
        train.note("lr drop")
    time.sleep(0.02)
"""
LOADER = "real:0:train"


def test_a_moment_is_a_link_that_somebody_else_can_open(
    signed_in: Callable[..., Page],
    page: Page,
    browser: Browser,
    dashboard: Dashboard,
    training: Callable[[str], subprocess.Popen[str]],
) -> None:
    training(SCRIPT)
    signed_in(LOADER)
    events = page.get_by_role("region", name="Events")
    expect(events).to_contain_text("Note: lr drop")
    page.get_by_role("button", name="10 min").click()
    expect(page).to_have_url(re.compile(r"\?range=10m$"))
    events.get_by_role("button", name=re.compile("^Workers")).click()
    expect(page).to_have_url(re.compile(r"events=error,stall"))
    page.get_by_role("button", name="Freeze").first.click()
    expect(page).to_have_url(re.compile(r"from=\d+\.\d\d&to=\d+\.\d\d"))
    other = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
    other.goto(dashboard.link)
    other.locator(f"[data-loader='{LOADER}']").wait_for()
    other.goto(page.url)
    expect(other.get_by_role("button", name="Follow live").first).to_have_attribute("aria-pressed", "true")
    shown = other.get_by_role("region", name="Events")
    expect(shown.get_by_role("heading")).to_contain_text("from")
    expect(shown.get_by_role("button", name=re.compile("^Workers"))).to_have_attribute("aria-pressed", "false")
    expect(shown).to_contain_text("Note: lr drop")
    shares = other.get_by_role("region", name="Where the time goes")
    expect(shares).to_contain_text(re.compile(r"from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d"))
    expect(shares.locator("[data-share=compute]")).to_have_text(re.compile(r"[1-9]\d* %"))
    assert violations(other) == []
    other.get_by_role("button", name="Follow live").first.click()
    expect(other).not_to_have_url(re.compile("from="))
    expect(other).to_have_url(re.compile("range=10m"))
    other.goto(f"{dashboard.url}#/?filter=nobody&sort=-rate")
    expect(other.get_by_role("searchbox", name="Filter loaders")).to_have_value("nobody")
    expect(other.get_by_text("Nothing matches.")).to_be_visible()
    other.context.close()


def test_the_report_is_one_file_that_opens_anywhere(
    signed_in: Callable[..., Page],
    page: Page,
    browser: Browser,
    training: Callable[[str], subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    training(SCRIPT)
    signed_in(LOADER)
    expect(page.get_by_role("region", name="Events")).to_contain_text("Note: lr drop")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Report of the run").click()
    assert saved.value.suggested_filename == "real-report.html"
    saved.value.save_as(tmp_path / "report.html")
    for theme, width in (("light", 1280), ("dark", 375)):
        context = browser.new_context(
            color_scheme="dark" if theme == "dark" else "light",
            viewport={"width": width, "height": 900},
            bypass_csp=True,  # axe is a script; the page itself allows none
        )
        opened = context.new_page()
        asked: list[str] = []
        note: Callable[[Request], None] = lambda request: asked.append(request.url)  # noqa: B023, E731
        opened.on("request", note)
        opened.goto(f"file://{tmp_path}/report.html")
        expect(opened.get_by_role("heading", level=1)).to_have_text("Penstock report: real")
        expect(opened.get_by_role("img", name=re.compile("^Throughput"))).to_be_visible()
        expect(opened.get_by_text("Note: lr drop")).to_be_visible()
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert [url for url in asked if not url.startswith("file:")] == []
        assert violations(opened) == []
        context.close()
