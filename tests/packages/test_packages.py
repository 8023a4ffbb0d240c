"""The files of the Debian package fit together and fit the project; without build tools, `make packages` names them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumer_agent.sidecar.cli import consumer_agent
from tests.style.sources import ROOT
from zkrebalancer.cli.main import zkrebalancer

DEBIAN = ROOT / "deploy/debian"
VERSION = re.compile(r'version="([^"]+)"')
COMMANDS = {"coordinator": "coordinator", "gateway": "group-coordinator", "mirror": "topics mirror"}


def stanzas(text: str) -> list[dict[str, str]]:
    """Parse a control file: stanzas of fields, whose further lines begin with a space."""
    found = []
    for stanza in text.strip().split("\n\n"):
        fields = re.findall(r"^([\w-]+): *(.*(?:\n[ \t].*)*)$", stanza, re.MULTILINE)
        assert "\n".join(f"{name}: {value}" for name, value in fields) == stanza
        found.append(dict(fields))
    return found


def test_control_files_parse_and_versions_agree() -> None:
    source, package = stanzas((DEBIAN / "control").read_text())
    assert source["Source"] == package["Package"] == "zkrebalancer"
    first, *_, last = (DEBIAN / "changelog").read_text().strip().splitlines()
    found = VERSION.search((ROOT / "setup.py").read_text())
    assert found is not None
    assert first == f"zkrebalancer ({found[1]}) unstable; urgency=medium"
    assert last.startswith(f" -- {source['Maintainer']}  ")
    assert (DEBIAN / "source/format").read_text() == "3.0 (native)\n"
    assert stanzas((DEBIAN / "copyright").read_text())[1]["License"].startswith("Apache-2.0")


def test_every_listed_file_is_there() -> None:
    for kind in ("docs", "examples", "manpages"):
        for line in (DEBIAN / f"zkrebalancer.{kind}").read_text().splitlines():
            assert list(
                ROOT.glob(line.replace("debian/", "deploy/debian/", 1) if line.startswith("debian/") else line)
            ), line
    rules = (DEBIAN / "rules").read_text()
    (units,) = re.findall(r"^UNITS := (.*)$", rules, re.MULTILINE)
    assert {f"{unit}.service" for unit in units.split()} == {
        path.name for path in (ROOT / "deploy/systemd").glob("*.service")
    }
    assert (DEBIAN / "rules").stat().st_mode & 0o111
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", str(DEBIAN / f"zkrebalancer.{script}")], check=True)


@pytest.mark.parametrize("is_failing", [False, True])
def test_an_upgrade_restarts_agents_last_and_goes_on_if_one_does_not_come_up(tmp_path: Path, is_failing: bool) -> None:
    """In `postinst`, restart agents before coordinators, or fail: the package stays half configured."""
    called = tmp_path / "called"
    for name in ("systemctl", "py3compile", "install"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>{called}\nexit {int(is_failing and name == "systemctl")}\n')
        program.chmod(0o755)
    script = (DEBIAN / "zkrebalancer.postinst").read_text().replace("/run/systemd/system", str(tmp_path))
    script = script.replace("#DEBHELPER#", "systemctl restart zkrebalancer-coordinator || true")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script, "postinst", "configure", "0.0.9"], env=environment, check=True)
    restarted = [line for line in called.read_text().splitlines() if "restart" in line]
    assert restarted == [
        "systemctl restart zkrebalancer-coordinator",
        "systemctl try-restart consumer-agent@*.service",
    ]


@pytest.mark.parametrize("example", sorted((DEBIAN / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_of_settings_is_valid(example: Path) -> None:
    assert not tomllib.loads(example.read_text())["http"].startswith("127.")  # Prometheus runs elsewhere
    command = COMMANDS.get(example.stem)
    program, words = (zkrebalancer, command.split()) if command else (consumer_agent, ["run"])
    done = CliRunner().invoke(program, [*words, "--config", str(example), "--print-config"])
    assert done.exit_code == 0, done.output


def test_missing_tools_are_named() -> None:
    command = [sys.executable, str(ROOT / "deploy/packages.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    expected = "Error: build tools are missing; run: apt-get install dpkg-dev debhelper dh-virtualenv"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1
