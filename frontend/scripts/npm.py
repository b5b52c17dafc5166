"""npm in the frontend, with a Node that is new enough, as the build finds it: `npm.py run test`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FRONTEND = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(FRONTEND))

from hatch_build import find_npm, run  # noqa: E402


def main() -> int:
    npm, environment = find_npm()
    if not (FRONTEND / "node_modules").is_dir():
        run([*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], FRONTEND, environment)
    return subprocess.run([*npm, *sys.argv[1:]], cwd=FRONTEND, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
