"""`penstock dashboard` in a process of its own, on a port of its own, that can be stopped and started again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = """
import ctypes, sys
ctypes.CDLL(None).prctl(1, 9)  # the kernel ends us with the test, however that ends
from penstock_dashboard.cli import main
sys.exit(main())
"""


class Dashboard:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokens = folder / "tokens.json"
        self._process: subprocess.Popen[str] | None = None
        self._port = "0"
        self.url = ""
        """Ends with a slash."""
        self.token = ""
        self.once = ""
        """What the terminal prints: the address with a code in its fragment that signs in once."""

    @property
    def link(self) -> str:
        """A link that signs in as often as it is used."""
        return f"{self.url}#token={self.token}"

    def start(self, *arguments: str) -> None:
        """Start, or start again on the same port with the same data."""
        command = [sys.executable, "-c", COMMAND, "dashboard", "--no-discovery", "--port", self._port]
        command += ["--data", str(self._folder / "data"), "--token-file", str(self._tokens), *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            if found := re.search(r"(https?://[^\s#]+)#once=\S+", line):
                self.url, self.once = found[1], found[0]
                self.token = json.loads(self._tokens.read_text())["tokens"][0]["token"]
                port = re.search(r":(\d+)/", self.url)
                if port is not None and "--public-url" not in arguments:
                    self._port = port[1]
                return
        raise AssertionError(f"the dashboard did not start:\n{said}")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._process = None

    def kill(self) -> None:
        """As if the machine went down."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def add_token(self, name: str, *scopes: str) -> str:
        command = [sys.executable, "-m", "penstock_dashboard", "tokens", "--token-file", str(self._tokens), "add", name]
        for scope in scopes:
            command += ["--scope", scope]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return said.split()[-1]
