"""Two stretches side by side, and the ways there: from a resize, from a zoom, from two runs."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Browser, Page, expect

from tests.browser.dashboard import Dashboard
from tests.browser.test_pages import violations
from tests.recorded.replay import Fleet
from tests.recorded.stage import Trained


def test_before_and_after_a_resize_is_a_link_that_somebody_else_can_open(
    signed_in: Callable[..., Page], page: Page, steered: Trained, browser: Browser, dashboard: Dashboard
) -> None:
    signed_in(steered.id)
    page.get_by_role("spinbutton", name="Workers").fill("2")
    page.get_by_role("button", name="Apply 4 → 2").click()
    events = page.get_by_role("region", name="Events")
    command = events.get_by_role("listitem").filter(has_text=re.compile(r"4 → 2"))
    link = command.get_by_role("link", name="compare before / after").first
    if not link.is_visible():
        command.locator("summary").first.click()
    link.click()
    expect(page).to_have_url(re.compile(r"#/compare\?a=real:0:train@before:\d+\.\d+&b=real:0:train@after:"))
    # Some seconds must go by before there is something to say of the time after.
    workers = page.locator("[data-number=workers]")

    def look_again() -> bool:
        page.reload()
        expect(page.get_by_test_id("outcome")).to_be_visible()
        return "Of the " not in page.get_by_test_id("outcome").inner_text()

    while not look_again():
        page.wait_for_timeout(500)
    expect(workers.get_by_role("cell").nth(0)).not_to_have_text("2")
    expect(workers.get_by_role("cell").nth(1)).to_have_text("2")
    expect(page.get_by_role("region", name="Second")).to_contain_text("after 4 → 2 workers")
    expect(page.get_by_role("img", name=re.compile("^Throughput, "))).to_have_count(2)
    other = browser.new_context(viewport={"width": 375, "height": 800}, color_scheme="dark").new_page()
    other.goto(dashboard.link)
    other.locator(f"[data-loader='{steered.id}']").wait_for()
    other.goto(page.url)
    expect(other.get_by_test_id("outcome")).to_be_visible()
    assert other.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert violations(other) == []
    other.context.close()
    assert violations(page) == []


def test_two_runs_and_a_zoom_lead_to_their_comparison(signed_in: Callable[..., Page], page: Page, fleet: Fleet) -> None:
    for run, situation in (("left", "waiting"), ("right", "keeping-up")):
        fleet.replay(situation, run=run, past=20.0)
    signed_in()
    runs = page.get_by_role("region", name=re.compile("^Run "))
    expect(runs).to_have_count(2)
    for run in ("left", "right"):
        page.get_by_label(f"What to do with run {run}").click()
        menu = page.get_by_role("region", name=f"Run {run}")
        menu.get_by_text(re.compile(r"^Compare with ")).click()
    expect(page).to_have_url(re.compile(r"#/compare\?a=left&b=right$"))
    expect(page.get_by_test_id("outcome")).to_contain_text("Training waits")
    expect(page.get_by_role("region", name="First")).to_contain_text("Data-bound.")
    expect(page.get_by_role("region", name="Second")).to_contain_text("right:0:train")
    expect(page.locator("[data-number=waiting]")).to_contain_text("better")
    page.get_by_role("link", name="Swap").click()
    expect(page.locator("[data-number=waiting]")).to_contain_text("worse")
    page.get_by_label("Second: loader").select_option("right:0:train")
    expect(page.get_by_test_id("outcome")).to_contain_text("no difference that counts")

    page.get_by_role("region", name="First").get_by_role("link", name="right:0:train").click()
    expect(page.get_by_role("region", name="Events").get_by_role("heading")).to_contain_text("from")
    page.get_by_role("link", name="Compare with …").click()
    expect(page).to_have_url(re.compile(r"a=right:0:train@\d+\.\d\d-\d+\.\d\d&b=right:0:train@"))
    expect(page.get_by_role("region", name="Second")).to_contain_text("a stretch of")
