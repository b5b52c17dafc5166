"""One round, in a process of its own: `python -m tests.benchmarks.round`.

Workers started by spawn import this module again, so importing it must do and cost nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answer", type=Path, required=True)
    parser.add_argument("--case")
    parser.add_argument("--variant", required=True)
    parser.add_argument("--probe", action="store_true", help="only say which version there is")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.probe:
        from tests.benchmarks.competitors import COMPETITORS

        answer: object = {"version": COMPETITORS[options.variant].opener().version()}
    else:
        from tests.benchmarks.catalogue import CASES

        answer = dict(CASES[options.case].measure.run(options.variant, options.quick))
    options.answer.write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
