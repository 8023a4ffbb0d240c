"""Cost measurement: parsing of the servers' answers, and sums across restarts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import wait_until
from zkrebalancer.experiments import costs
from zkrebalancer.experiments.costs import BrokerCounts, Costs, Sums, broker_counts, zookeeper_counts
from zkrebalancer.observe.events import EventLog

# Answers the first query only, and creates a file at the second.
MUTE = "import sys; input(); print('-', flush=True); input(); open(sys.argv[1], 'w').close(); input()"

MNTR = """zk_version\t3.8.4
zk_packets_sent\t85
zk_packets_received\t82
zk_bytes_received_count\t4209
zk_response_bytes\t3741
"""


def test_own_queries_to_zookeeper_are_not_counted() -> None:
    counts = zookeeper_counts(MNTR, queries=2)
    assert counts == {"requests": 80, "bytes_in": 4_201, "bytes_out": 3_741 + 85 * 4}


def test_broker_counts_are_parsed_by_kind() -> None:
    assert broker_counts("JoinGroup 3 660 Heartbeat 10 1000\n") == {"JoinGroup": (3, 660), "Heartbeat": (10, 1_000)}


def test_a_zookeeper_server_without_a_quorum_has_no_counts() -> None:
    assert zookeeper_counts("This ZooKeeper instance is not currently serving requests\n", 1) is None


def test_an_unavailable_broker_has_no_counts() -> None:
    assert broker_counts("- java.io.IOException: it has just started\n") is None
    assert broker_counts("") is None
    assert broker_counts("JoinGroup 3 660 Heartb") is None


def test_a_silent_broker_does_not_block_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    monkeypatch.setattr(costs, "broker_counts_command", lambda: [sys.executable, "-c", MUTE, str(asked)])
    monkeypatch.setattr(costs, "INTERVAL_S", 0.0)
    cluster: Any = SimpleNamespace(
        zookeeper_servers=[], brokers=[SimpleNamespace(is_running=True, pid=os.getpid(), name="kafka")], mirror=None
    )
    with Costs(EventLog(None, "run"), cluster, dict):
        wait_until(asked.exists, "the broker is asked")


def test_the_topic_mirror_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "broker_counts_command", lambda: ["true"])
    mirror = SimpleNamespace(is_running=True, pid=os.getpid(), name="mirror")
    cluster: Any = SimpleNamespace(zookeeper_servers=[], brokers=[], mirror=mirror)
    log = EventLog(tmp_path, "run")
    with Costs(log, cluster, dict):
        pass
    log.close()
    events = [json.loads(line) for path in tmp_path.iterdir() for line in path.open()]
    sampled = [event for event in events if event["kind"] == "sampled"]
    assert {(event["role"], event["target"]) for event in sampled} == {("mirror", "mirror")}
    assert min(event["rss_bytes"] for event in sampled) > 0
    assert [event["own_us"] for event in events if event["kind"] == "busy"][-1] >= sampled[-1]["cpu_us"]


def test_no_round_runs_over_the_beginning_of_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_measure_if_due`, leave nothing out: costs are measured while members join, at the cost of the joins."""
    now_s, looks = 10.0, list[float]()

    def look_at_clock() -> float:
        looks.append(now_s)
        return now_s

    monkeypatch.setattr(costs, "time", SimpleNamespace(monotonic=look_at_clock))
    monkeypatch.setattr(costs, "INTERVAL_S", 0.05)
    monkeypatch.setattr(costs, "broker_counts_command", lambda: ["true"])
    cluster: Any = SimpleNamespace(zookeeper_servers=[], brokers=[], mirror=None)
    log = EventLog(tmp_path, "run")
    with Costs(log, cluster, dict):
        # The first measurement, and six rounds within an interval of it.
        wait_until(lambda: len(looks) >= 7, "six rounds")
        assert measurements(log, tmp_path) == 1
        now_s += 0.05
        wait_until(lambda: measurements(log, tmp_path) > 1, "the next measurement")
    log.close()


def measurements(log: EventLog, directory: Path) -> int:
    assert log.flush()
    events = [json.loads(line) for path in directory.iterdir() for line in path.open()]
    return sum(event["kind"] == "busy" for event in events)


def test_sums_continue_after_a_restart() -> None:
    sums = Sums()
    assert sums.total("kafka", 17, {"requests": 5, "bytes_in": 50}) == {"requests": 5, "bytes_in": 50}
    assert sums.total("kafka", 17, {"requests": 7, "bytes_in": 70}) == {"requests": 7, "bytes_in": 70}
    assert sums.total("other", 18, {"requests": 1, "bytes_in": 10}) == {"requests": 1, "bytes_in": 10}
    assert sums.total("kafka", 19, {"requests": 0, "bytes_in": 0}) == {"requests": 7, "bytes_in": 70}
    assert sums.total("kafka", 19, {"requests": 2, "bytes_in": 20}) == {"requests": 9, "bytes_in": 90}
    assert sums.of_all("requests") == 10


def test_a_reader_that_is_killed_while_it_asks_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "zkrebalancer.experiments.costs.broker_counts_command", lambda: ["sh", "-c", "read x; echo -; read y"]
    )
    counts = BrokerCounts()
    counts.start()
    counts.read(7)
    for pid in (7, 8):
        Path(f".attach_pid{pid}").touch()
    counts.kill()
    counts.end()
    assert [file.name for file in tmp_path.iterdir()] == [".attach_pid8"], "another program's"
