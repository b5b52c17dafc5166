"""The browser's types say what `loader/penstock/protocol.py` says."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from penstock import protocol

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_types", FRONTEND / "scripts" / "generate_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_types_are_up_to_date() -> None:
    on_disk = (FRONTEND / "src" / "live" / "protocol.ts").read_text()
    numbers = (FRONTEND / "src" / "live" / "numbers.ts").read_text()
    assert load_generator().generate() == on_disk, "run: python frontend/scripts/generate_types.py"
    assert load_generator().generate_numbers() == numbers, "run: python frontend/scripts/generate_types.py"


def test_check_mode_reports_drift() -> None:
    script = FRONTEND / "scripts" / "generate_types.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.skipif(not (FRONTEND / "node_modules").exists(), reason="needs npm ci in frontend/")
def test_decoders_give_names_to_what_msgspec_sends(tmp_path: Path) -> None:
    """A frame encoded by msgspec and decoded by the generated code has every value under its own name."""
    worker = protocol.Worker(id=3, pid=99, state="fetching", batch=7, rss=4096, cpu_ms=5)
    snapshot = protocol.Snapshot(
        seq=1,
        at=2.0,
        state="running",
        workers=[worker],
        queues=protocol.Queues(data=4, memory_budget=8),
    )
    frame = protocol.Frame(
        loader="r:0:train",
        snapshot=snapshot,
        rates=protocol.Rates(batches=1.5, workers=2.0),
        presence="connected",
        at=3.0,
    )
    (tmp_path / "frame.json").write_bytes(msgspec.json.encode(frame))
    program = tmp_path / "decode.mjs"
    bundle = tmp_path / "protocol.mjs"
    subprocess.run(
        [
            "node",
            "--input-type=module",
            "-e",
            "import ts from 'typescript'; import fs from 'node:fs';"
            f"fs.writeFileSync({str(bundle)!r}, ts.transpileModule("
            "fs.readFileSync('src/live/protocol.ts', 'utf8'),"
            "{compilerOptions: {module: 'ESNext', target: 'ES2022'}}).outputText)",
        ],
        cwd=FRONTEND,
        check=True,
    )
    program.write_text(
        "import fs from 'node:fs'; import { decodeToViewer } from './protocol.mjs';"
        f"const frame = JSON.parse(fs.readFileSync({str(tmp_path / 'frame.json')!r}));"
        "console.log(JSON.stringify(decodeToViewer(frame)))"
    )
    out = subprocess.run(["node", str(program)], capture_output=True, text=True, check=True).stdout
    decoded = msgspec.json.decode(out)
    assert decoded["snapshot"]["queues"]["data"] == 4
    assert decoded["snapshot"]["queues"]["memory_budget"] == 8
    assert decoded["snapshot"]["workers"][0]["rss"] == 4096
    assert decoded["snapshot"]["workers"][0]["state"] == "fetching"
    assert decoded["rates"]["batches"] == 1.5
    assert decoded["rates"]["workers"] == 2.0
