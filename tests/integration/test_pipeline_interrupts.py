"""Ctrl-C at any moment in commands that use Spark: one line, and no process or file is left."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import light_spark
from tests.support.command import WatchedCommand, watched
from tests.unit.pipeline.histories import planned, write_run

DEADLINE_S = 300.0
ASK_INTERVAL_S = 0.1  # each time, all processes of the machine are listed
JVM = "org.apache.spark.deploy.SparkSubmit"
OF_THE_JVM = "WARNING: Using incubator modules: jdk.incubator.vector"  # printed whenever Spark starts


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[WatchedCommand]:
    command = [sys.executable, "-m", "zkrebalancer.cli.main", "pipeline"]
    with watched(command, tmp_path, DEADLINE_S, light_spark.submit()) as pipeline:
        yield pipeline


def starts_spark(process: psutil.Process, _out: Path) -> bool:
    """Whether PySpark has started the script that determines the JVM's command line."""
    return bool(process.children())


def has_a_jvm(process: psutil.Process, _out: Path) -> bool:
    """Whether Spark's JVM runs but is not connected to PySpark yet."""
    return bool(having(JVM, process.children()))


def computes(process: psutil.Process, _out: Path) -> bool:
    """Whether executors run Python."""
    return bool(having("zkrebalancer.pipeline.python_daemon", process.children(recursive=True)))


def stores_events(_process: psutil.Process, out: Path) -> bool:
    """Whether the events of the first micro-batch are being stored; its tables follow at once."""
    return any(out.glob("store/events/*/_temporary"))


def having(argument: str, processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if argument in process.cmdline():
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("command", "is_time", "number"),
    [
        (("weights", "--events"), starts_spark, signal.SIGINT),
        (("run", "--events"), has_a_jvm, signal.SIGTERM),
        pytest.param(("sweep", "--repeat", "50"), computes, signal.SIGINT, marks=pytest.mark.long),
        (("watch", "--interval", "1", "--events"), stores_events, signal.SIGINT),
    ],
)
def test_an_interrupt_is_one_line_and_leaves_nothing(
    pipeline: WatchedCommand,
    tmp_path: Path,
    command: tuple[str, ...],
    is_time: Callable[[psutil.Process, Path], bool],
    number: signal.Signals,
) -> None:
    write_run(tmp_path / "in", planned())
    events = [str(tmp_path / "in")] if "--events" in command else []
    begun = pipeline.begin(*command, *events, "--out", str(tmp_path / "out"), "--master", "local[2]")
    wait_for(is_time, begun, tmp_path / "out", pipeline)
    begun.send_signal(number)
    begun.send_signal(number)  # an impatient user
    output, _ = begun.communicate(timeout=DEADLINE_S)
    assert (begun.returncode, output) == (130, "")
    assert [line for line in pipeline.lines() if line not in {"", OF_THE_JVM}] == ["Error: interrupted"]
    assert pipeline.left() == []


def test_a_jvm_that_dies_is_told(pipeline: WatchedCommand, tmp_path: Path) -> None:
    command = pipeline.begin("sweep", "--repeat", "50", "--out", str(tmp_path / "out"), "--master", "local[2]")
    wait_for(computes, command, tmp_path / "out", pipeline)
    (jvm,) = having(JVM, psutil.Process(command.pid).children())
    jvm.kill()  # as the kernel does when there is no memory
    output, _ = command.communicate(timeout=DEADLINE_S)
    assert (command.returncode, output) == (1, "")
    assert pipeline.lines()[-1].startswith("Error: Spark's JVM ended unexpectedly"), pipeline.told()
    assert pipeline.left() == []


def wait_for(
    is_time: Callable[[psutil.Process, Path], bool], running: subprocess.Popen[str], out: Path, told: WatchedCommand
) -> None:
    deadline = time.monotonic() + DEADLINE_S
    process = psutil.Process(running.pid)
    while not is_time(process, out):
        assert running.poll() is None, told.told()
        assert time.monotonic() < deadline, told.told()
        time.sleep(ASK_INTERVAL_S)
