"""The same page over a real training process with a real pool."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.backend.harness import until
from tests.patience import PATIENCE

from .dashboard import Dashboard

SCRIPT = """
import ctypes, json, os, threading, time
ctypes.CDLL(None).prctl(1, 9)  # the kernel ends us with the test, however that ends
import torch
from penstock import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64_000
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), float(index))

train = DataLoader(Slow(), batch_size=16, num_workers=2, max_workers=6, name="train")
ending = threading.Event()

def answer():
    # Read without sys.stdin: its lock, held while a process is forked, would stay locked in the child.
    while line := os.read(0, 64):
        if line.strip() == b"end":
            ending.set()
            return
        stats = train.stats()
        print(json.dumps({
            "state": stats.state, "batch": stats.batch, "target": stats.target,
            "pids": [worker.pid for worker in stats.workers if worker.state not in ("dead", "retiring")],
        }), flush=True)

threading.Thread(target=answer, daemon=True).start()
for batch in train:
    time.sleep(0.002)
    if ending.is_set():
        break
train.close()
"""
LOADER = "real:0:train"

Open = Callable[..., Page]
Start = Callable[[str], subprocess.Popen[str]]


class Training:
    """The process and what the loader in it says of itself."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def stats(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("stats\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.flush()


def shown_batch(page: Page) -> int:
    return int(re.sub(r"\D", "", page.get_by_test_id("batch").text_content() or ""))


@pytest.fixture
def real(training: Start) -> Training:
    return Training(training(SCRIPT))


def test_a_real_training_is_seen_and_steered(signed_in: Open, page: Page, real: Training) -> None:
    signed_in()
    page.locator(f"[data-loader='{LOADER}']").click()
    page.get_by_test_id("batch").wait_for()

    # Numbers move, and are the loader's own.
    expect(page.locator("[data-worker]")).to_have_count(2)
    shown = set(page.locator("[data-worker] td:nth-of-type(1)").all_text_contents())
    assert shown == {str(pid) for pid in real.stats()["pids"]}
    reached = real.stats()["batch"]
    until(lambda: shown_batch(page) >= reached, "as many batches as there were")
    assert shown_batch(page) <= real.stats()["batch"]

    # Resize up and down.
    for wanted, now in ((4, 2), (1, 4)):
        page.get_by_role("spinbutton", name="Workers").fill(str(wanted))
        page.get_by_role("button", name=f"Apply {now} → {wanted}").click()
        expect(page.get_by_test_id("outcome")).to_contain_text(f"Applied {now} → {wanted} workers")
        assert real.stats()["target"] == wanted
        expect(page.locator("[data-worker]")).to_have_count(wanted)

    # Pause and resume.
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_test_id("verdict")).to_contain_text("Paused.")
    assert real.stats()["state"] == "paused"
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    assert real.stats()["state"] == "running"

    # A killed worker appears, and so does the one that takes its place.
    [pid] = real.stats()["pids"]
    os.kill(pid, signal.SIGKILL)
    expect(page.get_by_role("region", name="Events")).to_contain_text(
        re.compile(rf"Worker \d+ \(pid {pid}\) died.*SIGKILL")
    )
    expect(page.get_by_text("1 worker replaced")).to_be_visible()

    # The training ends in an orderly way.
    real.end()
    assert real.process.wait(PATIENCE) == 0
    expect(page.get_by_test_id("verdict")).to_contain_text("Finished.")


def test_a_killed_training_is_shown_lost(signed_in: Open, page: Page, real: Training) -> None:
    signed_in()
    page.locator(f"[data-loader='{LOADER}']").click()
    page.get_by_test_id("batch").wait_for()
    real.process.kill()
    expect(page.get_by_test_id("verdict")).to_contain_text("No new data.")
    expect(page.get_by_test_id("verdict")).to_contain_text("Lost.")


INLINE = """
import ctypes, os, threading, time
ctypes.CDLL(None).prctl(1, 9)
import torch
from penstock import DataLoader

class Slow(torch.utils.data.Dataset):
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), float(index))

ending = threading.Event()
threading.Thread(target=lambda: (os.read(0, 64), ending.set()), daemon=True).start()
train = DataLoader(Slow(), batch_size=8, sampler=[5] * 64_000, record_samples=3, name="train")
for batch in train:
    if ending.is_set():
        break
train.close()
"""
PAINTED = """(canvas) => {
    const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, 26 * devicePixelRatio);
    return data.filter((value, place) => place % 4 === 3 && value === 255).length / width;
}"""
"""How many pixels of an average column of the first lane are painted."""


def test_a_training_without_workers_has_samples_and_a_timeline(signed_in: Open, page: Page, training: Start) -> None:
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    process = training(INLINE)
    signed_in()
    page.locator(f"[data-loader='{LOADER}']").click()
    page.get_by_text("The 3 slowest samples").click()
    slowest = page.get_by_role("region", name="The slowest samples of the epoch")
    expect(slowest.get_by_role("rowheader", name="5", exact=True)).to_have_count(3)
    timeline = page.get_by_role("img", name=re.compile("^Timeline of training itself"))
    timeline.scroll_into_view_if_needed()
    page.wait_for_function(f"(canvas) => ({PAINTED})(canvas) > 8", arg=timeline.element_handle())
    painted = timeline.evaluate(PAINTED)
    assert process.stdin is not None
    process.stdin.write("end\n")
    process.stdin.flush()
    assert process.wait(PATIENCE) == 0
    expect(page.get_by_test_id("verdict")).to_contain_text("Finished.")
    assert timeline.evaluate(PAINTED) > painted / 2, "what was is still to be seen"
    assert not broken


