"""What a person sees and does, in a real browser against a real backend."""

from __future__ import annotations

import http.server
import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.backend.harness import until
from tests.recorded.replay import Fleet, Replayed
from tests.recorded.stage import Trained

from .dashboard import Dashboard

Open = Callable[..., Page]
AXE = Path(__file__).resolve().parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"


def number(text: str | None) -> int:
    return int(re.sub(r"\D", "", text or ""))


# ------------------------------------------------------------------------------------------------ sign-in


def test_the_link_from_the_terminal_signs_in_once_and_cleans_the_address(
    page: Page, browser: Browser, dashboard: Dashboard
) -> None:
    code = dashboard.once.partition("#once=")[2]
    page.goto(dashboard.once)
    expect(page.get_by_role("heading", name="No loader has connected yet")).to_be_visible()
    assert code not in page.url
    assert code not in page.content()
    page.go_back()
    assert code not in page.url
    elsewhere = browser.new_context().new_page()
    elsewhere.goto(dashboard.once)
    expect(elsewhere.get_by_role("alert")).to_contain_text("used before")
    elsewhere.context.close()
    page.goto(dashboard.link)
    expect(page.get_by_role("heading", name="No loader has connected yet")).to_be_visible()
    assert dashboard.token not in page.url


class Thief(http.server.BaseHTTPRequestHandler):
    """Another program on the same host, on a port of its own: it notes what browsers send it."""

    cookies: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: object) -> None:
        pass


def test_the_cookie_is_of_no_use_to_another_port_of_the_host(page: Page, dashboard: Dashboard) -> None:
    """Chromium sends it there: that is how cookies are. What it gets is half of a session."""
    page.goto(dashboard.link)
    expect(page.get_by_role("heading", name="No loader has connected yet")).to_be_visible()
    with http.server.HTTPServer(("127.0.0.1", 0), Thief) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        halves = page.evaluate("Object.values(localStorage)")
        server.shutdown()
        thread.join(10)
    assert halves == [], "the page's half stays with its origin"
    stolen = next(cookie for cookie in Thief.cookies if "penstock-" in cookie)
    headers = {"Cookie": stolen, "Origin": dashboard.url.rstrip("/")}
    assert httpx.get(f"{dashboard.url}api/loaders", headers=headers).status_code == 401
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws{dashboard.url.removeprefix('http')}ws/live", additional_headers=headers, proxy=None),
    ):
        pass
    assert refused.value.response.status_code == 401
    page.goto(dashboard.url)
    expect(page.get_by_role("heading", name="No loader has connected yet")).to_be_visible()


def test_a_wrong_token_is_refused_with_a_reason_and_a_right_one_is_taken(page: Page, dashboard: Dashboard) -> None:
    page.goto(f"{dashboard.url}#token=wrong")
    expect(page.get_by_role("alert")).to_contain_text("not known")
    assert "wrong" not in page.url
    page.get_by_label("Token").fill("also-wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Token").fill(dashboard.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="No loader has connected yet")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


# ----------------------------------------------------------------------------------------------- overview


def test_the_overview_fills_by_itself_and_leads_to_a_loader(signed_in: Open, fleet: Fleet, page: Page) -> None:
    signed_in()
    expect(page.get_by_text("monitor=True").first).to_be_visible()
    fleet.replay("keeping-up", run="demo")
    row = page.locator("[data-loader='demo:0:train']")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("now")
    expect(row.locator("svg path.line")).to_have_attribute("d", re.compile("L"))
    row.click()
    expect(page.get_by_role("heading", name="train", exact=True)).to_be_visible()


def test_many_ranks_fold_into_a_grid_in_which_the_straggler_stands_out(
    signed_in: Open, fleet: Fleet, page: Page
) -> None:
    for rank in range(6):
        situation = "waiting" if rank == 4 else "keeping-up"
        fleet.replay(situation, run="llama", rank=rank, world_size=6, past=8.0)
    signed_in()
    grid = page.get_by_role("group", name="Ranks of train")
    expect(grid.get_by_role("link")).to_have_count(6)
    verdict = page.get_by_test_id("run-verdict")
    expect(verdict).to_contain_text(re.compile(r"Rank 4 on \S+ holds back all 5 others"))
    page.get_by_role("button", name="by what they wait for").click()
    expect(grid.get_by_role("link").first).to_have_attribute("aria-label", re.compile("^Rank 4 .*starvation"))
    page.get_by_role("button", name="by rank").click()
    expect(grid.get_by_role("link").first).to_have_attribute("aria-label", re.compile("^Rank 0 "))
    verdict.get_by_role("link").click()
    expect(page.get_by_label("Where you are")).to_contain_text("rank 4")


