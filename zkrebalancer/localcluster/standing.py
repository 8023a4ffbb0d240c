"""A user's standing cluster, which outlives the command that started it: start, inspect and stop it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zkrebalancer.localcluster import state
from zkrebalancer.localcluster.cluster import BrokerKind, LocalCluster
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.jars import Report
from zkrebalancer.localcluster.locks import locked
from zkrebalancer.localcluster.state import ClusterState
from zkrebalancer.protocol.errors import ConfigurationError

LOCK_DEADLINE_S = 900.0  # the other process may be fetching jars


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a standing cluster."""

    zookeepers: int
    broker: BrokerKind
    chroot: str
    cache: Path | None
    kafka_home: Path | None
    zookeeper_port: int | None = None
    broker_port: int | None = None


def standing_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's standing cluster (XDG convention)."""
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "zkrebalancer" / "cluster"


def begin(directory: Path, options: ClusterOptions, report: Report) -> tuple[ClusterState, bool]:
    """Start the cluster unless it runs already; return its state and whether this call started it.

    Raises:
        ConfigurationError: a cluster with other settings runs.
        LocalClusterError: a cluster runs with dead servers, or the start failed (no process is left running).

    """
    cluster = LocalCluster(
        zookeepers=options.zookeepers,
        broker=options.broker,
        chroot=options.chroot,
        directory=directory,
        cache=options.cache,
        kafka_home=options.kafka_home,
        zookeeper_port=options.zookeeper_port,
        broker_port=options.broker_port,
        report=report,
    )
    with _only_one(directory, report):
        running = look(directory)
        if running is not None:
            _check_same(running, cluster.settings)
            return running, False
        shutil.rmtree(directory, ignore_errors=True)  # left by a failed start or a reboot
        cluster.start()
        cluster.release()
        started = state.read(directory)
        if started is None:
            raise LocalClusterError(f"{directory / state.FILE_NAME} disappeared while the cluster was started")
        return started, True


def look(directory: Path) -> ClusterState | None:
    """Return the state of the cluster, None unless at least one of its servers runs."""
    found = state.read(directory)
    if found is None or len(state.dead_servers(found)) == len(found.servers):
        return None
    return found


def finish(directory: Path, report: Report) -> int:
    """Stop the cluster if there is one, remove its folder, and return how many servers were killed."""
    if not directory.exists():
        return 0
    with _only_one(directory, report):
        running = look(directory)
        count = 0 if running is None else len(running.servers) - len(state.dead_servers(running))
        state.end_cluster(directory)
        shutil.rmtree(directory, ignore_errors=True)  # without a state file: the logs of a failed start
        return count


def _check_same(running: ClusterState, wanted: dict[str, str]) -> None:
    if running.settings != wanted:
        have = " ".join(f"--{name} {value or '/'}" for name, value in running.settings.items())
        raise ConfigurationError(
            f"a cluster with other settings runs already ({have}): stop it with `zkrebalancer cluster down` first"
        )
    dead = state.dead_servers(running)
    if dead:
        names = ", ".join(f"{server.name} (log: {server.log})" for server in dead)
        raise LocalClusterError(f"the cluster runs, but not {names}: stop it with `zkrebalancer cluster down` first")


@contextmanager
def _only_one(directory: Path, report: Report) -> Iterator[None]:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.with_suffix(".lock"), LOCK_DEADLINE_S, report):
            yield
    except OSError as error:
        raise LocalClusterError(f"the cluster's folder {directory} cannot be used: {error}") from None
