"""The pipeline as processes, on executors, killed, and from Kafka: the result equals that of one process."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pandas.testing import assert_frame_equal
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.integration.commands import run
from tests.integration.test_command_lines import require_one_line
from tests.support import light_spark
from tests.support.pipeline_run import PLANNED, Made
from tests.unit.pipeline.frames import Table, differences, stored
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.jars import KAFKA_3, JarSource, class_path
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.pipeline import watch
from zkrebalancer.pipeline.commits import CURRENT
from zkrebalancer.pipeline.continued.records import STRETCHES
from zkrebalancer.pipeline.continued.tables import RunTables
from zkrebalancer.pipeline.sweep import output
from zkrebalancer.pipeline.sweep.grid import read_grid
from zkrebalancer.pipeline.sweep.job import sweep
from zkrebalancer.pipeline.topic import Place

DEADLINE_S = 600.0  # other tests may have the machine to themselves
ASK_INTERVAL_S = 0.1
KILLS = 2
RUNS = ("run-000", "run-001", PLANNED)
TOPIC = "event-lines"
ON_EXECUTORS = ("--master", "local-cluster[2,1,1024]")
EXECUTOR = "CoarseGrainedExecutorBackend"
# As in the guide, but for the way to Kafka's programs.
SEND = "find * -name '*.jsonl' -exec awk '{ print FILENAME \"\\t\" $0 }' {} + | "


@dataclass(frozen=True)
class Small:
    """A few of the runs that all tests share: the folder of their event files, and their tables."""

    events: Path
    tables: dict[str, Table]

    def assert_equal(self, out: Path) -> None:
        """Require the same tables below `out`."""
        assert differences(self.tables, {name: stored(out / name) for name in self.tables}) == {}


@pytest.fixture(scope="module")
def small(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Small:
    events = tmp_path_factory.mktemp("small")
    for name in RUNS:
        shutil.copytree(made.events / name, events / name)
    return Small(events, {name: [row for row in table if row["run"] in RUNS] for name, table in made.tables.items()})


def begin(folder: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a command; `folder` is for temporary files, which killed commands leave there."""
    command = [sys.executable, "-m", "zkrebalancer.cli.main", "pipeline", *map(str, arguments)]
    executors = f"spark.executor.extraJavaOptions=-Djava.io.tmpdir={folder}"
    environment = {**child_environment(), **light_spark.submit("--conf", executors), "TMPDIR": str(folder)}
    return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, env=environment)