PINNED = """
import os, threading, time
import torch
from penstock import DataLoader
from tests import accelerator

class Batch:
    def __init__(self, samples):
        self.data = torch.stack(samples)

    def pin_memory(self):
        time.sleep(0.02)  # as a large batch would take
        self.data = self.data.pin_memory()
        return self

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 64_000
    def __getitem__(self, index):
        return torch.full((3, 64, 64), float(index))

accelerator.install()
ending = threading.Event()
threading.Thread(target=lambda: (os.read(0, 64), ending.set()), daemon=True).start()
train = DataLoader(Images(), batch_size=4, num_workers=WORKERS, collate_fn=Batch, pin_memory=True, name="train")
for batch in train:
    assert batch.data.is_pinned()
    if ending.is_set():
        break
train.close()
"""


@pytest.mark.timeout(300)  # the first to use the test accelerator builds it
@pytest.mark.usefixtures("test_accelerator")
@pytest.mark.parametrize("workers", [0, 2])
def test_pin_throughput_and_pin_wait_are_shown(signed_in: Open, page: Page, training: Start, workers: int) -> None:
    process = training(PINNED.replace("WORKERS", str(workers)))
    signed_in()
    page.locator(f"[data-loader='{LOADER}']").click(timeout=40_000)
    stage = page.locator("[data-stage='pin']")
    expect(stage).to_contain_text(re.compile(r"B/s, pinned copy"))
    expect(page.get_by_test_id("stage-pin")).to_have_text(re.compile(r"[1-9]"))
    expect(stage).to_contain_text(re.compile(r"[1-9][\d.,]* ms a batch"))
    expect(page.locator("[data-share='pin_wait']")).to_have_text(re.compile(r"[1-9]\d* %"))
    expect(page.get_by_test_id("verdict")).to_contain_text("pinning is the limit")
    assert process.stdin is not None
    process.stdin.write("end\n")
    process.stdin.flush()
    assert process.wait(30) == 0
    expect(page.get_by_test_id("verdict")).to_contain_text("Finished.")


HANGS = """
import ctypes, os, threading, time
ctypes.CDLL(None).prctl(1, 9)
import torch
from penstock import DataLoader

go = torch.multiprocessing.get_context("fork").Event()

class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, index):
        time.sleep(0.01)
        if index == 100:
            wait_for_storage()
        return torch.full((32,), float(index))

def wait_for_storage():
    go.wait()
    raise ValueError("sample 100 is damaged")

threading.Thread(target=lambda: (os.read(0, 64), go.set()), daemon=True).start()
for batch in DataLoader(Broken(), batch_size=4, num_workers=2, name="train", multiprocessing_context="fork"):
    time.sleep(0.01)
"""


def test_a_hang_is_on_the_page_while_it_lasts_and_then_the_error(
    signed_in: Open, page: Page, training: Start, dashboard: Dashboard
) -> None:
    process = training(HANGS)
    signed_in()
    page.locator(f"[data-loader='{LOADER}']").click()
    hang = page.get_by_role("region", name=re.compile("^Training has waited .* for batch 25$"))
    expect(hang).to_contain_text("in wait_for_storage")
    expect(hang).not_to_contain_text("making.py")
    hang.get_by_role("button", name="All frames").click()
    expect(hang).to_contain_text("making.py")
    expect(page.get_by_test_id("verdict")).to_contain_text("Stuck.")
    expect(page.get_by_role("region", name="Loader", exact=True)).not_to_contain_text("left")
    expect(page.get_by_role("region", name="Events")).to_contain_text(re.compile("so far: batch 25 on worker"))
    hang.get_by_role("button", name="Stack now").click()
    expect(page.get_by_role("region", name="Events")).to_contain_text(re.compile(r"Stack of worker \d"))

    # Any worker, and training itself.
    page.get_by_role("button", name="Stack of training").click()
    expect(page.get_by_test_id("stack")).to_contain_text('File "<string>"')
    page.get_by_role("button", name="Stack of worker 0 now").click()
    expect(page.get_by_test_id("stack")).to_contain_text("Worker 0")
    scroll = page.get_by_role("group", name="Table of workers")
    assert scroll.evaluate("(box) => box.scrollWidth <= box.clientWidth"), "the table is cut at 1280"

    # The wait ends, in an error that nobody catches.
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.wait(PATIENCE) != 0
    expect(page.get_by_test_id("verdict")).to_contain_text("Died of an error.")
    expect(hang).to_have_count(0)
    expect(page).to_have_title(re.compile("failed"))
    page.goto(dashboard.url)
    expect(page.locator(f"[data-loader='{LOADER}']")).to_contain_text("ValueError: sample 100 is damaged")
