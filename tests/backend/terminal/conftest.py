from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from penstock_dashboard.cli import main

from tests.backend.harness import SECRETS, Running
from tests.browser.publisher import Fleet

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def fleet(server: Running) -> Iterator[Fleet]:
    """Simulated loaders on demand; each test uses a run of its own."""
    fleet = Fleet(server.url, SECRETS["local"])
    yield fleet
    fleet.close()


@pytest.fixture
def call(server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `penstock …` against the server: exit status, stdout, stderr."""
    monkeypatch.delenv("PENSTOCK_URL", raising=False)

    def run(*arguments: str, token: str = "local", url: str = server.url) -> tuple[int, str, str]:
        monkeypatch.setenv("PENSTOCK_TOKEN", SECRETS[token])
        try:
            status = main([*arguments, "--url", url])
        except SystemExit as error:  # argparse
            status = int(str(error.code))
        said = capsys.readouterr()
        return status, said.out, said.err

    return run
