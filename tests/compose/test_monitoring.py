"""The metrics profile: what Prometheus scrapes and what our Grafana dashboard asks for exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from penstock_dashboard.settings import Settings
from prometheus_client.parser import text_string_to_metric_families

from tests.backend.harness import BRISK, Running, serving
from tests.compose.files import MONITORING, services

DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana" / "penstock.json").read_text())
[JOB] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Metric → its labels, from a real scrape with a loader that is connected and a command that has ended."""
    folder = tmp_path_factory.mktemp("server")
    with serving(Settings(timing=BRISK), folder) as server, server.loader("profile") as loader:
        loader.snapshot()
        loader.acknowledged(0)
        yield scrape_after_a_command(server, loader.id)


def scrape_after_a_command(server: Running, loader: str) -> dict[str, set[str]]:
    with server.http() as client:
        for workers in (3, 4):  # the second supersedes the first, which so has ended
            answer = client.post(f"/api/loaders/{loader}/commands", json={"action": "resize", "workers": workers})
            assert answer.is_success
        text = client.get("/metrics", params=JOB["params"]).text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_asks_for_something_that_is_there(query: str, series: dict[str, set[str]]) -> None:
    names = re.findall(r"\bpenstock_\w+", query)
    assert names
    for name in names:
        assert name in series, f"the backend has no {name}"
    # Labels: what is selected by, and what is grouped by.
    labels = set(re.findall(r"(\w+)=~?\"", query))
    for group in re.findall(r"\bby \(([^)]*)\)", query):
        labels |= {label.strip() for label in group.split(",")}
    for name in names:
        assert labels <= series[name], f"{name} has only the labels {series[name]}"


def test_the_legends_name_labels_that_are_left(series: dict[str, set[str]]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            [name, *_] = re.findall(r"\bpenstock_\w+", target["expr"])
            kept = {label.strip() for label in grouped[0].split(",")} if grouped else series[name]
            assert shown <= kept, panel["title"]


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells


def test_the_files_agree_on_names_and_places() -> None:
    grafana, prometheus = services()["grafana"], services()["prometheus"]
    [source] = yaml.safe_load((MONITORING / "grafana" / "datasources.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    used = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert used == {source["uid"]}
    [provider] = yaml.safe_load((MONITORING / "grafana" / "dashboards.yml").read_text())["providers"]
    mounted = {mount.split(":")[1] for mount in grafana["volumes"]}
    assert f"{provider['options']['path']}/penstock.json" in mounted
    token = Path(JOB["authorization"]["credentials_file"])
    assert JOB["static_configs"] == [{"targets": ["backend:8787"]}]
    assert any(mount.split(":")[1] == str(token.parent) for mount in prometheus["volumes"])
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == str(token), "no fixed password"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_its_configuration() -> None:
    command = ["promtool", "check", "config", "--syntax-only", str(MONITORING / "prometheus.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
