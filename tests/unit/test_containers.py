"""Dockerfile, compose and Kubernetes: they name only programs, options, settings and fields that exist."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from tests.docs.rules import PROGRAMS, call_fault

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
OURS = {name: one for name, one in COMPOSE["services"].items() if "ZKREBALANCER_IMAGE" in one["image"]}
MANIFESTS: list[dict[str, Any]] = [
    one for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]
WORKLOADS = {one["metadata"]["name"]: one for one in MANIFESTS if one["kind"] in {"Deployment", "StatefulSet"}}
FIRST, LAST = "1.28", "1.37"  # from the first version on, pods have the label that gives broker_id


def settings(command: list[str], files: Mapping[str, str], environment: Mapping[str, str], folder: Path) -> str:
    """Return what a command prints with --print-config, with these files in place of those that it would find."""
    assert call_fault(" ".join(command)) is None
    for number, (path, text) in enumerate(files.items()):
        file = folder / f"{number}.toml"
        file.write_text(text)
        command = [str(file) if word == path else word for word in command]
    done = CliRunner().invoke(PROGRAMS[command[0]], [*command[1:], "--print-config"], env=dict(environment))
    assert done.exit_code == 0, done.output
    assert "is not a setting" not in done.output
    return done.stdout


# ---- Docker


def test_the_dockerfile_copies_what_exists_and_starts_without_rights() -> None:
    ignored = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    sources = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert [name for name in sources if not (DEPLOY.parent / name).exists()] == []
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert re.findall(r"^USER (\d+)", DOCKERFILE, re.MULTILINE) == ["65532"]
    assert "-c constraints.txt" in DOCKERFILE
    check, command = (json.loads(found) for found in re.findall(r"^\s*CMD (\[.*\])$", DOCKERFILE, re.MULTILINE))
    assert check[:3] == ["python", "-I", "-c"]
    compile(check[3], "health check", "exec")
    assert call_fault(" ".join(command)) is None


# ---- compose


@pytest.mark.parametrize("name", OURS)
def test_a_service_has_a_command_and_settings_that_exist(name: str, tmp_path: Path) -> None:
    service = OURS[name]
    mounted = [volume.split(":") for volume in service["volumes"]]
    files = {target: (DEPLOY / "compose" / source).read_text() for source, target, _ in mounted}
    environment = {key: str(value) for key, value in service["environment"].items()}
    found = settings(service["command"], files, environment, tmp_path)
    assert 'http = "0.0.0.0:8080"' in found, "where the image's health check asks"
    assert all(f"{host}:2181" in found for host in ("zk1", "zk2", "zk3"))


def test_each_service_restarts_has_limits_and_finds_what_it_names() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert name in OURS or "healthcheck" in service, name
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).is_file(), volume
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"]
    targets = [target for job in scraped for one in job["static_configs"] for target in one["targets"]]
    assert sorted(targets) == sorted(f"{name}:8080" for name in OURS)


SECURED: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "secured.yaml").read_text())["services"]


@pytest.mark.parametrize("name", OURS)
def test_a_secured_service_logs_in_by_tls(name: str, tmp_path: Path) -> None:
    service, secured = OURS[name], SECURED[name]
    files = {target: (DEPLOY / "compose" / source).read_text() for source, target, _ in map(parts, service["volumes"])}
    environment = {key: str(value) for key, value in {**service["environment"], **secured["environment"]}.items()}
    found = settings(service["command"], files, environment, tmp_path)
    assert all(f"{host}:2281" in found for host in ("zk1", "zk2", "zk3"))
    given = {target: source for source, target, _ in map(parts, secured["volumes"])}
    user = "coordinator" if name.startswith("coordinator") else "payments"
    assert f'zookeeper_user = "{user}"' in found
    for key, source in (("tls_ca", "ca.pem"), ("password_file", f"{user}.password")):
        (path,) = re.findall(rf'^zookeeper_{key} = "(.*?)"', found, re.MULTILINE)
        assert given[path] == f"./secrets/{source}"


def parts(volume: str) -> list[str]:
    return volume.split(":")


def test_secured_servers_are_those_of_the_compose_file() -> None:
    """They have the settings of the page."""
    servers = [name for name in COMPOSE["services"] if name.startswith("zk")]
    assert set(SECURED) == {*OURS, *servers}
    page = (DEPLOY.parent / "docs/how-to/secure.md").read_text()
    (wanted,) = re.findall(r"```\n(authProvider.*?)```", page, re.DOTALL)
    for name in servers:
        own = SECURED[name]["environment"]["ZOO_CFG_EXTRA"]
        assert own.split() == wanted.replace("/etc/zookeeper/", "/secrets/").split()


# ---- Kubernetes


def check(manifest: dict[str, Any], version: str = LAST) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", [FIRST, LAST])
def test_manifests_follow_the_schema(version: str) -> None:
    for manifest in MANIFESTS:
        check(manifest, version)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), "replicas"),
        (("template", "spec"), "terminationGracePeriodSeconds"),
        (("template", "spec", "containers", 0, "livenessProbe"), "failureThreshold"),
        (("template", "spec", "containers", 0, "securityContext"), "readOnlyRootFilesystem"),
    ],
)
def test_a_misspelt_field_is_found(path: tuple[str | int, ...], name: str) -> None:
    manifest = copy.deepcopy(WORKLOADS["zkrebalancer-coordinator"])
    at = manifest["spec"]
    for key in path:
        at = at[key]
    at[f"{name}s"] = at.pop(name)
    with pytest.raises(kubernetes_validate.ValidationError):
        check(manifest)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_a_command_and_settings_that_exist(name: str, tmp_path: Path) -> None:
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    files = _files(pod, container)
    environment = {one["name"]: "7" for one in container["env"]}
    command = container["args"]
    assert {word for word in command if word.startswith("/")} <= set(files)
    found = settings(command, files, environment, tmp_path)
    assert found.count('"7"') + found.count("= 7") == len(environment), found
    (password_file,) = re.findall(r'zookeeper_password_file = "(.*?)"', found)
    assert password_file in files
    assert "change-me" not in found, "a secret is printed"


def _files(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Return path -> content of the files that a container finds in its volumes."""
    contents = {
        (one["kind"], one["metadata"]["name"]): one.get("data") or one["stringData"]
        for one in MANIFESTS
        if one["kind"] in {"ConfigMap", "Secret"}
    }
    found: dict[str, str] = {}
    for mount in container["volumeMounts"]:
        (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
        if "configMap" in volume:
            data = contents["ConfigMap", volume["configMap"]["name"]]
        else:
            data = contents["Secret", volume["secret"]["secretName"]]
        found |= {f"{mount['mountPath']}/{key}": text for key, text in data.items()}
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_probed_protected_and_has_few_rights(name: str) -> None:
    workload = WORKLOADS[name]
    template = workload["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    (container,) = pod["containers"]
    assert (container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]) == (
        {"path": "/liveness", "port": "http"},
        {"path": "/readiness", "port": "http"},
    )
    port = str(next(one["containerPort"] for one in container["ports"] if one["name"] == "http"))
    assert template["metadata"]["annotations"]["prometheus.io/port"] == port
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"USER {pod['securityContext']['runAsUser']}:" in DOCKERFILE
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    selectors = [one["spec"]["selector"]["matchLabels"] for one in MANIFESTS if one["kind"] == "PodDisruptionBudget"]
    assert labels in selectors
    assert all(one["spec"]["maxUnavailable"] == 1 for one in MANIFESTS if one["kind"] == "PodDisruptionBudget")
    assert workload["spec"]["selector"]["matchLabels"] == labels


def test_clients_find_gateways_that_are_not_ready() -> None:
    """Without ZooKeeper no gateway is ready, but all relay: clients that start would find no address at all."""
    (service,) = (one for one in MANIFESTS if one["kind"] == "Service" and "gateway" in one["metadata"]["name"])
    assert service["spec"]["publishNotReadyAddresses"] is True
