"""Environments with the lowest or the newest versions that setup.py allows, and a choice of tests in them."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from packaging.requirements import Requirement

from tests.style.sources import ROOT

Versions = Literal["lowest", "newest"]
TOOLS = (  # what the tests below need
    *("hypothesis", "kafka-python", "psutil", "psycopg", "psycopg-binary", "pytest", "pytest-timeout", "PyYAML"),
)
OTHER_PYTHONS = ("3.12", "3.13")  # beside that of this environment
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
# Each dependency is used by some of them. They need neither Spark nor anything else that is optional.
TESTS = (
    *("tests/unit/assignment", "tests/unit/cli", "tests/unit/consumer_agent", "tests/unit/coordinator"),
    *("tests/unit/gateway", "tests/unit/protocol", "tests/unit/runtime"),
    "tests/integration/test_triggers.py::test_a_consumer_joins",
    "tests/integration/test_agent_offsets.py",
    "tests/integration/test_deployment.py::test_a_coordinator_as_systemd_runs_it",
    "tests/integration/test_gateway.py::test_clients_share_a_group",
    "tests/integration/test_group_settings.py",
    *(
        f"tests/integration/test_secured_kafka.py::{name}"
        for name in (
            "test_an_agent_reads_with_tokens_and_hears_of_events",
            "test_tokens_do_not_block_an_event_loop",
            "test_a_command_gets_its_token_from_an_identity_provider",
        )
    ),
    "tests/integration/test_secured_zookeeper.py",
)


def declared(extra: str | None = None) -> list[Requirement]:
    """Return what setup.py requires, of everybody or for an extra."""
    found: dict[str, object] = {}
    setuptools = types.SimpleNamespace(setup=found.update, find_packages=lambda **_options: [])
    with patch.dict(sys.modules, {"setuptools": setuptools}):  # nothing is built, so it need not be there
        runpy.run_path(str(ROOT / "setup.py"))
    extras = found["extras_require"]
    assert isinstance(extras, dict)
    lines = found["install_requires"] if extra is None else extras[extra]
    assert isinstance(lines, list)
    return [Requirement(line) for line in lines]


def imported(tests: Sequence[str] = TESTS) -> dict[str, Path]:
    """Return the packages of others that these tests import when they are collected, each with a file that does."""
    places = [ROOT / test.partition("::")[0] for test in tests]
    to_read = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
    to_read += [ROOT / "tests/conftest.py", ROOT / "tests/integration/conftest.py"]
    found: dict[str, Path] = {}
    read: set[Path] = set()
    while to_read:
        file = to_read.pop()
        if file in read or not file.exists():
            continue
        read.add(file)
        for module in _modules(ast.parse(file.read_text())):
            package = module.partition(".")[0]
            if package == "tests":
                to_read.append(ROOT / f"{module.replace('.', '/')}.py")
            elif package not in sys.stdlib_module_names:
                found.setdefault(package, file)
    return found


def _modules(tree: ast.Module) -> list[str]:
    """Return the modules that a module imports at its top level; a name from a package may be a module, too."""
    modules: list[str] = []
    for one in tree.body:
        if isinstance(one, ast.Import):
            modules += [name.name for name in one.names]
        elif isinstance(one, ast.ImportFrom) and one.module is not None:
            modules += [one.module, *(f"{one.module}.{name.name}" for name in one.names)]
    return modules


def bound(requirement: Requirement, operator: str) -> str | None:
    """Return the version after an operator such as ">="."""
    return next((one.version for one in requirement.specifier if one.operator == operator), None)


def find_python(version: str) -> str | None:
    """Return an interpreter of this minor version that can make environments: on the path, or of pyenv."""
    on_path = shutil.which(f"python{version}")
    candidates = [on_path] if on_path is not None else []
    candidates += map(str, sorted(PYENV.glob(f"{version}.*/bin/python{version}")))
    asked = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"
    for candidate in candidates:
        done = subprocess.run([candidate, "-I", "-c", asked], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def make(folder: Path, versions: Versions, interpreter: str = sys.executable) -> Path:
    """Create an environment with these versions of what everybody needs; return its interpreter."""
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    wanted = declared()
    lines = [f"{one.name}=={bound(one, '>=')}" if versions == "lowest" else str(one) for one in wanted]
    known = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
    lines += [str(one) for one in known if one.name in TOOLS]
    python = folder / "bin/python"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *lines], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip cannot install the {versions} versions: {done.stderr[-2_000:]}"
    return python


def installed(python: Path, wanted: Sequence[Requirement]) -> dict[str, str]:
    """Return the versions of these requirements in an environment."""
    asked = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))"
    command = [str(python), "-I", "-c", asked, *(one.name for one in wanted)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip((one.name for one in wanted), found, strict=True))


def run_tests(python: Path, tests: Sequence[str] = TESTS, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run tests of this checkout in an environment, with these variables in addition."""
    environment = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "PYTEST_ADDOPTS"}}
    command = [str(python), "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *tests]
    command.append("--ignore=tests/unit/cli/test_completion.py")  # it needs the installed programs
    return subprocess.run(
        command, cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True, check=False
    )
