"""Versions of the project at other commits: a wheel of each, in a virtual environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.style.sources import ROOT

SHALLOW = "a shallow clone lacks it: run `git fetch --unshallow`"
WITHIN_S = 600.0


class BuildError(Exception):
    """A version cannot be built; the message says why and what to do."""


# Keeps the present source, which is on the path of this process, away from processes of a build.
APART: Mapping[str, str] = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True, slots=True)
class Build:
    """A version that can be run: its interpreter, and what its processes need in addition to our environment."""

    name: str
    python: Path
    environment: Mapping[str, str] = field(default_factory=lambda: APART)


def read_versions(file: Path) -> dict[str, str]:
    """Return which commits a file names, by the names of their versions."""
    return {str(name): str(commit) for name, commit in tomllib.loads(file.read_text()).items()}


def build(name: str, commit: str, folder: Path) -> Build:
    """Build the wheel of a commit and install it, beside the packages of this environment.

    Raises:
        BuildError: there is no such commit here, or it cannot be built.

    """
    full = resolve(commit)
    source, target = folder / f"{name}-source", folder / name
    _extract(full, source)
    wheel = build_wheel(source, folder / f"{name}-wheel")
    venv.create(target, symlinks=True)
    site = target / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    # The dependencies are those of this environment; its own entries come first, so its project is not this one.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = target / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check"]
    _run([*pip, "--no-index", "--no-deps", "--force-reinstall", str(wheel)])
    return Build(name, python)


def resolve(commit: str, repository: Path = ROOT) -> str:
    """Return the full name of a commit; raises BuildError if it is not here."""
    found = _git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode == 0:
        return found.stdout.decode().strip()
    if _git(repository, "rev-parse", "--git-dir").returncode != 0:
        raise BuildError(f"{repository} is no git repository, so there is no commit {commit} to build")
    is_shallow = _git(repository, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
    raise BuildError(f"there is no commit {commit} in {repository}" + (f"; {SHALLOW}" if is_shallow else ""))


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree with pip, which fetches the build tools; return its file."""
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _extract(commit: str, target: Path) -> None:
    target.mkdir(parents=True)
    with subprocess.Popen(["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE) as archive:
        assert archive.stdout is not None
        with tarfile.open(fileobj=archive.stdout, mode="r|") as members:
            members.extractall(target, filter="data")
    if archive.returncode:
        raise BuildError(f"git archive {commit} ended with exit code {archive.returncode}")


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)


def _run(command: list[str]) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr[-2_000:]}")