def test_two_ranks_are_enough_for_a_straggler_and_orders_to_all_are_confirmed(
    signed_in: Open, fleet: Fleet, page: Page
) -> None:
    fleet.replay("keeping-up", run="pair", rank=0, world_size=2, past=8.0)
    fleet.replay("waiting", run="pair", rank=1, world_size=2, past=8.0)
    signed_in()
    run = page.get_by_role("region", name="Run pair")
    expect(run.get_by_test_id("run-verdict")).to_contain_text("Rank 1")
    run.get_by_text("Control all 2 loaders").click()
    run.get_by_role("button", name="Pause all").click()
    sure = run.get_by_role("group", name="Confirm")
    expect(sure).to_contain_text("Pause all, in 2 loaders of pair?")
    sure.get_by_role("button", name="No").click()
    expect(run.get_by_role("status")).to_be_empty()
    run.get_by_role("button", name="Pause all").click()
    sure.get_by_role("button", name="Yes, do it").click()
    expect(run.get_by_role("status")).to_contain_text("asked 2 loaders")


def test_filter_and_sort(signed_in: Open, fleet: Fleet, page: Page) -> None:
    fleet.replay("waiting", run="alpha")
    fleet.replay("busy", run="beta")
    signed_in()
    expect(page.locator("[data-loader]")).to_have_count(2)
    page.keyboard.press("/")
    page.keyboard.type("bet")
    expect(page.locator("[data-loader]")).to_have_count(1)
    page.get_by_label("Filter loaders").fill("")
    page.get_by_role("button", name=re.compile("^Workers: sort by it")).click()
    expect(page.locator("[data-loader]").first).to_contain_text("beta")
    page.get_by_role("button", name=re.compile("^Workers: sort by it")).click()
    expect(page.locator("[data-loader]").first).to_contain_text("alpha")


# --------------------------------------------------------------------------------------------- loader page


def test_numbers_move_and_the_verdict_names_the_limit(signed_in: Open, train: Replayed, page: Page) -> None:
    signed_in(train.id)
    batch = page.get_by_test_id("batch")
    first = number(batch.text_content())
    expect(batch).not_to_have_text(f"{first:,}")
    verdict = page.get_by_test_id("verdict")
    expect(verdict).to_contain_text("Data-bound.")
    expect(verdict).to_contain_text("All 4 workers are busy")
    expect(page.locator("[data-stage=workers]")).to_contain_text("limits")
    expect(page.locator("[data-worker]")).to_have_count(4)
    shares = [number(text) for text in page.locator("[data-share]").all_text_contents()]
    assert sum(shares) == 100
    reached = train.batch
    until(lambda: number(page.get_by_test_id("batch").text_content()) >= reached, "as many batches as there were")
    shown = number(page.get_by_test_id("batch").text_content())
    assert shown <= train.batch
    for panel in page.locator("figure[data-panel]").all():
        panel.scroll_into_view_if_needed()
        expect(panel.locator("canvas")).to_be_visible()
        assert drawn(panel.locator("canvas").first.evaluate("canvas => canvas.toDataURL()"))
    page.get_by_role("heading", name="Timeline").scroll_into_view_if_needed()


def drawn(picture: str) -> bool:
    """An empty canvas compresses to next to nothing."""
    return len(picture) > 2500


def test_the_keyboard_steers(signed_in: Open, steered: Trained, page: Page) -> None:
    signed_in()
    page.locator(f"[data-loader='{steered.id}']").click()
    expect(page.locator("[data-worker]")).to_have_count(4)
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Apply 4 → 6")).to_be_enabled()
    page.keyboard.press("a")
    expect(page.get_by_test_id("outcome")).to_contain_text(
        re.compile(r"Applied 4 → 6 workers at batch [\d,]+ after \d+")
    )
    expect(page.locator("[data-worker]")).to_have_count(6)
    expect(page.get_by_role("region", name="Events")).to_contain_text("Resize 4 → 6 applied")
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    expect(page.locator("[data-worker]").first).to_contain_text("paused")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Pause or resume")


