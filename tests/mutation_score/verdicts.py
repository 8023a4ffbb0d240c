"""Verdicts and measurements of former runs, and the reasons why some mutants may survive."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutation_score.catalogue import ROOT, Mutant
from tests.mutation_score.laboratory import HUNG, KILLED, REFUSED, Reach, Verdict

REASONS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a mutant may survive; `change` is its diff."""

    path: str
    function: str
    change: list[str]
    reason: str  # why it has no visible effect, or the slower test that notices it


def reasons() -> list[Reason]:
    """Read the table of reasons."""
    return [Reason(**one) for one in tomllib.loads(REASONS.read_text()).get("survivor", [])]


def reason_for(mutant: Mutant, known: Iterable[Reason]) -> str:
    """Return why a mutant may survive, "" if no reason is known."""
    same = (one for one in known if (one.path, one.function) == (mutant.path, mutant.function))
    return next((one.reason for one in same if one.change == mutant.diff), "")


def fingerprint(paths: Sequence[str]) -> str:
    """Return a digest of these tests and of all code they may run."""
    folders = [*paths, "tests/support", "tests/simulation", "zkrebalancer", "consumer_agent"]
    return _digest_of(file for folder in folders for file in _files(ROOT / folder))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.txt")]


class Memory:
    """A folder with the results of former runs.

    A mutant that was noticed is not tried again until its function changes; a survivor is tried
    again after any change of the tests or the code.
    """

    def __init__(self, folder: Path, tests: str) -> None:
        self._verdicts = folder / "verdicts.jsonl"
        self._reaches = folder / "reaches.jsonl"
        self._tests = tests
        self.types = folder / "mypy"
        folder.mkdir(parents=True, exist_ok=True)

    def forget(self) -> None:
        """Delete all verdicts."""
        self._verdicts.unlink(missing_ok=True)

    def verdicts(self) -> dict[str, Verdict]:
        """Return the verdicts that are still valid, by the mutants' keys."""
        known: dict[str, Verdict] = {}
        for one in _whole_lines(self._verdicts):
            key, tests = one.pop("key"), one.pop("tests")
            verdict = Verdict(**one)
            if tests == self._tests or verdict.outcome in {KILLED, HUNG, REFUSED}:
                known[key] = verdict
        return known

    def keep(self, mutant: Mutant, verdict: Verdict) -> None:
        """Add a verdict."""
        with self._verdicts.open("a") as file:
            file.write(json.dumps({"key": mutant.key, "tests": self._tests, **asdict(verdict)}) + "\n")

    def reaches(self) -> dict[str, Reach]:
        """Return the measurements of unchanged tests that reach only unchanged files."""
        found: dict[str, Reach] = {}
        for one in _whole_lines(self._reaches):
            reaches = {name: Reach(**reach) for name, reach in one["reaches"].items()}
            if one["digest"] == _digest(reaches):
                found |= reaches
        return found

    def keep_reaches(self, reaches: dict[str, Reach]) -> None:
        """Add the measurements of one file of tests."""
        document = {"digest": _digest(reaches), "reaches": {name: asdict(reach) for name, reach in reaches.items()}}
        with self._reaches.open("a") as file:
            file.write(json.dumps(document) + "\n")


def _digest(reaches: Mapping[str, Reach]) -> str:
    """Return a digest of these tests' files and of the files that they reach."""
    paths = {name.partition("::")[0] for name in reaches} | {path for one in reaches.values() for path in one.lines}
    return _digest_of(file for file in (ROOT / path for path in paths) if file.exists())


def _digest_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """Return the documents in the file's lines; the last line may have been cut off when a run was killed."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]