def wait_for(what: str, is_so: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert process.poll() is None, f"the command ended before {what} came"
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(ASK_INTERVAL_S)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command with its whole process session."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def topic(agent_cluster: LocalCluster) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": agent_cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(DEADLINE_S)
    yield TOPIC
    admin.delete_topics([TOPIC])[TOPIC].result(DEADLINE_S)


def send(bootstrap: str, topic: str, folder: Path) -> None:
    """Write the lines of the event files below a folder to a topic, as in the guide."""
    java = find_java()
    jars = class_path(KAFKA_3, java, JarSource.of(None, None, print))
    producer = [java, "-cp", jars, "kafka.tools.ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", topic]
    line = SEND + shlex.join([*producer, "--property", "parse.key=true"])
    subprocess.run(["sh", "-c", line], cwd=folder, check=True, timeout=DEADLINE_S)


def send_again(bootstrap: str, topic: str, folder: Path) -> None:
    """Write the same records, without another JVM."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for path in folder.rglob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            producer.produce(topic, line, str(path.relative_to(folder)))
    assert producer.flush(DEADLINE_S) == 0


def test_a_topic_gives_what_the_files_give(
    spark: SparkSession,
    small: Small,
    agent_cluster: LocalCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if a micro-batch fails between its tables and is repeated, and if all lines are sent twice."""
    said: list[str] = []

    def take_all() -> None:
        lines = watch.topic_lines(spark, Place({"bootstrap.servers": agent_cluster.bootstrap}, topic))
        watch.start(spark, lines, tmp_path, None, said.append).awaitTermination()

    send(agent_cluster.bootstrap, topic, small.events)
    with monkeypatch.context() as broken:
        broken.setattr(RunTables, "_merge", lambda _self, name, _parts: 1 // (name != STRETCHES))
        with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
            take_all()
    assert any((tmp_path / "store" / "intervals").iterdir())
    assert not (tmp_path / "intervals").exists()
    take_all()
    small.assert_equal(tmp_path)
    send_again(agent_cluster.bootstrap, topic, small.events)
    take_all()
    assert [line.partition(":")[2] for line in said] == [
        f" {count_lines(small.events)} lines of {len(RUNS)} runs",
        " 0 lines of 0 runs",
    ]


def count_lines(events: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in events.rglob("*.jsonl"))


def test_a_topic_that_cannot_be_read_is_one_line(agent_cluster: LocalCluster, tmp_path: Path) -> None:
    watching = ("zkrebalancer", "pipeline", "watch", "--out", tmp_path, "--bootstrap", agent_cluster.bootstrap)
    require_one_line(run(*watching, "--topic", "no-such"), 1, "there is no topic no-such at")
    require_one_line(run(*watching), 2, "--events, or --bootstrap and --topic")
    require_one_line(run(*watching, "--topic", "t", "--kafka", "no=1"), 2, "--kafka no: no is refused by librdkafka")
    require_one_line(run(*watching, "--topic", "t", "--kafka", "password"), 2, "must be KEY=VALUE")


def test_weights_of_no_group_are_refused_before_anybody_waits_for_spark(
    agent_cluster: LocalCluster, tmp_path: Path
) -> None:
    learning = ("zkrebalancer", "pipeline", "weights", "--events", tmp_path, "--out", tmp_path, "--group", "no-such")
    require_one_line(run(*learning, "--zookeeper", agent_cluster.zookeeper), 1, "there is no group no-such")


@pytest.mark.long
def test_a_watcher_that_is_killed_loses_and_doubles_nothing(spark: SparkSession, small: Small, tmp_path: Path) -> None:
    grown, out = tmp_path / "in", tmp_path / "out"
    arguments = ("watch", "--events", grown, "--out", out, "--master", "local[2]")
    for half in (0, 1):
        append_half(small.events, half, grown)
        watcher = begin(tmp_path, *arguments, "--once")
        if half == 0:
            wait_for("the first batch's intervals", lambda: any(out.glob("store/intervals/*/*/*.parquet")), watcher)
            kill(watcher)  # while it makes tables
    require_success(watcher)
    small.assert_equal(out)


def append_half(events: Path, half: int, grown: Path) -> None:
    """Append the first or the second half of each file, which is cut anywhere, also within lines."""
    for path in sorted(events.rglob("*.jsonl")):
        content, file = path.read_bytes(), grown / path.relative_to(events)
        cut = len(content) // 2
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as appended:
            appended.write(content[cut:] if half else content[:cut])


@pytest.fixture
def no_work_stays() -> Iterator[None]:
    """Remove the files that workers of a `local-cluster` leave beside Spark."""
    work = Path(os.environ["SPARK_HOME"], "work")
    before = set(work.glob("*"))
    yield
    for left in set(work.glob("*")) - before:
        shutil.rmtree(left)
    if work.exists() and not any(work.iterdir()):
        work.rmdir()


@pytest.mark.long
@pytest.mark.usefixtures("no_work_stays")
def test_executors_that_are_killed_change_nothing(spark: SparkSession, small: Small, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = begin(tmp_path, "run", "--events", small.events, "--out", out, *ON_EXECUTORS)
    kill_executors(job, "the first table", lambda: any(out.glob("store/run/*/intervals/*.parquet")))
    require_success(job)
    small.assert_equal(out)


@pytest.fixture
def standalone(spark: SparkSession, tmp_path: Path) -> Iterator[str]:  # it has set SPARK_HOME
    """Start Spark's own cluster manager on this host, with one worker; return the address of its master."""
    (port,), begun = free_ports(1), list[subprocess.Popen[bytes]]()
    master = f"spark://{HOST}:{port}"
    environment = {**child_environment(), "SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_DAEMON_MEMORY": "256m"}

    def begin_daemon(name: str, *arguments: object) -> None:
        program = Path(os.environ["SPARK_HOME"], "bin", "spark-class")
        options = ("--host", HOST, "--webui-port", "0", *map(str, arguments))
        command = [str(program), f"org.apache.spark.deploy.{name}", *options]
        begun.append(subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True, env=environment))

    def is_there() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex((HOST, port)) == 0

    try:
        begin_daemon("master.Master", "--port", port)
        wait_for("the master", is_there, begun[0])
        begin_daemon("worker.Worker", "--cores", 2, "--memory", "1g", master)
        yield master
    finally:
        for process in begun:
            kill(process)


@pytest.mark.long
def test_a_standalone_cluster_makes_the_same_tables(small: Small, standalone: str, tmp_path: Path) -> None:
    job = begin(tmp_path, "run", "--events", small.events, "--out", tmp_path / "out", "--master", standalone)
    require_success(job)
    small.assert_equal(tmp_path / "out")


@pytest.mark.long
@pytest.mark.usefixtures("no_work_stays")
def test_a_refresh_whose_executors_are_killed_appears_as_a_whole(
    spark: SparkSession, small: Small, tmp_path: Path
) -> None:
    """The commit before it stays as it was; of what was begun twice nothing is left."""
    grown, out = tmp_path / "in", tmp_path / "out"
    tasks = "store/events/*/_temporary/*"
    append_half(small.events, 0, grown)
    watch.start(spark, watch.folder_lines(spark, grown), out, None, print).awaitTermination()
    current = out / CURRENT
    first = current.resolve()
    before = {name: stored(first / name) for name in small.tables}
    append_half(small.events, 1, grown)
    job = begin(tmp_path, "watch", "--events", grown, "--out", out, "--once", *ON_EXECUTORS)
    kill_executors(job, "the refresh's events", lambda: any(out.glob(tasks)))
    assert current.resolve() == first  # the kills were in time
    require_success(job)
    second = current.resolve()
    assert sorted(path.name for path in second.parent.iterdir()) == sorted([first.name, second.name])
    assert differences(before, {name: stored(first / name) for name in before}) == {}
    small.assert_equal(out)
    used = {path.resolve() for commit in (first, second) for path in commit.rglob("*") if path.is_symlink()}
    folders = {folder for folder in out.glob("store/*/*") if folder.is_dir()}
    assert folders == {next(parent for parent in [path, *path.parents] if parent in folders) for path in used}


def kill_executors(job: subprocess.Popen[bytes], what: str, is_so: Callable[[], bool]) -> None:
    """Kill KILLS executors of a job one after the other, the first when something is so."""
    wait_for(what, is_so, job)
    killed: set[int] = set()

    def kill_one() -> bool:
        for executor in _executors(job.pid):
            if executor.pid not in killed and len(killed) < KILLS:
                executor.kill()
                killed.add(executor.pid)
        return len(killed) == KILLS

    wait_for("the next executor", kill_one, job)


def require_success(job: subprocess.Popen[bytes]) -> None:
    _out, errors = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 0, errors.decode()[-2_000:]


@pytest.mark.long
@pytest.mark.usefixtures("no_work_stays")
def test_a_sweep_on_executors_gives_the_table_of_one_process(spark: SparkSession, tmp_path: Path) -> None:
    axes = ("members=3,8", "partitions=20", "skew=0,1", "strategy=sticky,balanced")
    grid = [text for axis in axes for text in ("--grid", axis)]
    job = begin(tmp_path, "sweep", "--out", tmp_path, *grid, "--repeat", 1, "--seed", 5, *ON_EXECUTORS)
    require_success(job)
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
