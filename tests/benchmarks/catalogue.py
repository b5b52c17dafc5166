"""Every case, with its size and its target from the issues.

Sizes make a round of torch's take one to three seconds.
"""

from __future__ import annotations

from tests.benchmarks.case import Case, Figure, Measure, Target
from tests.benchmarks.competitors import COMPETITORS

ALL = tuple(name for name in COMPETITORS if name != "threads")
BOTH = ("torch", "penstock")
SERVERS = ("null", "live", "stopped", "killed", "unreachable")


def _throughput(workload: str, workers: int, batches: int, target: float | None = None) -> Case:
    key, unit = ("samples_per_s", "images/s") if workload == "jpeg" else ("batches_per_s", "batches/s")
    figures = [Figure(key, unit, target=Target(target) if target else None)]
    if workload == "skew":
        figures.append(Figure("share_of_ideal", "of the ideal", target=Target(0.93, of="value")))
    return Case(
        name=f"{workload}/{workers}",
        group=workload,
        variants=ALL,
        baseline="torch",
        measure=Measure("throughput", "measure", workload=workload, workers=workers, batches=batches),
        figures=tuple(figures),
    )


def _pinned(workload: str, workers: int, batches: int, target: float | None = None) -> Case:
    return Case(
        name=f"pinned/{workers}",
        group="pinned",
        variants=BOTH,
        baseline="torch",
        measure=Measure("throughput", "measure", workload=workload, workers=workers, batches=batches, pinned=True),
        figures=(Figure("batches_per_s", "batches/s", target=Target(target) if target else None),),
        timeout=300,  # the first round may have to build the test accelerator
    )


def _remote(workload: str, workers: int, batches: int, target: float) -> Case:
    """Workers behind an agent on this machine, against the same workers without it."""
    return Case(
        name=f"remote/{workload}{workers if workload == 'sleep' else ''}",
        group="remote",
        variants=("local", "agents"),
        subjects=("agents",),
        baseline="local",
        measure=Measure("remote", "measure", workload=workload, workers=workers, batches=batches),
        figures=(Figure("batches_per_s", "batches/s", target=Target(target)),),
    )


RAYS = ("ray actors", "ray actors, several a call", "ray.data")


def _remote_ray(workload: str, workers: int, batches: int) -> Case:
    """Our workers on another node of a Ray cluster, and Ray's own ways to make the same batches there."""
    return Case(
        name=f"remote_ray/{workload}{workers if workload == 'sleep' else ''}",
        group="remote_ray",
        variants=("workers", *RAYS),
        subjects=RAYS,
        baseline="workers",
        measure=Measure("remote_ray", "measure", workload=workload, workers=workers, batches=batches),
        figures=(Figure("batches_per_s", "batches/s", target=Target(1, at_least=False)),),
        timeout=300,
        on_ray=True,
    )


def _remote_fault(what: str, target: float) -> Case:
    """The longest gap between two batches when something of another machine is killed, or the machine stands still."""
    return Case(
        name=f"remote_fault/{what}",
        group="remote_fault",
        variants=("agents",),
        subjects=("agents",),
        measure=Measure("remote_faults", "measure_gap", what=what),
        figures=(Figure("gap_s", "s without a batch", less_is_better=True, pick="worst", target=_most(target)),),
    )


def _remote_raylet(target: float) -> Case:
    """The same when a node of a Ray cluster is lost."""
    return Case(
        name="remote_fault/raylet",
        group="remote_fault",
        variants=("ray",),
        subjects=("ray",),
        measure=Measure("remote_faults", "measure_raylet"),
        figures=(Figure("gap_s", "s without a batch", less_is_better=True, pick="worst", target=_most(target)),),
        timeout=180,
        on_ray=True,
    )


def _most(bound: float) -> Target:
    return Target(bound, of="value", at_least=False)


def _memory(workload: str, batches: int, keep: bool, target: float | None = None) -> Case:
    return Case(
        name=f"memory/{'list' if keep else workload}",
        group="memory",
        variants=BOTH,
        baseline="torch",
        measure=Measure("memory", "measure", workload=workload, workers=2, batches=batches, keep=keep),
        figures=(_amount("peak_mb", "MB at the peak", target),),
    )


