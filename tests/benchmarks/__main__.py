"""`python -m tests.benchmarks`: measure, print the tables, and write everything that was measured as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from tests.apart import why_not_on_ray
from tests.benchmarks import environment, tables
from tests.benchmarks.case import Case
from tests.benchmarks.catalogue import CASES
from tests.benchmarks.competitors import COMPETITORS
from tests.benchmarks.rounds import Round, run_child, take_turns
from tests.benchmarks.summary import Result, summarise

PEERS = ("torchdata", "grain", "spdl")


def main() -> int:
    options = parse()
    # An exit that unwinds, so that the round under way is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cases = [case for case in CASES.values() if not options.only or {case.name, case.group} & {*options.only}]
    versions = probe(options.peers)
    measured_on = environment.describe(versions)
    print(measured_on, file=sys.stderr)

    rounds: list[Round] = []
    results: list[Result] = []
    for case in cases:
        variants = runnable(case, versions)
        if not variants:
            say(f"{case.name}: nobody to measure")
            continue
        turns = []
        for turn in take_turns(case, variants, options.rounds, options.quick):
            turns.append(turn)
            say(progress(turn))
        rounds += turns
        results += summarise(case, turns)

    print(measured_on)
    print(tables.markdown(results) if options.markdown else tables.plain(results))
    for failure in dict.fromkeys(f"{turn.case} · {turn.variant}: {turn.error}" for turn in rounds if turn.error):
        print(f"failed: {failure}")
    if options.json:
        document = {
            "environment": measured_on.as_dict(),
            "quick": options.quick,
            "results": [result.as_dict() for result in results],
            "rounds": [asdict(turn) for turn in rounds],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if options.check and any(result.met is False for result in results) else 0


def parse() -> argparse.Namespace:
    groups = sorted({case.group for case in CASES.values()})
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[*groups, *CASES], help=", ".join(groups))
    parser.add_argument("--quick", action="store_true", help="short epochs, two rounds: a first impression")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each competitor (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write environment, ratios and all rounds")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="only torch and penstock")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    return options


def probe(peers: bool) -> dict[str, str]:
    """Who can be measured: competitor → version."""
    versions = {}
    for name in COMPETITORS:
        if name in PEERS and not peers:
            continue
        answer, error = run_child(["--variant", name, "--probe"], timeout=60)
        if answer:
            versions[name] = str(answer["version"])
        else:
            say(f"{name} is left out: {error}")
    return versions


def runnable(case: Case, versions: dict[str, str]) -> tuple[str, ...]:
    """The case's variants that are here. Those that are no competitors are settings of Penstock's, or Ray's ways."""
    if case.on_ray and (why_not := why_not_on_ray()):
        say(f"{case.name} is left out: {why_not}")
        return ()
    if set(case.variants) <= set(COMPETITORS):
        return tuple(variant for variant in case.variants if variant in versions)
    return case.variants if "penstock" in versions else ()


def progress(turn: Round) -> str:
    what = f"{turn.case} · round {turn.number + 1} · {turn.variant}"
    if turn.measures is None:
        return f"{what}: failed: {turn.error}"
    return f"{what}: " + ", ".join(f"{key} {value:.4g}" for key, value in turn.measures.items())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
