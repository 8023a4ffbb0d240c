"""Builds the packages of the last commit: a wheel, a Debian package and, if a Docker engine answers, an image.

`make packages` runs it. As root it installs the build tools that are missing; otherwise it names them, exit code 2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "zkrebalancer"
DEBIAN_PYTHON = "/usr/bin/python3"  # the package's environment belongs to Debian's Python
TOOLS = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "dh_virtualenv": "dh-virtualenv"}  # tool -> its package
SHOWN_LINES = 20
FAILED, UNUSABLE = 1, 2


class PackagingError(Exception):
    """No package can be built; the message says why."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="make packages", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument("--base", help="base of the image, instead of the Dockerfile's")
    chosen = parser.parse_args(arguments)
    try:
        provide_tools()
        chosen.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="zkrebalancer-packages-") as folder:
            build_all(Path(folder), chosen.out.resolve(), chosen.base)
    except PackagingError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def build_all(folder: Path, out: Path, base: str | None) -> None:
    """Build everything from one copy of the last commit."""
    source = folder / NAME
    commit = extract(source)
    made_at = output(["git", "-C", str(ROOT), "show", "--no-patch", "--format=%ct", commit])
    environment = {**os.environ, "SOURCE_DATE_EPOCH": made_at}
    print(f"commit {commit}")
    wheel = build_wheel(source, out, environment)
    report(wheel)
    report(build_deb(source, out, environment))
    if answers(["docker", "version"]):
        report(build_image(source, out, wheel.name.split("-")[1], base))
    else:
        print("no image: no Docker engine answers here")


def report(package: Path) -> None:
    """Print what was built."""
    print(f"{package} ({package.stat().st_size / 1e6:.1f} MB)")


def missing_packages() -> list[str]:
    """Return the Debian packages of the build tools that are missing."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if not answers([DEBIAN_PYTHON, "-c", "import venv, ensurepip"]):
        missing.append("python3-venv")
    return missing


def provide_tools() -> None:
    """Install missing build tools as root; raises PackagingError if some are missing in the end."""
    missing = missing_packages()
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {', '.join(missing)}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update", "--quiet"], environment)
        run(["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *missing], environment)
        missing = missing_packages()
    if missing:
        raise PackagingError(f"build tools are missing; run: apt-get install {' '.join(missing)}", UNUSABLE)
    if shutil.which("git") is None or not answers(["git", "-C", str(ROOT), "rev-parse", "HEAD"]):
        raise PackagingError(f"packages are built from a commit, and {ROOT} is no git checkout", UNUSABLE)


def extract(target: Path) -> str:
    """Copy the last commit to a folder; return its name."""
    commit = output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    if output(["git", "-C", str(ROOT), "status", "--porcelain"]):
        print("uncommitted changes are left out", file=sys.stderr)
    archive = target.with_suffix(".tar")
    run(["git", "-C", str(ROOT), "archive", f"--output={archive}", commit])
    with tarfile.open(archive) as members:
        members.extractall(target, filter="data")
    archive.unlink()
    return commit


def build_wheel(source: Path, out: Path, environment: Mapping[str, str]) -> Path:
    """Build the wheel; return its file."""
    folder = source.parent / "wheel"
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check"]
    run([*pip, "--wheel-dir", str(folder), str(source)], environment)
    shutil.rmtree(source / "build", ignore_errors=True)  # what setuptools leaves
    return moved(folder, "*.whl", out)


def build_deb(source: Path, out: Path, environment: Mapping[str, str]) -> Path:
    """Build the Debian package; return its file."""
    shutil.copytree(source / "deploy/debian", source / "debian")
    # -d: nothing is compiled, so what else a build of Debian's would have installed is not needed.
    run(["dpkg-buildpackage", "-b", "-us", "-uc", "-d"], environment, source)
    shutil.rmtree(source / "debian")
    return moved(source.parent, "*.deb", out)


def build_image(source: Path, out: Path, version: str, base: str | None) -> Path:
    """Build the image, which the engine keeps, and save it; return its file."""
    tag, file = f"{NAME}:{version}", out / f"{NAME}-{version}-image.tar"
    options = [] if base is None else ["--build-arg", f"BASE={base}"]
    run(
        ["docker", "build", "--network=host", "--file", "deploy/docker/Dockerfile", *options, "--tag", tag, "."],
        cwd=source,
    )
    run(["docker", "save", "--output", str(file), tag])
    return file


def moved(folder: Path, pattern: str, out: Path) -> Path:
    """Move the one file of this pattern to `out`."""
    (file,) = folder.glob(pattern)
    return Path(shutil.move(file, out / file.name))


def answers(command: Sequence[str]) -> bool:
    """Whether a command succeeds."""
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def output(command: Sequence[str]) -> str:
    """Return what a command writes."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command; if it fails, show its last lines and raise PackagingError."""
    done = subprocess.run(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-SHOWN_LINES:]), file=sys.stderr)
        raise PackagingError(f"{' '.join(command[:2])} ended with exit code {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