def _threads() -> tuple[Case, ...]:
    """Worker threads against torch's speed, and against the memory of our processes."""
    speed = Measure("throughput", "measure", workload="jpeg", workers=4, batches=28)
    memory = Measure("memory", "measure", workload="jpeg", workers=4, batches=28, keep=False)
    most = Target(0.6, at_least=False)
    peak = Figure("peak_mb", "MB at the peak", less_is_better=True, pick="median", ratio="amount", target=most)
    return (
        Case(
            name="threads/jpeg",
            group="threads",
            variants=("torch", "penstock", "threads"),
            subjects=("threads",),
            baseline="torch",
            measure=speed,
            figures=(Figure("samples_per_s", "images/s", target=Target(1.1)),),
        ),
        Case(
            name="threads/memory",
            group="threads",
            variants=("penstock", "threads"),
            subjects=("threads",),
            baseline="penstock",
            measure=memory,
            figures=(peak,),
        ),
    )


def _amount(key: str, unit: str, bound: float | None) -> Figure:
    target = None if bound is None else Target(bound, at_least=False)
    return Figure(key, unit, less_is_better=True, pick="median", ratio="amount", target=target)


def _tensors(batch_size: int, bound: float) -> Case:
    """Time against indexing the tensors oneself."""
    return Case(
        name=f"tensors/{batch_size}",
        group="tensors",
        variants=("direct", "torch", "inline", "workers"),
        subjects=("inline", "workers"),
        baseline="direct",
        measure=Measure("tensors", "measure", batch_size=batch_size),
        figures=(
            Figure("epoch_s", "s an epoch", less_is_better=True, ratio="amount", target=Target(bound, at_least=False)),
        ),
    )


def _within(key: str, unit: str, bound: float) -> Figure:
    target = Target(bound, of="value", at_least=False)
    return Figure(key, unit, less_is_better=True, pick="worst", target=target)


def _monitoring(workload: str) -> Case:
    return Case(
        name=f"monitoring/{workload}",
        group="monitoring",
        variants=SERVERS,
        subjects=SERVERS[1:],
        measure=Measure("monitoring", "measure", workload=workload, workers=2, seconds=40),
        figures=(
            Figure("ratio", "of unwatched", pick="median", ratio="none", target=Target(0.98, of="value")),
            Figure("error", "± (95 %)", less_is_better=True, pick="median", ratio="none"),
            Figure("publisher_percent", "% of a core", less_is_better=True, pick="median", ratio="none"),
            _within("growth_mb", "MB of growth", 8),
        ),
        timeout=120,
    )


def _profiling(workload: str, every: int, seconds: float = 60) -> Case:
    return Case(
        name=f"profiling/{workload}",
        group="profiling",
        variants=("profiled",),
        subjects=("profiled",),
        measure=Measure("profiling", "measure", workload=workload, workers=2, seconds=seconds, rate=10, every=every),
        figures=(
            Figure("ratio", "of unprofiled", pick="median", ratio="none", target=Target(0.99, of="value")),
            Figure("error", "± (95 %)", less_is_better=True, pick="median", ratio="none"),
            Figure("null", "between looks", pick="median", ratio="none"),
        ),
        timeout=180,
    )


SIMULATED = (
    "sleep-bound",
    "processor-bound",
    "too many",
    "lock-bound",
    "heavy tail",
    "storage",
    "phase change",
    "foreign load",
    "best already",
    "no difference",
)
"""Loads of `tests/loader/tuning/loads.py`."""


def _autotune(name: str, function: str, timeout: float = 600.0, **settings: object) -> Case:
    """What the tuner reaches of the best fixed number, and how many workers more than a tenth above the fewest."""
    return Case(
        name=f"autotune/{name}",
        group="autotune",
        variants=("penstock",),
        measure=Measure("autotune", function, **settings),
        figures=(
            Figure("share", "of the best fixed number", pick="worst", target=Target(0.95, of="value")),
            _within("surplus", "workers beyond a tenth more than the fewest", 1),
        ),
        timeout=timeout,
    )


