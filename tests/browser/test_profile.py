"""The flame graph over a real training: it grows, is read by mouse and keyboard, and names the line that costs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.backend.harness import until
from tests.browser.test_pages import violations

SCRIPT = """
import ctypes, time
ctypes.CDLL(None).prctl(1, 9)  # the kernel ends us with the test, however that ends
import torch
from penstock import DataLoader

def decode(index):  # one of 640 takes long, each longer than the one before
    time.sleep(0.004 if index % 640 != 7 else 0.2 + index / 100_000)

def augment(index):
    return sum(value % 7 for value in range(20000))

class Photos(torch.utils.data.Dataset):
    def __len__(self):
        return 640_000
    def __getitem__(self, index):
        decode(index)
        augment(index)
        return torch.full((32,), float(index))

train = DataLoader(Photos(), batch_size=16, num_workers=2, name="train", record_samples=3)
for batch in train:
    pass
"""
LOADER = "real:0:train"


def table(page: Page) -> dict[str, int]:
    """Function → its share with what it calls, in per cent."""
    rows = page.get_by_role("region", name="Functions by their own time").locator("tbody tr")
    found = {}
    for row in rows.all():
        name, *_, total = row.locator("th, td").all_text_contents()
        found[name] = int(re.sub(r"\D", "", total) or 0)
    return found


def test_a_flame_graph_grows_and_names_the_line(
    signed_in: Callable[..., Page], page: Page, training: Callable[[str], subprocess.Popen[str]]
) -> None:
    training(SCRIPT)
    signed_in(LOADER)
    panel = page.get_by_role("region", name="Profile: where samples spend their time")
    panel.get_by_role("button", name="60 s").click()
    panel.get_by_role("button", name="Profile", exact=True).click()
    graph = panel.get_by_role("img", name=re.compile("Flame graph"))
    graph.wait_for()
    expect(panel.get_by_role("status")).to_contain_text("looking")
    panel.get_by_text("As a table").click()
    until(lambda: table(page).get("decode", 0) > 30, "decode as the most costly function")
    assert table(page)["Photos.__getitem__"] >= table(page)["decode"]
    seen = panel.get_by_role("status").text_content()
    expect(panel.get_by_role("status")).not_to_have_text(seen or "")

    # The slowest samples of the epoch have the line at which they were seen.
    page.get_by_text("The 3 slowest samples").click()
    slowest = page.get_by_role("region", name="The slowest samples of the epoch")
    expect(slowest.locator("tbody tr").first).to_contain_text(re.compile(r"line \d+ in decode"))
    expect(page.get_by_test_id("verdict")).to_contain_text(
        re.compile(r"\d+ % of a sample('s computing)? is \S+ \(<?string>?:\d+\)")
    )

    panel.get_by_role("button", name="Stop").click()
    panel.get_by_role("button", name="Profile", exact=True).wait_for()

    # By keyboard: to the first function, in to what it calls, and zoomed into that.
    graph.focus()
    page.keyboard.press("ArrowDown")
    expect(panel.locator("[aria-live]")).to_contain_text("Photos.__getitem__")
    page.keyboard.press("ArrowDown")
    expect(panel.locator("[aria-live]")).to_contain_text("decode")
    page.keyboard.press("Enter")
    panel.get_by_role("button", name="Show all").wait_for()
    page.keyboard.press("Escape")
    expect(panel.get_by_role("button", name="Show all")).to_have_count(0)

    # By mouse: what is under the pointer is named, with its file and line.
    graph.hover(position={"x": 200, "y": 5})
    expect(panel.locator(".tip")).to_contain_text("Photos.__getitem__")
    expect(panel.locator(".tip")).to_contain_text(re.compile(r":\d+"))
    page.mouse.move(0, 0)

    # Processor time: what sleeps costs none.
    panel.get_by_role("button", name="Processor").click()
    until(lambda: table(page).get("augment", 0) > table(page).get("decode", 0), "augment by processor time")
    panel.get_by_role("button", name="Wall").click()
    panel.get_by_role("searchbox").fill("decode")
    expect(panel.locator("[aria-live]")).to_contain_text("% of the time is in what “decode” finds")
    panel.get_by_label("Phase").select_option("send")
    panel.get_by_label("Phase").select_option("")
    panel.get_by_label("Worker").select_option("1")
    until(lambda: table(page).get("decode", 0) > 30, "the same of one worker")
    panel.get_by_label("inside libraries").check()

    # A second one, as a difference; and both are there when the page is opened again.
    panel.get_by_role("button", name="10 s").click()
    panel.get_by_role("button", name="Profile", exact=True).click()
    panel.get_by_label("Compare with").wait_for()
    panel.get_by_label("Compare with").select_option(index=1)
    expect(panel).to_contain_text("Redder takes more than in the other profile")
    assert violations(page) == []
    page.reload()
    panel.get_by_label("Compare with").wait_for()
    graph.wait_for()
