"""The pipeline as processes, on executors and killed: in the end there is what one process gives, undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from pandas.testing import assert_frame_equal
from pyspark.sql import SparkSession

from tests.unit.pipeline.frames import differences
from tests.unit.pipeline.histories import chaos, planned, write_run
from zkrebalancer.pipeline import batch
from zkrebalancer.pipeline.sweep import output
from zkrebalancer.pipeline.sweep.grid import read_grid
from zkrebalancer.pipeline.sweep.job import sweep

DEADLINE_S = 900.0  # other tests may have the machine to themselves
ASK_INTERVAL_S = 0.1
KILLS = 2
SEEDS = range(20)
EXECUTOR = "CoarseGrainedExecutorBackend"
pytestmark = [pytest.mark.long, pytest.mark.timeout(DEADLINE_S)]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline") / "in"
    for seed in SEEDS:
        write_run(folder / f"run-{seed}" / "events", chaos(seed))
    write_run(folder / "planned", planned())
    return folder


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, events: Path) -> Path:
    out = events.parent / "undisturbed"
    batch.run(spark, str(events), str(out))
    return out


def assert_equal(spark: SparkSession, expected: Path, found: Path) -> None:
    names = [path.name for path in expected.iterdir()]
    tables = [{name: spark.read.parquet(str(out / name)) for name in names} for out in (expected, found)]
    assert differences(*tables) == {}


def begin(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "zkrebalancer.cli.main", "pipeline", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)


def wait_for(what: str, is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert process.poll() is None, f"the command ended before {what} came"
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(ASK_INTERVAL_S)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with all that it started, which a session of its own tells."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_watcher_that_is_killed_loses_and_doubles_nothing(
    spark: SparkSession, events: Path, undisturbed: Path, tmp_path: Path
) -> None:
    grown, out = tmp_path / "in", tmp_path / "out"
    for file, lines in _thirds(events, 0):
        (grown / file).parent.mkdir(parents=True, exist_ok=True)
        (grown / file).write_bytes(lines)
    watcher = begin("watch", "--events", grown, "--out", out, "--interval", 1, "--master", "local[2]")
    wait_for("the first batch's events", lambda: any(out.glob("events/batch=0/_SUCCESS")), watcher)
    kill(watcher)  # while it makes tables
    for third in (1, 2):
        for file, lines in _thirds(events, third):
            with (grown / file).open("ab") as appended:
                appended.write(lines)
        if third == 1:
            watcher = begin("watch", "--events", grown, "--out", out, "--interval", 1, "--master", "local[2]")
            wait_for("the first batch's commit", (out / "checkpoint" / "commits" / "0").exists, watcher)
            kill(watcher)  # wherever it is
    last = begin("watch", "--once", "--events", grown, "--out", out, "--master", "local[2]")
    assert last.wait(DEADLINE_S) == 0
    assert_equal(spark, undisturbed, out)


def _thirds(events: Path, third: int) -> Iterator[tuple[Path, bytes]]:
    """Iterate over the files' parts; they are cut anywhere, also in the middle of a line."""
    for path in sorted(events.rglob("*.jsonl")):
        content = path.read_bytes()
        cuts = [len(content) * number // 3 for number in range(4)]
        yield path.relative_to(events), content[cuts[third] : cuts[third + 1]]


def test_executors_that_are_killed_change_nothing(
    spark: SparkSession, events: Path, undisturbed: Path, tmp_path: Path
) -> None:
    job = begin("run", "--events", events, "--out", tmp_path / "out", "--master", "local-cluster[2,1,1024]")
    killed: set[int] = set()

    def kill_some() -> None:
        wait_for("the first table", lambda: any((tmp_path / "out").glob("intervals/_SUCCESS")), job)
        while len(killed) < KILLS and job.poll() is None:
            for executor in _executors(job.pid):
                if executor.pid not in killed and len(killed) < KILLS:
                    executor.kill()
                    killed.add(executor.pid)
            time.sleep(ASK_INTERVAL_S)

    killer = threading.Thread(target=kill_some)
    killer.start()
    _out, errors = job.communicate(timeout=DEADLINE_S)
    killer.join()
    assert job.returncode == 0, errors.decode()[-2_000:]
    assert len(killed) == KILLS
    assert_equal(spark, undisturbed, tmp_path / "out")


def test_a_sweep_on_executors_gives_the_table_of_one_process(spark: SparkSession, tmp_path: Path) -> None:
    axes = ("members=3,8", "partitions=20", "skew=0,1", "strategy=sticky,balanced")
    grid = [text for axis in axes for text in ("--grid", axis)]
    on_executors = ("--master", "local-cluster[2,1,1024]")
    job = begin("sweep", "--out", tmp_path, *grid, "--repeat", 1, "--seed", 5, *on_executors)
    _out, errors = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 0, errors.decode()[-2_000:]
    expected = sweep(spark, read_grid(axes).cells(1), 5).toPandas()
    assert_frame_equal(pd.read_parquet(tmp_path / output.TABLE), expected, check_exact=True)


def _executors(pid: int) -> list[psutil.Process]:
    """Return the executors that the job with this pid has started."""
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    found = []
    for process in descendants:
        try:
            if any(EXECUTOR in argument for argument in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