VERDICTS = (
    "sleep",
    "sleep, many workers",
    "sleep, nearly enough",
    "sleep, one worker",
    "no workers",
    "iterable",
    "storage",
    "lock, after a resize",
    "processor, one worker",
    "processor",
    "full cores",
    "foreign load",
    "sampler",
    "consumer",
    "consumer, cheap data",
    "skewed",
    "memory",
    "short epochs",
    "short epochs, persistent",
    "after growing",
    "after shrinking",
    "after a pause",
    "training gets slower",
    "data gets slower",
    "lock",
    "pin",
    "validation within",
    "beside a slower loader",
)
"""Trainings of `measures/verdict.py`; here too, because only the process that measures imports that."""


def _verdict(name: str) -> Case:
    return Case(
        name=f"verdict/{name}",
        group="verdict",
        variants=("penstock",),
        measure=Measure("verdict", "measure", name=name),
        figures=(
            Figure("named_s", "s until named", less_is_better=True, pick="worst", target=Target(3.0, "value", False)),
            Figure("right", "named rightly from then on", pick="worst", target=Target(1.0, "value")),
        ),
    )


_cases = (
    _throughput("tiny1", 1, 1500),
    _throughput("tiny1", 2, 2000, target=10),
    _throughput("tiny64", 1, 1500),
    _throughput("tiny64", 2, 2000, target=5),
    _throughput("dict20", 1, 100),
    _throughput("dict20", 2, 150, target=6),
    _throughput("big", 1, 50),
    _throughput("big", 2, 60, target=9),
    Case(
        name="first/2",
        group="first",
        variants=BOTH,
        baseline="torch",
        measure=Measure("starting", "measure_first", workload="big", workers=2, batches=37),
        figures=(Figure("seconds", "s for 37 batches of a fresh loader", less_is_better=True, target=Target(6)),),
    ),
    _pinned("big", 1, 50),
    _pinned("big", 2, 60, target=6),
    # Longer than the rest: while an epoch's last slow sample is loaded the other workers have nothing left to
    # do, which is no loader's fault and must not weigh in the share of the ideal.
    _throughput("skew", 4, 800, target=2.2),
    _throughput("skew", 8, 1600, target=2.2),
    _throughput("jpeg", 1, 8),
    _throughput("jpeg", 2, 14, target=1.1),
    *_threads(),
    _remote("sleep", 4, 400, 0.97),
    _remote("sleep", 8, 800, 0.97),
    _remote("dict20", 2, 600, 0.8),
    _remote("tiny64", 2, 2000, 0.7),
    _remote("tiny1", 2, 8000, 0.7),
    _remote("big", 2, 60, 0.15),
    _remote_ray("sleep", 4, 400),
    _remote_ray("sleep", 8, 800),
    _remote_ray("dict20", 2, 600),
    _remote_ray("tiny64", 2, 2000),
    _remote_ray("tiny1", 2, 8000),
    _remote_ray("big", 2, 60),
    _remote_fault("worker", 0.3),
    _remote_fault("agent", 0.5),
    _remote_raylet(0.5),
    _remote_fault("frozen", 6.0),
    Case(
        name="remote_resize",
        group="remote_resize",
        variants=("agents",),
        subjects=("agents",),
        measure=Measure("remote_faults", "measure_resize"),
        figures=(Figure("seconds", "s for 4 → 8 workers", less_is_better=True, pick="worst", target=_most(0.5)),),
    ),
    Case(
        name="remote_large",
        group="remote_large",
        variants=("agents",),
        subjects=("agents",),
        measure=Measure("remote_faults", "measure_large"),
        figures=(
            Figure("seconds", "s until 16 workers are up", less_is_better=True, pick="worst", target=_most(12)),
            Figure("bytes", "bytes there in all", less_is_better=True, pick="worst", target=_most(1e9)),
        ),
        timeout=180,
    ),
    Case(
        name="spawn_first",
        group="spawn_first",
        variants=BOTH,
        baseline="torch",
        measure=Measure("starting", "measure_spawn", workers=8),
        figures=(Figure("first_batch_s", "s to the first batch", less_is_better=True, target=Target(4)),),
    ),
    Case(
        name="run",
        group="run",
        variants=("penstock",),
        measure=Measure("adopting", "measure"),
        figures=(
            Figure(
                "more_s",
                "s more to the first batch with penstock run",
                less_is_better=True,
                ratio="none",
                target=Target(0.3, "value", at_least=False),
            ),
            Figure("first_batch_s", "s to the first batch", less_is_better=True, ratio="none"),
        ),
    ),
    Case(
        name="restart",
        group="restart",
        variants=BOTH,
        baseline="torch",
        measure=Measure("starting", "measure_restart", workers=8, batches=16),
        figures=(
            Figure("epoch_s", "s for 16 batches", less_is_better=True, target=Target(1.5)),
            Figure("first_batch_s", "s to the first batch", less_is_better=True),
        ),
    ),
    Case(
        name="gap",
        group="gap",
        variants=("torch", "not foreseen", "penstock"),
        subjects=("penstock",),
        baseline="torch",
        measure=Measure("starting", "measure_gap", workers=4, step=0.03),
        figures=(
            Figure("first_ms", "ms of wait for an epoch's first batch", less_is_better=True, pick="median"),
            Figure(
                "of_step",
                "times an ordinary step's wait",
                less_is_better=True,
                pick="median",
                ratio="none",
                target=Target(1.2, "value", False),
            ),
            Figure("step_ms", "ms of wait for any other batch", less_is_better=True, pick="median", ratio="none"),
            Figure("iter_ms", "ms in iter()", less_is_better=True, pick="median", ratio="none"),
        ),
    ),
    _tensors(4096, bound=2),
    _tensors(256, bound=3),
    Case(
        name="inline",
        group="inline",
        variants=("penstock",),
        measure=Measure("inline", "measure"),
        figures=tuple(
            Figure(name, f"× torch, {name}", pick="median", ratio="none", target=Target(1, of="value"))
            for name in ("tiny1", "tiny64", "dict20", "big", "pairs", "stream", "bare")
        ),
    ),
    Case(
        name="processor/jpeg",
        group="processor",
        variants=BOTH,
        baseline="torch",
        measure=Measure("processor", "measure", workload="jpeg", workers=2, batches=30),
        figures=(_amount("processor_s", "s of processor time", 1.0),),
    ),
    _memory("big", batches=60, keep=False, target=1.25),
    _memory("big", batches=60, keep=True),
    *(
        Case(
            name=f"sharing/{name}",
            group="sharing",
            variants=("penstock",),
            measure=Measure("sharing", function),
            figures=(
                Figure("more", unit, less_is_better=True, pick="median", target=Target(1.1, "value", False)),
                Figure("one_mb", "MB with one", less_is_better=True, pick="median"),
            ),
            timeout=300,
        )
        for name, function, unit in (
            ("list", "measure_workers", "times a SharedList's memory, 8 workers against 1"),
            ("cache", "measure_ranks", "times a cache's memory, 2 ranks against 1"),
        )
    ),
    Case(
        name="predictions",
        group="predictions",
        variants=("penstock",),
        measure=Measure("predictions", "measure", seconds=4.0),
        figures=(
            _within("median_error", "% error of predictions, median", 5),
            _within("p95_error", "% error of predictions, 95th percentile", 15),
            Figure("inside", "% within the 90 % interval", pick="median", ratio="none", target=Target(85, of="value")),
            _within("unfitted_median_error", "% error of loads that no constant was fitted on, median", 5),
            _within("unfitted_p95_error", "% error of these, 95th percentile", 15),
            Figure("unfitted_inside", "% of these within the 90 % interval", pick="median", ratio="none"),
            _within("ms", "ms for four numbers", 100),
        ),
        timeout=900,
    ),
    Case(
        name="control/busy",
        group="control",
        variants=("penstock",),
        measure=Measure("control", "measure_busy"),
        figures=(
            _within("pause_python_ms", "ms, pause in a Python loop", 250),
            _within("pause_matmul_ms", "ms, pause in a matmul", 250),
            _within("resize_python_ms", "ms, resize in a Python loop", 250),
            _within("resize_matmul_ms", "ms, resize in a matmul", 250),
        ),
    ),
    Case(
        name="control/grow",
        group="control",
        variants=("penstock",),
        measure=Measure("control", "measure_growth"),
        figures=(_within("producing_ms", "ms, 2 → 8 producing", 300),),
    ),
    Case(
        name="control/delay",
        group="control",
        variants=("penstock",),
        measure=Measure("control", "measure_delay"),
        figures=(
            _within("delay_batches", "batch times of delay", 1),
            Figure("undisturbed_delay_batches", "the same without a resize", less_is_better=True, pick="worst"),
        ),
    ),
    Case(
        name="accounting",
        group="accounting",
        variants=("penstock",),
        measure=Measure("accounting", "measure"),
        figures=(
            Figure(
                "ready_us",
                "µs a batch",
                less_is_better=True,
                target=Target(3, of="value", at_least=False),
            ),
            _within("waited_us", "µs a batch waited for", 3),
            _within("inline_us", "µs a batch without workers", 3),
            Figure("digest_us", "µs for the digest of 64 indices", less_is_better=True),
        ),
    ),
    *(
        Case(
            name=f"tolerating/{kind}",
            group="tolerating",
            variants=(kind,),
            subjects=(kind,),
            measure=Measure("tolerating", "measure", workers=4, samples=10_000),
            figures=(
                Figure(
                    "slower",
                    "% slower",
                    less_is_better=True,
                    pick="median",
                    ratio="none",
                    target=Target(2, "value", False),
                ),
            ),
            timeout=200,
        )
        for kind in ("failing", "hanging")
    ),
    _monitoring("tiny1"),
    _monitoring("dict20"),
    _profiling("tiny64", every=64),
    _profiling("dict20", every=32),
    _profiling("jpeg", every=1, seconds=100),
    *(
        Case(
            name=f"profiling/py-spy/{dataset.lower()}",
            group="spied",
            variants=("penstock",),
            measure=Measure("spied", "measure", dataset=dataset),
            figures=(
                *(
                    Figure(
                        kind,
                        f"points from py-spy, {kind} time",
                        less_is_better=True,
                        pick="median",
                        target=Target(3, "value", False) if dataset != "Small" else None,
                    )
                    for kind in ("own", "total")
                ),
                Figure("chance", "points by chance (95 %)", less_is_better=True, pick="median"),
            ),
            timeout=120,
        )
        for dataset in ("Python", "Arrays", "Pictures", "Sleeping", "Small")
    ),
    Case(
        name="profiling/page",
        group="profiling",
        variants=("penstock",),
        measure=Measure("flame", "measure"),
        figures=(
            _within("drawn_ms", "ms until 5,000 stacks are drawn", 100),
            Figure("painted_ms", "ms of that to paint", less_is_better=True, pick="median"),
        ),
        timeout=180,
    ),
    *(_autotune(f"simulated/{name.replace(' ', '-')}", "measure_simulated", load=name) for name in SIMULATED),
    Case(
        name="autotune/ranks",
        group="autotune",
        variants=("penstock",),
        measure=Measure("autotune", "measure_ranks"),
        figures=(
            Figure("of_even", "times an even split", pick="worst", target=Target(1.5, of="value")),
            Figure("share", "of the best fixed split", pick="worst", target=Target(0.95, of="value")),
        ),
        timeout=600.0,
    ),
    _autotune("sleep", "measure_real", load="sleep", tried=(12, 14, 15, 16, 18, 22)),
    _autotune("processor", "measure_real", load="processor", tried=(1, 2, 3, 4)),
    _autotune("tail", "measure_real", load="tail", tried=(4, 6, 8, 12, 16, 24, 32)),
    _autotune("lock", "measure_real", load="lock", tried=(1, 2, 3, 4, 6)),
    _autotune("storage", "measure_real", load="storage", tried=(2, 4, 6, 8, 12)),
    _autotune("phase", "measure_real", load="phase", tried=(8, 12, 14, 16, 18, 24)),
    _autotune("foreign load", "measure_real", load="foreign", tried=(1, 2, 3, 4)),
    _autotune("best already", "measure_real", load="sleep", tried=(12, 14, 15, 16, 18, 22), start=16),
    Case(
        name="autotune/control",
        group="autotune",
        variants=("penstock",),
        measure=Measure("autotune", "measure_control", load="sleep", workers=8),
        figures=(_within("drift", "% drift with nothing changed", 3),),
        timeout=600.0,
    ),
    *(_verdict(name) for name in VERDICTS),
)

CASES = {case.name: case for case in _cases}
