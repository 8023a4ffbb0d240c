"""Starts more brokers in a local cluster."""

from __future__ import annotations

from pathlib import Path

import psutil

from zkrebalancer.localcluster.cluster import FORMAT_DEADLINE_S, LocalCluster
from zkrebalancer.localcluster.kafka import STORAGE_TOOL_CLASS, BrokerProbe, render_kraft_mode, render_zookeeper_mode
from zkrebalancer.localcluster.ports import HOST
from zkrebalancer.localcluster.server import Program

REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "zookeeper.session.timeout.ms": "2000",
}


def start_broker(cluster: LocalCluster, number: int, port: int) -> Program:
    """Start one more broker with the first one's command and mode."""
    name = f"kafka-{number}"
    config = cluster.directory / f"{name}.properties"
    data = cluster.directory / f"{name}-data"
    *command, first_config = psutil.Process(cluster.broker.pid).cmdline()
    first = dict(line.split("=", 1) for line in Path(first_config).read_text().splitlines())
    if "zookeeper.connect" in first:
        config.write_text(render_zookeeper_mode(number, port, cluster.zookeeper, data, REPLICATED))
    else:
        controller_port = int(first["controller.quorum.voters"].rpartition(":")[2])
        config.write_text(render_kraft_mode(number, port, controller_port, data, REPLICATED))
        meta = Path(first["log.dirs"], "meta.properties").read_text().splitlines()
        (cluster_id,) = (line.partition("=")[2] for line in meta if line.startswith("cluster.id="))
        storage_tool = [
            *command[:-1],
            STORAGE_TOOL_CLASS,
            "format",
            f"--cluster-id={cluster_id}",  # it may begin with "-"
            "--config",
            str(config),
        ]
        tool = cluster.program(f"{name}-format", storage_tool)
        tool.spawn()
        tool.wait_end(FORMAT_DEADLINE_S)
    broker = cluster.program(name, [*command, str(config)])
    broker.spawn()
    broker.wait_until(BrokerProbe(f"{HOST}:{port}"))
    return broker
