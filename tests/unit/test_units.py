"""The units of systemd: what they run exists, they have few rights, and their secrets are credentials."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.rules import call_fault, calls
from zkrebalancer.cli import coordinator, group_coordinator

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
MAX_EXPOSURE = 1.5
DEPLOY_PAGE = (Path(__file__).parents[2] / "docs/how-to/deploy.md").read_text()


def service(unit: Path) -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # as the manual of configparser says
    parsed.read(unit)
    return parsed["Service"]


def test_there_is_a_unit_for_each_program() -> None:
    assert [unit.name for unit in UNITS] == [
        "consumer-agent@.service",
        "zkrebalancer-coordinator.service",
        "zkrebalancer-gateway.service",
        "zkrebalancer-mirror.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_what_exists_is_watched_and_gets_secrets_as_credentials(unit: Path) -> None:
    (command,) = calls(unit.read_text())
    assert call_fault(command) is None
    found = service(unit)
    assert (found["Type"], found["DynamicUser"], found["Restart"]) == ("notify", "yes", "always")
    assert "User" not in found
    assert int(found["WatchdogSec"]) >= 60
    assert found["UMask"] == "0077"  # events name hosts and topics
    assert int(found["TimeoutStopSec"]) >= (60 if "agent" in unit.name else 15)  # a batch; a resignation, 5 s
    assert "StartLimitIntervalSec=0" in unit.read_text()  # it never stops trying
    if "agent" in unit.name:
        assert found["KillMode"] == "mixed"  # the agent ends its child, after the batch
    assert "${CREDENTIALS_DIRECTORY}/secrets.toml" in command
    assert found["LoadCredential"].startswith("secrets.toml:/etc/zkrebalancer/")


@pytest.mark.parametrize("drop_in", sorted(FOLDER.glob("*.conf")), ids=lambda path: path.stem)
def test_a_drop_in_gives_a_secret_as_a_credential_by_a_variable_that_exists(drop_in: Path) -> None:
    found = service(drop_in)
    name, _, file = found["LoadCredential"].partition(":")
    assert file.startswith("/etc/zkrebalancer/")
    assert re.sub("%N", "zkrebalancer-coordinator", file) in DEPLOY_PAGE
    variable, _, value = found["Environment"].partition("=")
    assert value == f"%d/{name}"
    known = {
        one.envvar
        for command in (group_coordinator.group_coordinator, coordinator.coordinator)
        for one in command.params
    }
    assert variable in known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt-get install systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_has_few_rights(unit: Path) -> None:
    analyzed = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    done = subprocess.run(analyzed, capture_output=True, text=True, check=False)
    (level,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(level) <= MAX_EXPOSURE
