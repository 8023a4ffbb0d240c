"""The command line: commands are loaded only when they run; every error is one line and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.support.deadlines import WITHIN_S
from zkrebalancer.cli.main import COMMANDS, run, zkrebalancer
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.protocol.errors import ChrootMissingError, RebalancerError, ZooKeeperUnavailableError

HEAVY = ("confluent_kafka", "gevent", "kazoo", "numpy", "pyspark", "rich")
HELP_THEN_MODULES = """
import sys
sys.argv = ["zkrebalancer", "--help"]
from zkrebalancer.cli.main import main
try:
    main()
except SystemExit as end:
    print(end.code, *sys.modules, file=sys.stderr)
"""
ENDLESS = """
import click, sys
from zkrebalancer.cli.main import run
@click.command()
def endless():
    click.echo("line")
    while True:
        sys.stdout.write("a line that waits in the buffer")
run(endless)
"""

NOWHERE = "127.0.0.1:1"


def ended(command: click.Command, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command like the console script and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["zkrebalancer", *arguments])
    with pytest.raises(SystemExit) as end:
        run(command)
    assert isinstance(end.value.code, int)
    return end.value.code


def raising(error: BaseException) -> click.Command:
    """Make a command that raises an error."""

    @click.command()
    def fail() -> None:
        raise error

    return fail


def test_the_help_lists_every_command_and_loads_none() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", HELP_THEN_MODULES], capture_output=True, text=True, check=True, timeout=60
    )
    code, *modules = shown.stderr.split()
    assert code == "0"
    assert all(f"  {name} " in shown.stdout and text in shown.stdout for name, text in COMMANDS.items())
    assert [module for module in modules if module.startswith(HEAVY)] == []
    assert [module for module in modules if module.startswith("zkrebalancer.cli.")] == ["zkrebalancer.cli.main"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists(name: str) -> None:
    command = zkrebalancer.get_command(click.Context(zkrebalancer), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no-such-command"], "Error: No such command 'no-such-command'."),
        (["group"], "Error: No such command 'group'. Did you mean 'groups'?"),
        (["gateway"], "Error: No such command 'gateway'. Did you mean 'group-coordinator'?"),
        (["--no-such-option"], "Error: No such option"),
        (["coordinator"], "Error: Missing option '--zookeeper'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ZKREBALANCER_ZOOKEEPER", raising=False)
    assert ended(zkrebalancer, *arguments, monkeypatch=monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(complaint)


def test_without_arguments_the_help_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(zkrebalancer, monkeypatch=monkeypatch) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LocalClusterError("the port\nis taken"), 1, "Error: the port is taken\n"),
        (ZooKeeperUnavailableError("no server answers"), 1, "Error: no server answers\n"),
        (ChrootMissingError("no such chroot"), 2, "Error: no such chroot\n"),
        (OSError(28, "No space left on device", "a.csv"), 1, "Error: a.csv: No space left on device\n"),
        (click.UsageError("that way not"), 2, "Error: that way not\n"),
        (KeyboardInterrupt(), 130, "Error: interrupted\n"),
        (click.Abort(), 130, "Error: interrupted\n"),
    ],
)
def test_errors_are_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(raising(error), monkeypatch=monkeypatch) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.lstrip("\n") == line  # click ends the line of "^C" first


def test_a_second_ctrl_c_while_the_first_is_told_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark installs its own if it ran here
    echo = click.echo

    def impatient(*given: object, **how: bool) -> None:
        signal.raise_signal(signal.SIGINT)
        echo(*given, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(click, "echo", impatient)
    try:
        assert ended(raising(KeyboardInterrupt()), monkeypatch=monkeypatch) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.lstrip("\n") == "Error: interrupted\n"


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["zkrebalancer"])
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


def test_a_successful_command_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(click.Command("nothing", callback=lambda: None), monkeypatch=monkeypatch) == 0


def test_a_closed_pipe_prints_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == ""


def test_a_terminal_that_knows_few_characters_shows_the_rest_as_numbers() -> None:
    """In `run`, let it be: help and tables fail with a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "zkrebalancer.cli.main", "shards", "show", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"HOST:PORT[,\u2026][/CHROOT]" in done.stdout


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "command",
    [
        ["topics", "produce", "t", "--bootstrap", NOWHERE, "--rate"],
        ["topics", "mirror", "--bootstrap", NOWHERE, "--zookeeper", NOWHERE, "--interval"],
        ["demo", "--seconds"],
    ],
)
def test_a_number_has_to_be_one(
    command: list[str], number: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `FiniteRange`, compare only with the ends of the range: `nan` is in each."""
    assert ended(zkrebalancer, *command, number, monkeypatch=monkeypatch) == 2
    assert number in capsys.readouterr().err


def test_our_errors_have_exit_codes() -> None:
    assert {error.exit_code for error in RebalancerError.__subclasses__()} <= {1, 2}


def test_a_missing_folder_is_told_before_anything_connects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zkrebalancer.runtime.zk.BlockingZk.__init__", lambda *_: pytest.fail("it starts to connect"))
    assert ended(zkrebalancer, "backup", "none/x", "--zookeeper", NOWHERE, monkeypatch=monkeypatch) in {1, 2}
    assert "none/x: No such file or directory" in capsys.readouterr().err