def test_a_pause_may_end_by_itself(signed_in: Open, steered: Trained, page: Page) -> None:
    signed_in()
    page.locator(f"[data-loader='{steered.id}']").click()
    page.get_by_label("and resume").select_option("60")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_test_id("outcome")).to_contain_text("pause for 60 s")
    expect(page.get_by_test_id("outcome")).to_contain_text("Resumes by itself in")
    expect(page.get_by_test_id("verdict")).to_contain_text("Paused.")


def test_the_tuner_is_switched_on_and_a_resize_pins_what_it_found(
    signed_in: Open, steered: Trained, page: Page
) -> None:
    signed_in()
    page.locator(f"[data-loader='{steered.id}']").click()
    switch = page.get_by_test_id("autotune")
    expect(switch).to_have_text("Autotune off")
    switch.click()
    expect(switch).to_have_text("Autotune on")
    expect(page.get_by_role("region", name="Events")).to_contain_text(
        re.compile(r"Autotune tries 4 → \d+ workers: .+ \([\d.]+ batches/s now, [\d.]+ expected\)")
    )
    page.get_by_role("spinbutton", name="Workers").fill("3")
    page.get_by_role("button", name=re.compile(r"Apply \d+ → 3")).click()
    expect(switch).to_have_text("Autotune pinned")
    expect(page.get_by_test_id("tuned")).to_contain_text("pinned at 3 by hand")
    switch.click()
    expect(switch).to_have_text("Autotune on")


def test_nothing_is_shown_as_done_before_the_loader_says_so(signed_in: Open, train: Replayed, page: Page) -> None:
    signed_in(train.id)
    page.get_by_role("spinbutton", name="Workers").fill("6")
    page.get_by_role("button", name="Apply 4 → 6").click()
    expect(page.get_by_role("button", name="Applying …")).to_be_visible()
    page.wait_for_timeout(1500)
    expect(page.get_by_test_id("outcome")).not_to_contain_text("Applied")
    expect(page.get_by_test_id("outcome")).to_contain_text("4 → 6 workers")


def test_a_refusal_says_why(signed_in: Open, train: Replayed, page: Page) -> None:
    train.refusing = "the dataset cannot be shared by more workers"
    signed_in(train.id)
    page.keyboard.press("p")
    expect(page.get_by_test_id("outcome")).to_contain_text("Rejected")
    expect(page.get_by_test_id("outcome")).to_contain_text("the dataset cannot be shared")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


PICTURE = "canvas => canvas.toDataURL()"


def test_charts_freeze_follow_and_zoom(signed_in: Open, train: Replayed, page: Page) -> None:
    signed_in(train.id)
    chart = page.locator("figure[data-panel=throughput] .plot")
    chart.scroll_into_view_if_needed()
    page.keyboard.press("f")
    toolbar = page.locator(".toolbar")
    expect(toolbar.get_by_role("button", name="Follow live")).to_be_visible()
    canvas = chart.locator("canvas")

    def moved_in(milliseconds: float) -> bool:
        """Whether the picture changes; samples come five times a second."""
        before = canvas.evaluate(PICTURE)
        page.wait_for_timeout(milliseconds)
        return bool(canvas.evaluate(PICTURE) != before)

    until(lambda: not moved_in(500), "a frozen chart")  # a page that is just opened may still lay itself out
    assert not moved_in(1500), "a frozen chart was drawn anew"
    toolbar.get_by_role("button", name="Follow live").click()
    expect(toolbar.get_by_role("button", name="Freeze")).to_be_visible()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60, steps=5)
    page.mouse.up()
    expect(toolbar.get_by_role("button", name="Zoom out")).to_be_visible()
    toolbar.get_by_role("button", name="10 min").click()
    expect(toolbar.get_by_role("button", name="10 min")).to_have_attribute("aria-pressed", "true")


