"""A plain generator under `loader.watch`: the page shows what is known, and unknown as unknown, never as 0."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

from playwright.sync_api import Page, expect

SCRIPT = """
import os, threading, time
import loader

class Text:
    pass

ending = threading.Event()
threading.Thread(target=lambda: (os.read(0, 64), ending.set()), daemon=True).start()

def batches():
    while not ending.is_set():
        time.sleep(0.01)
        yield Text()

for batch in loader.watch(batches(), name="train"):
    time.sleep(0.005)
"""
LOADER = "real:0:train"


def test_a_watched_generator(training: Callable[[str], subprocess.Popen[str]], signed_in: Callable[..., Page]) -> None:
    process = training(SCRIPT)
    page = signed_in()
    line = page.locator(f"[data-loader='{LOADER}']")
    expect(line.locator(".workers")).to_contain_text("–")
    expect(line.locator(".workers")).not_to_contain_text("0")
    line.click()
    expect(page.get_by_test_id("batch")).to_have_text(re.compile(r"[1-9]"))
    for stage in ("sampler", "index", "workers", "reorder", "pin", "data"):
        expect(page.get_by_test_id(f"stage-{stage}")).to_have_text("–")
    expect(page.get_by_test_id("stage-training")).to_have_text(re.compile(r"\d"))
    expect(page.get_by_text("generator, watched")).to_be_visible()
    expect(page.get_by_role("spinbutton", name="Workers")).to_have_value("")
    expect(page.get_by_test_id("controls-off")).to_contain_text("only watched (loader.watch)")
    for panel in ("queues", "stalls", "pin", "busy", "memory"):
        readout = page.locator(f"[data-panel='{panel}'] .readout")
        expect(readout).to_contain_text("–")
        expect(readout).to_contain_text("not known")
        expect(readout).not_to_contain_text(re.compile(r"\d"))
    throughput = page.locator("[data-panel='throughput']")
    expect(throughput.locator(".readout")).to_contain_text(re.compile(r"[1-9]"))
    for what in ("samples", "bytes"):
        throughput.get_by_role("button", name=what).click()
        expect(throughput.locator(".readout")).to_contain_text("–")
        expect(throughput.locator(".readout")).not_to_contain_text(re.compile(r"\d"))
    for kind in ("reorder_stall", "pin_wait"):
        expect(page.locator(f"[data-share='{kind}']")).to_have_text("–")
    expect(page.locator("[data-share='starvation']")).to_have_text(re.compile(r"[1-9]\d* %"))
    expect(page.get_by_text("Workers are not seen from outside.")).to_be_visible()
    expect(page.get_by_text("what makes it is not seen from outside")).to_be_visible()
    process.communicate("end\n", timeout=60)
    assert process.returncode == 0
