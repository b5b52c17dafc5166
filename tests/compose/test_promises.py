"""What docker-compose.yml and the Dockerfile promise to whoever types `docker compose up`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run
from penstock.demo import cluster, distributed
from penstock_dashboard.dashboard import add_parser, settings_from
from penstock_dashboard.settings import Settings

from tests.compose.files import ROOT, calls, compose, script, services, stage

OURS = ("backend", "training")
METRICS = ("prometheus", "grafana")
CLUSTER = ("ray-head", "ray-node-1", "ray-node-2", "cluster-training")


def dashboard_settings(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return settings_from(parser.parse_args(arguments))


def mounts(service: str) -> dict[str, tuple[str, bool]]:
    """Place in the container → (volume or file, whether it can be written)."""
    found = {}
    for mount in services()[service].get("volumes", []):
        source, target, *options = mount.split(":")
        found[target] = source, "ro" not in options
    return found


def test_two_services_by_default_and_the_others_on_request() -> None:
    assert {name for name, service in services().items() if "profiles" not in service} == set(OURS)
    assert {name for name, service in services().items() if service.get("profiles") == ["metrics"]} == set(METRICS)
    assert {name for name, service in services().items() if service.get("profiles") == ["cluster"]} == set(CLUSTER)


@pytest.mark.parametrize("name", [*OURS, *METRICS, *CLUSTER])
def test_nothing_of_the_host_is_opened(name: str) -> None:
    service = services()[name]
    widened = {"shm_size", "ipc", "privileged", "network_mode", "pid", "cap_add", "devices", "userns_mode", "user"}
    assert not widened & set(service)
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert all(not writable for source, writable in mounts(name).values() if source.startswith((".", "/")))


@pytest.mark.parametrize("name", [*OURS, *CLUSTER])
def test_ours_run_as_nobody_special_on_a_read_only_disk(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["healthcheck"]["test"] if name in OURS else not service.get("ports")
    name = service["build"]["target"]
    users = [rest for word, rest in stage(name) if word == "USER"]
    assert users and users[-1].split(":")[0].isdigit() and users[-1].split(":")[0] != "0"


def test_no_token_is_known_beforehand() -> None:
    """`docker compose up` twice, by two people, must not give the same token."""
    for service in services().values():
        for variable, value in service.get("environment", {}).items():
            assert value is None or "TOKEN" not in variable, "only what is set in the person's environment"
    assert "ARG PENSTOCK" not in (ROOT / "Dockerfile").read_text()


def test_each_client_sees_its_own_token_and_nothing_else() -> None:
    backend = mounts("backend")
    assert all(writable for _, writable in backend.values())
    assert mounts("training") == {"/tokens/training": (backend["/tokens/training"][0], False)}
    for name in METRICS:
        volumes = {target: mount for target, mount in mounts(name).items() if target.startswith("/tokens")}
        assert volumes == {"/tokens/monitoring": (backend["/tokens/monitoring"][0], False)}
        assert backend["/data"][0] not in [source for source, _ in mounts(name).values()]


def test_volumes_are_declared_and_files_are_there() -> None:
    declared = compose()["volumes"]
    for name in (*OURS, *METRICS, *CLUSTER):
        for source, _ in mounts(name).values():
            assert (ROOT / source).is_file() if source.startswith(".") else source in declared


def test_the_port_can_be_chosen() -> None:
    assert services()["backend"]["ports"] == ["127.0.0.1:8787:8787"]
    backend = services(PENSTOCK_PORT="9999")["backend"]
    assert backend["ports"] == ["127.0.0.1:9999:8787"]
    assert str(backend["environment"]["PENSTOCK_PORT"]) == "9999", "the printed link names it"


def test_the_dashboard_answers_to_the_name_that_the_others_use() -> None:
    [arguments] = [call for call in calls(script("backend"), "penstock") if call[0] == "dashboard"]
    settings = dashboard_settings([word.replace("$PENSTOCK_PORT", "8787") for word in arguments])
    assert services()["training"]["environment"]["PENSTOCK_URL"] == f"http://backend:{settings.port}"
    assert "backend" in settings.allow_hosts
    assert (settings.data, settings.token_file) == (Path("/data"), Path("/data/tokens.json"))
    assert not settings.announce


def test_training_starts_two_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [arguments] = calls(script("training"), "torchrun")
    run = torch.distributed.run.get_args_parser().parse_args(arguments)
    assert (run.nproc_per_node, run.module, run.training_script) == ("2", True, distributed.__name__)
    monkeypatch.setattr("sys.argv", ["distributed", *run.training_script_args])
    monkeypatch.delenv("RANK", raising=False)
    assert distributed.main() == 2
    assert "torchrun" in capsys.readouterr().err, "its arguments were understood; only torchrun was missing"


def test_the_cluster_is_on_a_network_of_its_own_and_training_has_one_processor() -> None:
    """Ray lets in whoever reaches it."""
    for name in CLUSTER:
        assert services()[name]["networks"] == (["default", "ray"] if name == "cluster-training" else ["ray"])
    assert all("networks" not in service for name, service in services().items() if name not in CLUSTER)
    assert compose()["networks"]["ray"] == {"internal": True}
    assert services()["cluster-training"]["cpus"] == 1
    assert f"-m {cluster.__name__}" in script("cluster-training")


def test_the_images_alone_start_the_same() -> None:
    commands: dict[str, Any] = {name: json.loads(dict(stage(name))["CMD"]) for name in OURS}
    assert dashboard_settings(commands["backend"][1:]).host == "0.0.0.0"
    run = torch.distributed.run.get_args_parser().parse_args(commands["training"][1:])
    assert run.training_script == distributed.__name__


def test_the_backend_has_no_torch_and_training_has_one_without_cuda() -> None:
    installs = [rest for word, rest in stage("backend-packages") if word == "RUN"]
    assert not any("torch==$TORCH" in rest for rest in installs)
    arguments = services()["training"]["build"]["args"]
    assert arguments["TORCH_INDEX"].endswith("/whl/cpu")
    assert f"torch=={arguments['TORCH']}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert services()["cluster-training"]["build"]["args"] == arguments
    assert dict(rest.split("=", 1) for word, rest in stage("training-packages") if word == "ARG") == arguments


def test_only_what_is_copied_reaches_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert all((ROOT / rule[1:]).exists() for rule in rules if rule.startswith("!"))
    assert {"backend/penstock_dashboard/static", "frontend/node_modules"} <= set(rules), (
        "built inside, from the sources"
    )