def test_events_can_be_filtered_and_exported(signed_in: Open, fleet: Fleet, page: Page) -> None:
    loader = fleet.replay("stalling", run="demo", past=20.0)
    signed_in(loader.id)
    events = page.get_by_role("region", name="Events")
    events.get_by_text("Stall of").first.click()
    expect(events).to_contain_text("in __getitem__")
    page.get_by_role("button", name=re.compile("^Stalls")).click()
    expect(events).not_to_contain_text("Stall of")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert "stall" in download.value.path().read_text()


# ---------------------------------------------------------------------------------------------- connection


def test_a_training_that_ends_is_shown_finished(signed_in: Open, train: Replayed, fleet: Fleet, page: Page) -> None:
    signed_in(train.id)
    fleet.call(train.leave)
    expect(page.get_by_test_id("verdict")).to_contain_text("Finished.")
    expect(page.get_by_test_id("controls-off")).to_contain_text("finished")
    expect(page.get_by_test_id("live-badge")).to_contain_text("finished")


def test_a_training_that_is_killed_is_shown_stale_and_then_lost(
    signed_in: Open, train: Replayed, fleet: Fleet, page: Page
) -> None:
    signed_in(train.id)
    fleet.call(train.vanish)
    expect(page.get_by_test_id("live-badge")).to_contain_text("stale")
    expect(page.locator(".body")).to_have_class(re.compile("stale"))
    expect(page.get_by_test_id("verdict")).to_contain_text("Lost.")


def test_silence_is_seen_as_silence(signed_in: Open, train: Replayed, fleet: Fleet, page: Page) -> None:
    signed_in(train.id)
    fleet.call(train.silence, True)
    expect(page.get_by_test_id("verdict")).to_contain_text("No new data.")
    expect(page.get_by_test_id("live-badge")).to_contain_text("old")
    fleet.call(train.silence, False)
    expect(page.get_by_test_id("verdict")).not_to_contain_text("No new data.")


def test_a_backend_that_restarts_leaves_no_hole(
    signed_in: Open, train: Replayed, dashboard: Dashboard, page: Page
) -> None:
    signed_in(train.id)
    page.wait_for_timeout(2000)
    dashboard.kill()
    expect(page.get_by_test_id("live-badge")).to_contain_text(re.compile("offline|reconnecting"))
    expect(page.get_by_test_id("verdict")).to_contain_text("Not connected.")
    expect(page.get_by_test_id("controls-off")).to_contain_text("Not connected")
    page.wait_for_timeout(3000)
    dashboard.start()
    expect(page.get_by_test_id("live-badge")).to_contain_text("live")
    page.wait_for_timeout(3000)
    times = page.evaluate(
        """async id => {
            const now = Date.now() / 1000;
            const headers = { "X-Penstock-Page": Object.values(localStorage)[0] };
            const answer = await fetch(`api/loaders/${id}/history?from=${now - 12}&to=${now}&points=500`, { headers });
            return (await answer.json()).at;
        }""",
        train.id,
    )
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times and max(gaps) < 1.0


