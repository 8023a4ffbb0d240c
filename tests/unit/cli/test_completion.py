"""Shell completion: what a Tab offers, in a shell that was set up as the documents say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zkrebalancer.cli.main import COMMANDS

PROGRAMS = Path(sys.executable).parent
LIST_MODULES = """
import sys
sys.argv = ["zkrebalancer"]
from zkrebalancer.cli.main import main
try:
    main()
except SystemExit:
    print(*(name for name in sys.modules if name.startswith("zkrebalancer.cli.")), file=sys.stderr)
"""


def complete(program: str, words: str) -> list[str]:
    """Return what bash would be offered after these words, the last of which is incomplete."""
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    environment = {**os.environ, variable: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([PROGRAMS / program], env=environment, capture_output=True, text=True, check=True, timeout=60)
    return [line.removeprefix("plain,") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("program", "words", "offered"),
    [
        ("zkrebalancer", "zkrebalancer ", list(COMMANDS)),
        ("zkrebalancer", "zkrebalancer gr", ["group-coordinator", "groups"]),
        ("zkrebalancer", "zkrebalancer groups de", ["delete", "describe"]),
        ("zkrebalancer", "zkrebalancer cluster up --broker kafka-", ["kafka-3.9", "kafka-4"]),
        ("zkrebalancer", "zkrebalancer topics produce --c", ["--count"]),
        ("consumer-agent", "consumer-agent run --ex", ["--exec"]),
    ],
)
def test_a_tab_completes(program: str, words: str, offered: list[str]) -> None:
    assert complete(program, words) == offered


def test_completing_a_command_imports_none() -> None:
    environment = {
        **os.environ,
        "_ZKREBALANCER_COMPLETE": "bash_complete",
        "COMP_WORDS": "zkrebalancer ",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.split() == ["zkrebalancer.cli.main"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    environment = {**os.environ, "_ZKREBALANCER_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [PROGRAMS / "zkrebalancer"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert "_ZKREBALANCER_COMPLETE=" in done.stdout
