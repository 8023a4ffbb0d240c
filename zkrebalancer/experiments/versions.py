"""The versions that actually run: of servers, from ZooKeeper's answer and the broker's jar, and of our own code."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import confluent_kafka

from zkrebalancer.localcluster import commands, zookeeper
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.ports import HOST

GIT_DEADLINE_S = 30
_ZOOKEEPER = re.compile(r"^Zookeeper version: ([\w.]+)", re.MULTILINE)
_KAFKA_JAR = re.compile(r"\bkafka_2\.1[23]-([\w.]+)\.jar")


def own_versions() -> dict[str, str]:
    """Return the versions of this project and its clients, in a checkout with its commit ("+": with changes)."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        described = commands.run(command, GIT_DEADLINE_S)
        described.check_returncode()
        commit = described.stdout.strip()
    except (OSError, subprocess.SubprocessError):  # installed from a package, or no git
        commit = ""
    return {
        "zkrebalancer": f"{version('zkrebalancer')} {commit}".strip(),
        "confluent-kafka": str(confluent_kafka.version()),
        "librdkafka": confluent_kafka.libversion()[0],
    }


def read_versions(cluster: LocalCluster) -> dict[str, str]:
    """Return {"zookeeper": version, "kafka": version} of a running cluster.

    Raises:
        LocalClusterError: a version cannot be found.

    """
    answer = zookeeper.ask(HOST, cluster.zookeeper_servers[0].port, "srvr").decode()
    command = Path(f"/proc/{cluster.broker.pid}/cmdline").read_bytes().decode()
    return {"zookeeper": zookeeper_version(answer), "kafka": kafka_version(command)}


def zookeeper_version(answer: str) -> str:
    """Return the version in the answer to `srvr`; raises LocalClusterError if there is none."""
    found = _ZOOKEEPER.search(answer)
    if found is None:
        raise LocalClusterError(f"ZooKeeper's answer to srvr names no version: {answer!r:.80}")
    return found[1]


def kafka_version(command: str) -> str:
    """Return the version of the jar in a broker's command line (NUL between arguments); "…/libs/*" is expanded.

    Raises:
        LocalClusterError: there is no such jar.

    """
    arguments = command.split("\0")
    for entry in arguments[arguments.index("-cp") + 1].split(os.pathsep):
        jars = [path.name for path in Path(entry).parent.iterdir()] if entry.endswith("*") else [entry]
        for jar in jars:
            found = _KAFKA_JAR.search(jar)
            if found is not None:
                return found[1]
    raise LocalClusterError("the broker's class path holds no kafka_2.13-<version>.jar")