def test_a_page_under_a_proxy_prefix(page: Page, tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.start("--root-path", "/tools/penstock")
    try:
        fleet = Fleet(dashboard.url, dashboard.token)
        loader = fleet.replay("busy", run="demo")
        address = dashboard.url if "/tools/penstock" in dashboard.url else f"{dashboard.url}tools/penstock/"
        page.goto(f"{address}#token={dashboard.token}")
        page.locator(f"[data-loader='{loader.id}']").click()
        expect(page.get_by_test_id("batch")).to_be_visible()
        fleet.close()
    finally:
        dashboard.stop()


# ----------------------------------------------------------------------------------------------- read-only


def test_a_read_only_dashboard_says_why_the_controls_are_off(page: Page, tmp_path: Path) -> None:
    dashboard = Dashboard(tmp_path)
    dashboard.start("--read-only")
    try:
        fleet = Fleet(dashboard.url, dashboard.token)
        loader = fleet.replay("busy", run="demo")
        page.goto(dashboard.link)
        page.locator(f"[data-loader='{loader.id}']").click()
        expect(page.get_by_test_id("controls-off")).to_contain_text("Read-only")
        expect(page.get_by_role("button", name="Pause", exact=True)).to_be_disabled()
        expect(page.get_by_role("spinbutton", name="Workers")).to_be_disabled()
        page.keyboard.press("p")
        page.wait_for_timeout(500)
        asked = f"{dashboard.url}api/loaders/{loader.id}/commands"
        assert httpx.get(asked, headers={"Authorization": f"Bearer {dashboard.token}"}).json() == []
        fleet.close()
    finally:
        dashboard.stop()


def test_a_token_that_may_only_view(page: Page, dashboard: Dashboard, train: Replayed) -> None:
    token = dashboard.add_token("guest", "view")
    dashboard.stop()
    dashboard.start()
    page.goto(f"{dashboard.url}#token={token}")
    page.locator(f"[data-loader='{train.id}']").click()
    expect(page.get_by_test_id("controls-off")).to_contain_text("may only view")


# ------------------------------------------------------------------------------------- for everybody's eyes


def violations(page: Page) -> list[str]:
    """What axe-core finds, put into an isolated world so that the strict content policy stays in force."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run `npm ci` in frontend/")
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{rule['id']}: {rule['help']} ({', '.join(node['target'][0] for node in rule['nodes'][:4])})" for rule in found
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, dashboard: Dashboard, fleet: Fleet, theme: str) -> None:
    loader = fleet.replay("stalling", run="demo", past=20.0)
    for rank in range(5):
        fleet.replay("keeping-up", run="ranks", rank=rank, world_size=5)
    context = browser.new_context(color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    page.goto(dashboard.url)
    page.get_by_role("heading", name="Sign in").wait_for()
    found = {"sign-in": violations(page)}
    page.goto(dashboard.link)
    page.locator("[data-loader='demo:0:train']").wait_for()
    page.get_by_role("group", name="Ranks of train").wait_for()
    found["overview"] = violations(page)
    page.goto(f"{dashboard.url}#/loader/demo%3A0%3Atrain")
    page.get_by_role("region", name="Events").get_by_text("Stall of").first.wait_for()
    page.get_by_test_id("verdict").get_by_text("bound").wait_for()
    found["loader"] = violations(page)
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    found["shortcuts"] = violations(page)
    page.keyboard.press("Escape")
    fleet.call(loader.vanish)
    page.locator(".body.stale").wait_for()
    found["stale"] = violations(page)
    page.goto(f"{dashboard.url}#/loader/no%3A0%3Asuch")
    page.get_by_role("heading", name="No loader of this name").wait_for()
    found["unknown"] = violations(page)
    context.close()
    assert {name: list for name, list in found.items() if list} == {}


def test_dark_by_system_and_by_choice(browser: Browser, dashboard: Dashboard) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(dashboard.link)
    colour = "() => getComputedStyle(document.querySelector('header')).backgroundColor"
    page.get_by_role("heading", name="No loader has connected yet").wait_for()
    dark = page.evaluate(colour)
    page.get_by_label("Theme").select_option("light")
    light = page.evaluate(colour)
    assert dark != light == "rgb(255, 255, 255)"
    page.reload()
    page.get_by_role("heading", name="No loader has connected yet").wait_for()
    assert page.evaluate(colour) == light
    context.close()


def test_no_page_scrolls_sideways_on_a_phone(browser: Browser, dashboard: Dashboard, fleet: Fleet) -> None:
    loader = fleet.replay("busy", run="a-run-with-a-rather-long-name-of-fifty-characters-or-so", past=10.0)
    context = browser.new_context(viewport={"width": 375, "height": 740})
    page = context.new_page()
    page.goto(dashboard.url)
    page.get_by_role("heading", name="Sign in").wait_for()
    widths = [page.evaluate("document.documentElement.scrollWidth")]
    page.goto(dashboard.link)
    page.locator("[data-loader]").wait_for()
    widths.append(page.evaluate("document.documentElement.scrollWidth"))
    page.goto(f"{dashboard.url}#/loader/{loader.id.replace(':', '%3A')}")
    page.get_by_test_id("verdict").get_by_text("bound").wait_for()
    widths.append(page.evaluate("document.documentElement.scrollWidth"))
    context.close()
    assert max(widths) <= 375
