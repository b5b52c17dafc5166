"""A loader at the end of a notebook's cell; `tests/docs` runs a real notebook."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from penstock import discovery

from tests.loader.support import DataLoader, Samples


@pytest.fixture(autouse=True)
def no_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.delenv("PENSTOCK_URL", raising=False)


def test_one_that_is_not_published_says_how_it_could_be() -> None:
    shown = DataLoader(Samples(), name="<train>")._repr_html_()
    assert "monitor=True" in shown
    assert "&lt;train&gt;" in shown


def test_the_token_is_not_shown() -> None:
    shown = DataLoader(Samples(), monitor="http://127.0.0.1:9/prefix#token=secret")._repr_html_()
    assert 'href="http://127.0.0.1:9/prefix/"' in shown
    assert "secret" not in shown


@pytest.mark.parametrize("framed", [False, True])
def test_the_page_is_in_a_frame_where_the_dashboard_allows_one(framed: bool) -> None:
    discovery.write(discovery.Discovery("http://127.0.0.1:8787", "secret", os.getpid(), 0.0, framed))
    shown = DataLoader(Samples(), monitor=True)._repr_html_()
    assert ('<iframe src="http://127.0.0.1:8787/"' in shown) == framed
    assert 'href="http://127.0.0.1:8787/"' in shown
    assert "secret" not in shown


def test_showing_a_loader_starts_no_dashboard() -> None:
    assert "starts with the first epoch" in DataLoader(Samples(), monitor=True)._repr_html_()
