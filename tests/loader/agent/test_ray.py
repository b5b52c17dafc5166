"""Workers that Ray places: `on_ray`, apart from the rest of the machine.

It is one test, so that there is one cluster, however many processes share the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.apart import APART, why_not_on_ray
from tests.loader.support import ROOT


@pytest.mark.timeout(600)
def test_workers_that_ray_places(tmp_path: Path) -> None:
    if why_not := why_not_on_ray():
        pytest.skip(why_not)
    command = [*APART, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/loader/agent/on_ray.py"]
    # A short name: paths of sockets have a limit.
    with (tmp_path / "said").open("w+") as said, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder}
        inner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=ROOT, env=environment)
        try:
            failed = inner.wait()
        finally:
            inner.kill()  # and with it everything that it started
            inner.wait()
        said.seek(0)
        assert not failed, said.read()
