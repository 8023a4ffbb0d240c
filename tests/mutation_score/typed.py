"""Asks mypy about a mutant that no test noticed: `make lint` refuses it, so such a mistake cannot land."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutation_score.catalogue import ROOT, Mutant
from tests.mutation_score.laboratory import REFUSED, Verdict

LIMIT_S = 300.0  # of the first question: mypy has to read everything that the module imports


def refused(mutant: Mutant, cache: Path) -> Verdict | None:
    """Return the verdict if mypy refuses the mutant's module; `cache` is kept for the next question.

    Raises:
        RuntimeError: mypy could not judge.

    """
    begun = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as changed:
        changed.write(mutant.source)
        changed.flush()
        options = ["--no-error-summary", "--cache-dir", str(cache), "--shadow-file", mutant.path, changed.name]
        command = [sys.executable, "-m", "mypy", *options, mutant.path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=LIMIT_S)
    if done.returncode not in {0, 1}:
        raise RuntimeError(f"mypy cannot judge {mutant.place}: {done.stdout}{done.stderr}")
    if done.returncode == 0:
        return None
    return Verdict(REFUSED, done.stdout.splitlines()[0], round(time.monotonic() - begun, 3))
