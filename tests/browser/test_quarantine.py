"""Bad samples on the page: those of a real training, all of them found by search, and saved for its next run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.test_pages import violations

SCRIPT = """
import ctypes, os
ctypes.CDLL(None).prctl(1, 9)  # the kernel ends us with the test, however that ends
import torch
from penstock import DataLoader

class Corrupt(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        if index % 2:
            raise OSError(f"file {index}.jpg is corrupt")
        return index

train = DataLoader(Corrupt(), batch_size=8, num_workers=2, name="train", on_error="skip", max_errors=1.0)
for batch in train:
    pass
os.read(0, 1)
"""
LOADER = "real:0:train"


def test_all_bad_samples_are_found_and_saved(
    signed_in: Callable[..., Page], page: Page, training: Callable[[str], subprocess.Popen[str]]
) -> None:
    training(SCRIPT)
    signed_in(LOADER)
    panel = page.get_by_role("region", name="Quarantine")
    expect(panel).to_contain_text("200 samples were bad.")
    expect(panel.locator("tbody tr")).to_have_count(200)
    panel.get_by_role("searchbox").fill("corrupt 3.jpg")  # 3, 13, 23, … 393: most are not in a snapshot
    expect(panel).to_contain_text("40 like that.")
    expect(panel.locator("tbody tr")).to_have_count(40)
    expect(panel.locator("tbody tr").last).to_contain_text("OSError: file 3.jpg is corrupt")
    with page.expect_download() as saved:
        panel.get_by_role("link", name="list for quarantine=").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert sorted(json.loads(line)["index"] for line in lines) == [*range(3, 400, 10)]
    panel.get_by_role("searchbox").fill("nothing like it")
    expect(panel).to_contain_text("None like that.")
    assert violations(page) == []
    events = page.get_by_role("region", name="Events")
    expect(events).to_contain_text("OSError: file 1.jpg is corrupt; the epoch goes on")
    expect(page.get_by_test_id("verdict")).not_to_contain_text("Died")
