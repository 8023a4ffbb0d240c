"""The bounds of the dependencies, in setup.py, are versions that work: the lowest and the newest are tried."""

from __future__ import annotations

from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.compat.environments import (
    OTHER_PYTHONS,
    TOOLS,
    Versions,
    bound,
    declared,
    find_python,
    imported,
    installed,
    make,
    run_tests,
)
from tests.style.sources import ROOT

EXTRAS = ("cluster", "spark", "experiments", "postgres")


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_every_dependency_has_bounds_that_the_tested_version_is_within(extra: str | None) -> None:
    known = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pinned = {one.name.lower().replace("_", "-"): bound(one, "==") for one in known}
    for requirement in declared(extra):
        assert bound(requirement, ">="), f"setup.py: {requirement} has no lower bound"
        assert bound(requirement, "<"), f"setup.py: {requirement} has no upper bound"
        version = pinned[requirement.name.lower()]
        assert requirement.specifier.contains(str(version)), f"constraints.txt: {version} is not {requirement}"


def test_the_environments_have_what_their_tests_import() -> None:
    known = {name.lower().replace("_", "-") for name in (*(one.name for one in declared()), *TOOLS)}
    of_package = packages_distributions()
    for package, file in imported().items():
        if package not in {"zkrebalancer", "consumer_agent"}:
            distributions = {name.lower().replace("_", "-") for name in of_package[package]}
            assert distributions & known, f"{file} imports {package}: add its distribution to TOOLS, or import it later"


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_what_the_bounds_allow_works(versions: Versions, tmp_path: Path) -> None:
    python = make(tmp_path / "environment", versions)
    found = installed(python, declared())
    if versions == "lowest":
        assert found == {one.name: bound(one, ">=") for one in declared()}
    done = run_tests(python)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("version", OTHER_PYTHONS)
def test_another_python_works(version: str, tmp_path: Path) -> None:
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"no python{version} on the path or of pyenv")
    done = run_tests(make(tmp_path / "environment", "newest", interpreter))
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
