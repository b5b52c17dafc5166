"""Alerts on the page: in the bar, in the tab's title and icon, as notifications."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from penstock.protocol import Errors
from playwright.sync_api import Page, expect

from tests.backend.harness import Address

from .dashboard import Dashboard

NOTE_NOTIFICATIONS = """
window.shown = [];
window.Notification = class {
  static permission = "granted";
  static requestPermission() { return Promise.resolve("granted"); }
  constructor(title, options) { window.shown.push(`${title} | ${options.body}`); }
};
"""
"""A headless browser shows none: what the page asks it for is noted."""


def test_an_alert_is_in_the_bar_the_title_the_icon_and_a_notification(
    dashboard: Dashboard, page: Page, signed_in: Callable[..., Page]
) -> None:
    page.add_init_script(NOTE_NOTIFICATIONS)
    address = Address(urlsplit(dashboard.url).port or 0, {"local": dashboard.token})
    with address.loader("night") as loader:
        loader.snapshot()
        signed_in()
        expect(page.get_by_role("link", name="night train")).to_be_visible()
        page.get_by_role("button", name="No alerts").click()
        page.get_by_label("Show new ones as notifications").check()
        loader.snapshot(state="failed", errors=Errors(1, 1.0, "ValueError: torn file", fatal=True))
        expect(page.get_by_role("button", name="1 alert")).to_be_visible()
        listed = page.get_by_role("region", name="Alerts")
        expect(listed).to_contain_text("torn file")
        expect(page).to_have_title(re.compile(r"^\(1\) .*Penstock"))
        assert page.locator("link[rel=icon]").get_attribute("href") == "./icon-alert.svg"
        assert page.evaluate("window.shown") == [
            "night:0:train: failed | Training ended with an error: ValueError: torn file"
        ]
        loader.snapshot(state="running")
        expect(page.get_by_role("button", name="No alerts")).to_be_visible()
        expect(listed).to_contain_text("ended")
        listed.get_by_role("link", name="night:0:train").click()
        expect(page).to_have_url(f"{dashboard.url}#/loader/night%3A0%3Atrain")
        assert page.locator("link[rel=icon]").get_attribute("href") == "./icon.svg"
