"""Runs pinned, hidden and deleted on the overview."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.browser.test_pages import violations
from tests.recorded.replay import Fleet


def test_old_runs_are_pinned_hidden_and_deleted(signed_in: Callable[..., Page], page: Page, fleet: Fleet) -> None:
    replayed = {run: fleet.replay("busy", run=run, past=4.0) for run in ("alive", "older", "oldest")}
    signed_in()
    runs = page.get_by_role("region", name=re.compile("^Run "))
    expect(runs).to_have_count(3)
    for run in ("older", "oldest"):
        expect(of(page, run)).to_contain_text("running")
        fleet.call(replayed[run].leave)
        expect(of(page, run)).to_contain_text("finished")

    do(page, "oldest", "Pin on top")
    expect(runs.first).to_have_accessible_name("Run oldest")
    expect(runs.first).to_contain_text("pinned")
    do(page, "older", "Hide")
    expect(runs).to_have_count(2)
    page.get_by_role("button", name="hidden runs 1").click()
    expect(runs).to_have_count(3)
    expect(page).to_have_url(re.compile("hidden=shown"))
    page.reload()
    expect(of(page, "older")).to_contain_text("hidden")
    do(page, "older", "Show again")
    expect(page.get_by_role("button", name=re.compile("hidden runs"))).to_have_count(0)

    do(page, "alive", "Delete …")
    assert violations(page) == []
    of(page, "alive").get_by_role("button", name="Delete for good").click()
    expect(of(page, "alive").get_by_role("alert")).to_contain_text("1 loader is connected")
    page.keyboard.press("Escape")
    do(page, "older", "Delete …")
    of(page, "older").get_by_role("button", name="Keep it").click()
    of(page, "older").get_by_role("button", name="Delete …").click()
    of(page, "older").get_by_role("button", name="Delete for good").click()
    expect(runs).to_have_count(2)
    page.get_by_text("Who pinned, hid and deleted runs").click()
    expect(page.get_by_role("listitem").first).to_contain_text("older Deleted, with 1 loader, by local (127.0.0.1)")


def of(page: Page, run: str) -> Locator:
    return page.get_by_role("region", name=f"Run {run}", exact=True)


def do(page: Page, run: str, what: str) -> None:
    of(page, run).get_by_label(f"What to do with run {run}").click()
    of(page, run).get_by_role("button", name=what).click()
