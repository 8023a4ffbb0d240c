"""Every benchmark in the docs and the Makefile runs to its end at its smallest size."""

from __future__ import annotations

import gc
import json
import runpy
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.benchmarks.pipeline import measuring, timeline
from tests.support import light_spark
from tests.support.pipeline_run import Command
from zkrebalancer.localcluster import cluster as localcluster
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.pipeline import session

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run `python -m tests.benchmarks.MODULE ARGUMENTS…` in this process; return what it prints."""
    interval = sys.getswitchinterval()

    def run_module(module: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [module, *map(str, arguments)])
        runpy.run_module(f"tests.benchmarks.{module}", run_name="__main__", alter_sys=False)
        return capsys.readouterr().out

    yield run_module
    gc.enable()  # `hub` sets both as the coordinator's process does
    sys.setswitchinterval(interval)


@pytest.fixture
def run_on_servers(run: Run, monkeypatch: pytest.MonkeyPatch, shared_cluster: LocalCluster) -> Run:
    """Do the same for a benchmark that starts servers: it gets those that run already."""

    @contextmanager
    def shared(**_settings: object) -> Iterator[LocalCluster]:
        yield shared_cluster

    monkeypatch.setattr(localcluster, "LocalCluster", shared)
    return run


def rows(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_rebalance(run_on_servers: Run) -> None:
    (result,) = json.loads(
        run_on_servers("rebalance", "--sizes", 2, "--protocols", "central-incremental", "--repeat", 1)
    )
    assert (result["protocol"], result["members"], result["partitions"]) == ("central-incremental", 2, 24)
    assert min(result[change]["settled_ms"] for change in ("join", "leave")) > 0
    assert set(result["phases_ms"][0]) >= {"noticed", "planned", "first stop sent", "last start acked"}


def test_election(run_on_servers: Run) -> None:
    reader, coordinator = run_on_servers("election", "--groups", 2, "--members", 1, "--rounds", 1).splitlines()
    assert "reader: " in reader
    assert "coordinator" in coordinator


def test_floor(run_on_servers: Run) -> None:
    assert run_on_servers("floor", "--sizes", 2).startswith("2 clients: a round takes ")


def test_floor_join(run_on_servers: Run) -> None:
    assert run_on_servers("floor_join", "--members", 1).startswith("1 members give up a partition each: ")


def test_floor_group(run_on_servers: Run) -> None:
    lines = run_on_servers("floor_group", "--members", 1, "--rounds", 1, "--rest-s", 0).splitlines()
    assert lines[0].startswith("settled after ")
    assert lines[-1] == "1 starts of the newcomer"


def test_swarm(run_on_servers: Run) -> None:
    """Without an election or a death, which `test_swarm.py` has."""
    size = ("--groups", 2, "--members", 1, "--partitions", 2, "--players", 1, "--coordinators", 1)
    found = json.loads(run_on_servers("swarm", *size, "--joins", 1, "--rest", 0.1, "--renewals", 0.1))
    assert (found["full"]["zk_watch_count"] > 0, found["commands of the restart"]) == (True, 2)
    assert found["renewals per second"] > 0


def test_agent(run_on_servers: Run) -> None:
    kinds = ("raw consume(500), tuned", "agent, values")
    size = ("--partitions", 2, "--sizes", 100, "--megabytes", 1, "--repeat", 1)
    raw, agent = rows(run_on_servers("agent", *size, "--kinds", *kinds))
    assert (raw[2], raw[5], agent[2]) == (kinds[0], "-", kinds[1])
    assert float(agent[5]) > 0


def test_idle_agents(run_on_servers: Run) -> None:
    found = rows(run_on_servers("agent.idle", "--processes", 1, "--agents", 1, "--seconds", 0.5))
    assert [row[:2] for row in found] == [["1 x 1", "agent"], ["1 x 1", "floor"], ["1 x 1", "raw"]]


def test_commits(run_on_servers: Run) -> None:
    results = json.loads(run_on_servers("commits", "--partitions", 3, "--rounds", 2))
    storages = [result["storage"] for result in results]
    assert storages == ["zookeeper", "kafka", "dual", "zookeeper, one call per partition", "confluent-kafka"]


def test_restarts(run_on_servers: Run) -> None:
    size = ("--members", 2, "--partitions", 4, "--kills", 1, "--session-timeout-ms", 2_000)
    in_good_order, killed = json.loads(run_on_servers("restarts", *size))["runs"]
    assert (in_good_order["restarts"], killed["restarts"]) == (2, 1)
    assert in_good_order["moved_partitions"] == in_good_order["stops_of_others"] == 0


def test_region_rounds(run_on_servers: Run) -> None:
    result = json.loads(run_on_servers("region_rounds", "--members", 2, "--partitions", 3, "--checkpoints", 1))
    assert (result["members"], result["partitions"], result["checkpoints"]) == (2, 6, 1)
    assert 0 < result["median_ms"] <= result["longest_ms"]


def test_region_crash(run_on_servers: Run) -> None:
    size = ("--way", "partition", "--repeat", 1, "--session-timeout-ms", 2_000, "--quiet-s", 1)
    result = json.loads(run_on_servers("region_crash", *size))
    assert (result["way"], result["crashes"]) == ("partition", 1)


def test_suspended(run_on_servers: Run) -> None:
    size = ("--gone-s", 0.5, "--cut-off-s", 0.5, "--session-timeout-ms", 4_000, "--records-per-s", 60, "--rest-s", 1)
    results = json.loads(run_on_servers("suspended", *size))
    for fault in ("zookeeper is down", "one consumer is cut off"):
        assert [each["policy"] for each in results[fault]] == ["pause", "continue"]
        assert min(each["longest_wait_s"] for each in results[fault]) > 0  # a busy machine may deliver none meanwhile


def test_gateway(run_on_servers: Run) -> None:
    found = json.loads(run_on_servers("gateway", "--quick"))
    assert min(found["fetch"][f"{way}_mb_per_s"] for way in ("direct", "gateway")) > 0
    assert (found["heartbeats"]["count"], found["joins"]["count"]) == (1_000, 20)
    assert (found["small_fetches"]["count"], found["connections"]["count"]) == (20, 20)


def test_gateway_joins(run_on_servers: Run) -> None:
    size = ("--way", "client", "--settings", "tuned", "--members", 2, "--joins", 1, "--partitions", 4)
    (found,) = json.loads(run_on_servers("gateway_joins", *size)).values()
    assert (found["members"], found["heartbeat_interval_ms"]) == (2, 500)
    assert min(found["at_once_ms"], *found["one_joins_ms"]) > 0


def test_gateway_classic(run_on_servers: Run) -> None:
    size = ("--members", 2, "--joins", 1, "--partitions", 4, "--heartbeat-ms", 200, "--busy-s", 0.1)
    found = json.loads(run_on_servers("gateway_classic", "--way", "client", "--strategy", "range", *size))
    (joined,) = found["client"]["range"]["joins"]
    assert joined["settled_ms"] > 0
    assert joined["stay"] == joined["called"] == 2  # all, as at Kafka's brokers


def test_assign(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "picture.svg"
    for module in ("timing", "costs"):
        monkeypatch.setattr(f"tests.benchmarks.assign.{module}.REPETITIONS", 1)
    told = run("assign", "--members", 10, "--topics", 20, "--warm-up-ms", 1, "--picture", picture)
    assert "- against uniform: " in told
    assert picture.exists()


def test_balanced(run: Run) -> None:
    told = run("balanced", "--quick")
    assert "20 random groups" in told
    assert "| Zipf | balanced |" in told
    assert "| 10 | 100 | equal |" in told


def test_hub(run: Run) -> None:
    document = json.loads(run("hub", "--quick", "--json"))
    assert {row["members"] for row in document["changes"]} == {20}
    assert document["readings"][0][:2] == [10, 50]


def test_hub_with_many_groups(run: Run) -> None:
    phases = json.loads(run("hub", "--groups", 30, "--topics", 5, "--json"))
    assert [phase["name"] for phase in phases][:5] == [
        "start",
        "a topic is created",
        "a group is created",
        "reconnect",
        "failover",
    ]
    assert all(phase["steps"] > 0 for phase in phases)
    assert phases[0]["bytes_per_group"] > 1_000


def test_listing(run: Run) -> None:
    told = run("listing", "--rounds", 1, "--quick")
    assert "| 20 | 10 | " in told


def test_fairness(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    assert len(rows(run("fairness", picture, "--seconds", 2))) == 12
    assert picture.exists()


@pytest.fixture
def run_on_spark(run_on_servers: Run, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Run:
    """Do the same for a benchmark that starts Spark: it gets the session that runs already."""

    @contextmanager
    def shared(_master: str, _memory: str, _settings: Mapping[str, str]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)
    return run_on_servers


def test_spark_source(run_on_spark: Run) -> None:
    document = json.loads(run_on_spark("spark_source", "--own-only", "--records", 200, "--batches", 1, "--json"))
    assert list(document["seconds"]) == ["consumer_group"]
    assert len(document["seconds"]["consumer_group"]) == 2  # in both orders


@contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Let a session that runs write the log into a folder that one with `timeline.settings` writes."""
    scala, classes = spark.sparkContext._jsc.sc(), spark.sparkContext._jvm
    assert classes is not None
    conf, nothing = scala.getConf(), classes.scala.Option.empty()
    for setting in timeline.settings(folder)[1::2]:
        conf.set(*setting.split("=", 1))
    uri = classes.java.net.URI(folder.as_uri())
    log = classes.org.apache.spark.scheduler.EventLoggingListener(scala.applicationId(), nothing, uri, conf)
    began = (scala.appName(), nothing, int(time.time() * 1_000), "", nothing, nothing, nothing)
    log.start()
    log.onApplicationStart(classes.org.apache.spark.scheduler.SparkListenerApplicationStart(*began))
    scala.addSparkListener(log)
    try:
        yield
    finally:
        scala.listenerBus().waitUntilEmpty()
        scala.removeSparkListener(log)
        log.stop()


