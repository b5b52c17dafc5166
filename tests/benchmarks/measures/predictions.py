"""How good predictions are: for every load and number of workers, what was predicted against what it then was.

Each load runs with its number of workers, says what half to four times as many would bring, and is then resized to each
of them and measured: what workers made, or what training took if that is less, as for receipts. Errors are of all loads
together: relative, with the share of those within their interval. It needs a machine of its own: where others take
processors, what they take changes between the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from penstock import DataLoader
from penstock.insight.receipts import Count

from tests.benchmarks.case import Measures
from tests.benchmarks.measures.prediction_loads import LoadCase, cases, spin

STEPS = (0.5, 1.0, 2.0, 4.0)


def measure(_variant: str, quick: bool, *, seconds: float) -> Measures:
    seconds = seconds / 4 if quick else seconds
    errors: list[float] = []
    unfitted: list[float] = []
    inside, unfitted_inside, took = 0, 0, 0.0
    for name, case in cases().items():
        for predicted, measured, answered in _tried(case, seconds):
            error = abs(predicted.batches / measured - 1)
            within = predicted.low <= measured <= predicted.high
            errors.append(error)
            inside += within
            if not case.fitted:
                unfitted.append(error)
                unfitted_inside += within
            took = max(took, answered)
            print(
                f"{name:<10} {case.workers:>2} → {predicted.workers:>2}: predicted {predicted.batches:8.1f} "
                f"({predicted.low:.1f} to {predicted.high:.1f}), measured {measured:8.1f}: {100 * error:.1f} %",
                flush=True,
            )
    errors.sort()
    unfitted.sort()
    return {
        "unfitted_median_error": 100 * unfitted[len(unfitted) // 2],
        "unfitted_p95_error": 100 * unfitted[int(0.95 * (len(unfitted) - 1))],
        "unfitted_inside": 100 * unfitted_inside / len(unfitted),
        "median_error": 100 * errors[len(errors) // 2],
        "p95_error": 100 * errors[int(0.95 * (len(errors) - 1))],
        "inside": 100 * inside / len(errors),
        "ms": 1000 * took,
    }


def _tried(case: LoadCase, seconds: float) -> Iterator[Any]:
    loader: DataLoader[Any] = DataLoader(
        case.dataset,
        4,
        num_workers=case.workers,
        multiprocessing_context="fork",
        memory_budget=case.budget,
        monitor=False,
    )
    with loader:
        batches, count = iter(loader), Count()
        rate(loader, count, batches, case, 1.0)
        rate(loader, count, batches, case, seconds)
        numbers = sorted({max(1, int(case.workers * step)) for step in STEPS})
        started = time.perf_counter()
        predictions = [loader.predict(number) for number in numbers]
        answered = time.perf_counter() - started
        for prediction in predictions:
            loader.resize(prediction.workers)
            rate(loader, count, batches, case, seconds / 2)
            yield prediction, rate(loader, count, batches, case, seconds), answered
        del batches


def rate(loader: DataLoader[Any], count: Count, batches: Iterator[Any], case: LoadCase, seconds: float) -> float:
    before, began = count.moment(loader.stats()), time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        if case.own:
            time.sleep(case.own)
        spin(case.computes)
    after = count.moment(loader.stats())
    return min(after.made - before.made, after.taken - before.taken) / (after.at - before.at)
