"""Receipts over a real training: the verdict's offer is taken, what it brought is measured, and there is a way back."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.backend.harness import until

from .dashboard import Dashboard

SCRIPT = """
import ctypes, multiprocessing, time
ctypes.CDLL(None).prctl(1, 9)  # the kernel ends us with the test, however that ends
import torch
from penstock import DataLoader

there = multiprocessing.get_context("fork").Value("i", 0)

class Thrashing(torch.utils.data.Dataset):
    # Two at a time are no trouble; with more, each is much slower than the same work one after the other.
    def __len__(self):
        return 4_000_000
    def __getitem__(self, index):
        with there.get_lock():
            there.value += 1
            crowd = there.value
        time.sleep(0.006 * max(1, crowd - 1) ** 2)
        with there.get_lock():
            there.value -= 1
        return torch.full((32,), float(index))

more = {"multiprocessing_context": "fork", "name": "train"}
train = DataLoader(Thrashing(), batch_size=4, num_workers=2, max_workers=6, **more)
for batch in train:
    pass
"""
LOADER = "real:0:train"


def ask(dashboard: Dashboard, path: str) -> Any:
    request = urllib.request.Request(
        f"{dashboard.url}api/loaders/{LOADER}{path}", headers={"Authorization": f"Bearer {dashboard.token}"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_an_offer_that_made_things_worse_says_so_with_a_way_back(
    signed_in: Callable[..., Page],
    page: Page,
    dashboard: Dashboard,
    training: Callable[[str], subprocess.Popen[str]],
) -> None:
    training(SCRIPT)
    signed_in(LOADER)
    offer = page.get_by_test_id("offer")
    expect(offer).to_have_text(re.compile(r"Apply \d: [\d.]+ → (about|up to) [\d.]+ batches/s"))
    # However slow the machine is: enough was seen before the change to compare with.
    until(lambda: ask(dashboard, "")["row"]["batch"] > 300, "a rate before the change")
    verdict = until(
        lambda: (now := ask(dashboard, "")["verdict"])["workers"] and now, "the offer, which comes and goes"
    )
    workers, promised = verdict["workers"], verdict["brings"]
    assert workers > 2 and promised > 0
    asked = re.match(r"Apply (\d)", offer.text_content() or "")
    assert asked is not None
    offer.click()
    expect(page.get_by_test_id("outcome")).to_contain_text(f"Applied 2 → {asked[1]} workers")

    receipt = page.get_by_test_id("receipt")
    expect(receipt).to_contain_text(f"2 → {asked[1]} workers")
    expect(receipt).to_contain_text("which is worse")
    expect(receipt).to_contain_text(re.compile(r"about [\d.]+ predicted, [\d.]+ to [\d.]+"))
    expect(receipt).to_contain_text(re.compile(r"± \d+ %"))

    # In the API: the same, by whom and for which command; and as a measured point beside the predictions.
    [stored] = [each["event"] for each in ask(dashboard, "/events?kind=receipt")]
    assert (stored["before"], stored["after"], stored["brought"]) == (2, int(asked[1]), "worse")
    assert stored["measured"] < stored["measured_before"] < stored["predicted"]
    assert stored["low"] < stored["predicted"] < stored["high"]
    [command] = [each for each in ask(dashboard, "/commands") if each["action"] == "resize"]
    assert (stored["command"], stored["by"]) == (command["id"], command["by"])
    assert {each["workers"] for each in ask(dashboard, "/predictions")["measured"]} == {2, int(asked[1])}
    # In the audit, as the page tells it.
    expect(page.get_by_role("region", name="Events")).to_contain_text(stored["text"])

    page.get_by_role("button", name="Back to 2").click()
    expect(page.get_by_test_id("outcome")).to_contain_text(f"Applied {asked[1]} → 2 workers")
    until(lambda: len(ask(dashboard, "/events?kind=receipt")) == 2, "the receipt of the way back")
    expect(receipt).to_contain_text(f"{asked[1]} → 2 workers")
    assert ask(dashboard, "/events?kind=receipt")[-1]["event"]["brought"] == "better"
    expect(page.get_by_role("button", name="Back to")).to_have_count(0)
    # What was measured counts: nobody is offered the same again.
    until(lambda: ask(dashboard, "")["verdict"]["workers"] != int(asked[1]), "no second offer of the same")