def test_pipeline(
    spark: SparkSession, run: Run, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the Spark session that runs already: to start another one costs more than all else.

    Its log of the run is what `--timeline` reads.
    """
    as_process = measuring.measured

    def measured(line: list[str]) -> tuple[float, float, Any]:
        _python, _module, name, *arguments = line
        if name != "zkrebalancer.cli.main":
            return as_process(line)
        with event_log(spark, tmp_path):
            return 1.0, 0.0, command(*arguments)

    def log(line: list[str]) -> None:
        (folder,) = (text.partition("=file://")[2] for text in line if text.startswith("spark.eventLog.dir="))
        for file in tmp_path.iterdir():
            shutil.copy(file, folder)

    monkeypatch.setattr(measuring, "measured", measured)
    assert run("pipeline", 0.002).endswith("| equal |\n")
    monkeypatch.setattr(measuring, "measured", log)
    require_timeline(run("pipeline", "--timeline", 0.002))


def require_timeline(told: str) -> None:
    """Require the steps of a batch one after the other, with all their stages and tasks."""
    steps = {name: list(map(float, figures)) for name, *figures in rows(told)}
    assert next(iter(steps)) == "table blocks"  # threads of the driver read so few events
    assert [*steps][-2:] == ["deliveries", "runs"]
    spans = [figures[3:5] for figures in steps.values()]
    assert spans[0][0] >= 0
    assert all(begin <= end for begin, end in spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    stages, tasks = (sum(int(figures[place]) for figures in steps.values()) for place in (1, 2))
    assert min(stages, tasks) >= len(steps)
    assert told.splitlines()[-1] == f"{stages} stages, {tasks} tasks"


@pytest.mark.long
def test_pipeline_as_a_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in light_spark.submit().items():
        monkeypatch.setenv(name, text)
    assert run("pipeline", 0.002).endswith("| equal |\n")
    require_timeline(run("pipeline", "--timeline", 0.002))


def test_fleet(run: Run, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measured", lambda line: (1.0, 0.0, command(*line[3:])))
    ((groups, days, *_),) = rows(run("fleet", "--groups", 2, "--days", 1))
    assert (groups, days) == ("2", "1")


def test_region(run_on_servers: Run) -> None:
    result = json.loads(run_on_servers("region", "--records", 1_200, "--rounds", 1, "--crashes", 1))
    assert result["throughput"]["ratio"] > 0
    assert result["from_session_end_to_first_result"]["median_ms"] > 0
