"""Workers on other machines: what is said of them, predicted of more of them, and held against which processors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from penstock.insight.elsewhere import TrafficMeter
from penstock.insight.judge import Judge
from penstock.insight.rates import Meter
from penstock.insight.replay import predict
from penstock.protocol import Config, Machine, Queues, Snapshot, Verdict, Worker
from penstock.tuning.readings import Readings

from tests.loader.insight.flows import Flow
from tests.loader.insight.test_judge import heard, limits
from tests.loader.insight.test_replay import load, recorded

HERE = Config(num_workers=4, max_workers=64)
FULL = Queues(index=0, in_flight=16, window=16)


def spread(
    snapshots: Iterable[Snapshot],
    local: int,
    *,
    processors: int = 16,
    processor: float = 1.0,
    queued: float = 0.0,
    full: float = 0.0,
) -> Iterator[Snapshot]:
    """The same with workers from `local` on on another machine, where they are on a processor for that share of their
    time, and `queued` for one; its network is full for that share of the time, at 50 MB a second.
    """
    began: float | None = None
    for snapshot in snapshots:
        began = snapshot.at if began is None else began
        passed = snapshot.at - began
        workers = [
            worker
            if worker.id < local
            else replace(
                worker, cpu_ms=int(worker.fetch_us * processor / 1e3), queued_ms=int(worker.fetch_us * queued / 1e3)
            )
            for worker in snapshot.workers
        ]
        there = [worker.id for worker in workers if worker.id >= local]
        machine = Machine("beta", there, processors, int(passed * 50e6 / 1024), int(passed * full * 1e3), 900, 3)
        yield replace(snapshot, workers=workers, machines=[machine], bytes=snapshot.batches * 1_000_000)


def judged(local: int, snapshots: Iterable[Snapshot]) -> list[Verdict]:
    return heard(Judge(replace(HERE, local=local, start_method="agents")), snapshots)


def test_processors_of_other_machines_are_not_taken_for_ours() -> None:
    """Eight workers compute on 16 processors of another machine, and this one has two."""
    flow = Flow(workers=8, allowed=2.0)
    said = judged(0, spread(flow.run(12, starvation=0.6), 0))
    assert limits(said) == ["workers"]
    assert "would" in said[-1].advice
    assert said[-1].workers is not None
    assert said[-1].workers > 8


def test_where_ours_are_full_workers_are_to_be_added_elsewhere() -> None:
    flow = Flow(workers=5, allowed=2.0)
    crowded: dict[str, Any] = {"starvation": 0.6, "processor": 0.5, "queued": 0.5}
    said = judged(4, spread(flow.run(12, **crowded), 4))
    assert limits(said) == ["workers"]
    assert said[-1].sentence.endswith(
        "Both processors of this machine are full, but workers that are added run on other machines, which have room."
    )
    assert said[-1].advice.startswith("Add workers on other machines.")
    assert said[-1].workers is not None
    assert said[-1].workers > 5


def test_the_same_without_other_machines_is_for_want_of_processors() -> None:
    crowded: dict[str, Any] = {"starvation": 0.6, "processor": 0.5, "queued": 0.5}
    assert limits(heard(Judge(HERE), Flow(workers=5, allowed=2.0).run(12, **crowded))) == ["processors"]


def test_processors_of_other_machines_may_be_full_as_well() -> None:
    flow = Flow(workers=8, allowed=2.0)
    said = judged(0, spread(flow.run(12, starvation=0.6), 0, processors=4, processor=0.5, queued=0.5))
    assert limits(said) == ["processors"]
    assert "The 4 processors of other machines are full" in said[-1].sentence
    assert said[-1].workers is None


@pytest.mark.parametrize("busy", [0.3, 1.0])
def test_batches_that_are_larger_than_the_network_carries(busy: float) -> None:
    """Whether workers idle because nothing more may be made ahead, or are still busy making it."""
    flow = Flow(workers=4, allowed=2.0)
    said = judged(0, spread(flow.run(12, starvation=0.6, busy=busy, queues=FULL), 0, full=0.99))
    assert limits(said) == ["network"]
    assert "50.0 MB/s come from other machines in batches of 1.00 MB" in said[-1].sentence
    assert said[-1].workers is None, "more workers would not help"


def test_a_network_that_is_half_full_is_no_limit() -> None:
    flow = Flow(workers=4, allowed=2.0)
    assert limits(judged(0, spread(flow.run(12, starvation=0.6), 0, full=0.5))) == ["workers"]


def test_what_is_said_of_a_machine() -> None:
    meter = TrafficMeter()
    for snapshot in spread(Flow(workers=2).run(4), 1, full=0.25):
        assert isinstance(snapshot.machines, list)
        meter.take(snapshot, snapshot.machines)
    (rate,) = meter.rates(snapshot.at)
    assert rate.bytes == pytest.approx(50e6, rel=0.01)
    assert rate.full == pytest.approx(0.25, abs=0.01)
    assert rate.text == (
        "beta: 1 worker on 16 processors, 50.0 MB/s, the network full 25 % of the time, a batch 900 µs on the way, "
        "3 tasks lost on the way"
    )
    gone = Machine("beta", [], 0, 10, 0, 900, 5)
    meter.take(replace(snapshot, machines=[gone]), [gone])
    assert [each.text for each in meter.rates(snapshot.at)] == [
        "beta: cannot be reached, and is dialed, 5 tasks lost on the way"
    ]


def test_workers_of_two_machines_may_have_the_same_pid() -> None:
    """In containers they do. A third one comes, so that they are told apart one by one."""
    meter = Meter()
    pair = [Worker(0, 7, "fetching", fetch_us=0), Worker(1, 7, "fetching", fetch_us=0)]
    meter.take(Snapshot(0, 10.0, "running", workers=pair))
    later = [Worker(number, 7, "fetching", fetch_us=1_000_000) for number in (0, 1)]
    rates = meter.take(Snapshot(1, 11.0, "running", workers=[*later, Worker(2, 9, "starting")]))
    assert rates.busy == pytest.approx(2.0)


def test_replay_gives_those_that_are_added_the_processors_of_other_machines() -> None:
    computing = recorded(2, blocked=0.0001, processor=0.02)
    here = load(computing, 2, allowed=2.0)
    assert predict(here, 8).batches == pytest.approx(predict(here, 2).batches, rel=0.1)
    spread_out = load(computing, 2, allowed=2.0, local=2, elsewhere=6.0)
    assert predict(spread_out, 8).batches == pytest.approx(4 * predict(spread_out, 2).batches, rel=0.1)
    crowded = load(computing, 2, allowed=2.0, local=2, elsewhere=3.0)
    assert predict(crowded, 8).batches == pytest.approx(2.5 * predict(crowded, 2).batches, rel=0.1)


def test_replay_promises_no_more_than_the_network_carried() -> None:
    computing = recorded(4, blocked=0.0001, processor=0.02)
    seen = load(computing, 4, allowed=2.0, local=0, elsewhere=64.0, carried=100 * 1000.0)
    assert predict(seen, 16).batches == pytest.approx(100, rel=0.1)


def test_the_tuner_counts_processors_where_workers_run() -> None:
    (snapshot,) = spread(Flow(workers=4, allowed=2.0).run(0.2), 1, processors=8)
    assert Readings().take(snapshot, 1.0).processors == 2.0
    assert Readings(local=1).take(snapshot, 1.0).processors == 9.0
    assert Readings(local=0).take(replace(snapshot, machines=[]), 1.0).processors == 0.0, "nobody is there yet"
