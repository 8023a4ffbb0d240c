"""What `make test` prints about its cost: the processor time of all its processes, also of orphans."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BURN_S = 0.3
ORPHAN = f"""
import os, time
if os.fork() == 0:
    time.sleep(0.2)  # until its parent has ended
    while time.process_time() < {BURN_S}: pass
"""


def measure(program: str) -> tuple[int, float]:
    """Return the exit code and the processor time that is printed, in seconds."""
    command = [sys.executable, "-m", "tests.support.processor_time", sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.fullmatch(r"[\d.]+ s, processor time ([\d.]+) s\n", ran.stderr)
    assert found is not None, ran.stderr
    return ran.returncode, float(found[1])


def test_an_orphan_is_counted() -> None:
    code, used_s = measure(ORPHAN)
    assert code == 0
    assert used_s >= BURN_S


@pytest.mark.parametrize(("program", "code"), [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_the_commands(program: str, code: int) -> None:
    assert measure(program)[0] == code


def test_what_is_left_is_named_and_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    begin = f"import subprocess; print(subprocess.Popen(['sleep', '601']).pid, file=open({str(pid_file)!r}, 'w'))"
    measured = f"processor_time.main([{sys.executable!r}, '-c', {begin!r}])"
    hurried = f"from tests.support import processor_time; processor_time.LEFT_DEADLINE_S = 0.2; exit({measured})"
    ran = subprocess.run([sys.executable, "-c", hurried], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "still ran, and was killed: sleep 601" in ran.stderr
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
