"""Runs spin: compiles a check into a verifier, runs it, and turns a counterexample into a story.

Everything happens in a temporary folder, because spin leaves files behind.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.model.checks import Check

MODEL = Path(__file__).parents[2] / "docs" / "model" / "rebalance.pml"
TOOLS = {"spin": "spin", "gcc": "gcc"}  # program -> Debian package
MEMORY_LIMIT_MB = 14_000
MAX_DEPTH = 100_000  # of the search; paths of the model have a few hundred steps
TIMEOUT_S = 3_600
_SETS = {"{0}": "nothing", "{1}": "partition 0", "{2}": "partition 1", "{3}": "both partitions"}


class SpinError(Exception):
    """Spin, the compiler or the verifier failed; the text has its output."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The summary of a search."""

    states: int
    depth: int
    errors: int
    memory_mb: float
    seconds: float
    is_complete: bool  # the whole state space was searched


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a search and its counterexample's story, one line per step, if it found one."""

    figures: Figures
    story: tuple[str, ...]


def missing_packages() -> list[str]:
    """Return the Debian packages of missing programs."""
    return [package for program, package in TOOLS.items() if shutil.which(program) is None]


def run(check: Check) -> Result:
    """Search the model; raises `SpinError`."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-model-") as name:
        folder = Path(name)
        model = [f"-D{macro}" for macro in (f"FAULTS={check.faults}", *check.macros)]
        verifier, options = check.search.value
        _call(folder, "spin", *model, "-a", str(MODEL))
        defines = [f"-D{macro}" for macro in ("COLLAPSE", f"MEMLIM={MEMORY_LIMIT_MB}", *verifier)]
        optimization = "-O0" if check.faults == 1 else "-O2"  # a small search takes less time than its compilation
        _call(folder, "gcc", optimization, "-w", *defines, "-o", "pan", "pan.c")
        figures = parse_output(_call(folder, "./pan", f"-m{MAX_DEPTH}", *options))
        trail = folder / f"{MODEL.name}.trail"
        if not figures.errors or not trail.exists():
            return Result(figures, ())
        return Result(figures, parse_replay(_call(folder, "spin", *model, "-t", "-T", "-k", str(trail), str(MODEL))))


def _call(folder: Path, *command: str) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SpinError(f"{command[0]}: not finished within {TIMEOUT_S} s") from error
    if done.returncode != 0 and "-t" not in command:  # a replay ends with the failed assertion
        raise SpinError(f"{command[0]}: {(done.stdout + done.stderr).strip()[-500:]}")
    return done.stdout


def parse_output(text: str) -> Figures:
    """Parse a verifier's output; raises `SpinError` if it has no summary."""

    def number(pattern: str) -> float:
        found = re.search(pattern, text)
        if found is None:
            raise SpinError(f"the verifier gave no result: {text.strip()[-500:]}")
        return float(found[1])

    return Figures(
        states=int(number(r"(\S+) states, stored")),
        depth=int(number(r"depth reached (\d+)")),
        errors=int(number(r"errors: (\d+)")),
        memory_mb=number(r"([\d.]+)\s+total actual memory usage"),
        seconds=number(r"elapsed time (\S+) seconds"),
        is_complete="Search not completed" not in text and "max search depth too small" not in text,
    )


def parse_replay(text: str) -> tuple[str, ...]:
    """Return the story in a replayed trail: the model's output up to the broken property, marked by `=>`."""
    story: list[str] = []
    for line in text.splitlines():
        if line.startswith(("coordinator ", "consumer ", "the ", "an operator ", "its ", "=> ")):
            story.append(re.sub(r"\{\d\}", lambda found: _SETS[found[0]], line.rstrip()))
        if line.startswith("=> "):
            break
    return tuple(story)
