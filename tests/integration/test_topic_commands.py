"""`zkrebalancer topics create` and `produce` on a real broker, and a local cluster at ports that the user names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.commands import Result, begin_cold, end, run, run_all
from tests.integration.fake_coordinator import Stage
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.ports import HOST, free_ports
from zkrebalancer.operations.kafka_offsets import log_ends


def topics(cluster: LocalCluster, *arguments: object) -> Result:
    return run("zkrebalancer", "topics", *arguments, "--bootstrap", cluster.bootstrap)


def ends(cluster: LocalCluster, topic: str, partitions: int) -> list[int]:
    found = log_ends({"bootstrap.servers": cluster.bootstrap}, [(topic, number) for number in range(partitions)])
    return [end for _begin, end in found.values()]


def test_a_topic_is_created_and_filled(agent_cluster: LocalCluster) -> None:
    created = topics(agent_cluster, "create", "trial", "--partitions", 3)
    assert (created.returncode, created.stdout, created.stderr) == (0, "created trial with 3 partitions\n", "")
    written = json.loads(topics(agent_cluster, "produce", "trial", "--count", 7, "--json").stdout)
    assert written.pop("elapsed_s") >= 0
    assert written == {"topic": "trial", "partitions": 3, "records": 7}
    assert ends(agent_cluster, "trial", 3) == [3, 2, 2]
    again = topics(agent_cluster, "create", "trial")
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (1, "", 1)
    assert "already exists" in again.stderr


def test_lines_become_records(stage: Stage) -> None:
    process = begin_cold("zkrebalancer", "topics", "produce", stage.topic, "--stdin", "--count", 2, "--bootstrap",
                         stage.cluster.bootstrap, stdin=subprocess.PIPE)  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("first\nsecond\nthird is one too many\n")
    process.stdin.flush()
    done = end(process)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"wrote 2 records to {stage.topic} in ")


def test_what_a_user_gets_wrong_is_one_line(agent_cluster: LocalCluster) -> None:
    (closed,) = free_ports(1)
    nowhere = ("--bootstrap", f"{HOST}:{closed}")
    there = ("--bootstrap", agent_cluster.bootstrap)
    wrong: list[tuple[tuple[object, ...], int, str]] = [
        (("produce", "no-such-topic", *there), 1, "no-such-topic does not exist"),
        (("produce", "no/topic", *there), 2, "no/topic"),
        (("create", "t", "--partitions", 0, *there), 2, "--partitions"),
        (("create", "lonely", "--replication-factor", 3, *there), 1, "Replication factor"),
        (("create", "t", *nowhere), 1, f"Kafka at {HOST}:{closed}"),
        (("produce", "t", *nowhere), 1, f"Kafka at {HOST}:{closed}"),
        (("produce", "t", "--rate", 0, *there), 2, "--rate"),
    ]
    results = run_all([("zkrebalancer", "topics", *arguments) for arguments, *_ in wrong])
    for (_arguments, code, text), result in zip(wrong, results, strict=True):
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (code, "", 1), result.stderr
        assert text in result.stderr


def test_servers_listen_where_the_user_says(tmp_path: Path) -> None:
    zookeeper_port, broker_port = free_ports(2)
    with LocalCluster(zookeeper_port=zookeeper_port, broker_port=broker_port) as cluster:
        assert (cluster.zookeeper, cluster.bootstrap) == (f"{HOST}:{zookeeper_port}", f"{HOST}:{broker_port}")
        other = LocalCluster(broker="none", zookeeper_port=broker_port, directory=tmp_path / "other")
        with pytest.raises(LocalClusterError, match=f"port {broker_port} on {HOST}.*in use"):
            other.start()
        assert not (tmp_path / "other").exists()
