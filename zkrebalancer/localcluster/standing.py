"""A user's standing cluster, which outlives the command that started it: start, inspect and stop it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zkrebalancer.localcluster import containers, state
from zkrebalancer.localcluster.cached import LOCK_DEADLINE_S
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.jars import Report
from zkrebalancer.localcluster.locks import locked
from zkrebalancer.localcluster.state import ClusterState
from zkrebalancer.protocol.errors import ConfigurationError


def standing_directory() -> Path:
    """Return the folder of this user's standing cluster (XDG convention)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "zkrebalancer" / "cluster"


def begin(directory: Path, cluster: LocalCluster, report: Report) -> tuple[ClusterState, bool]:
    """Start the cluster in its folder unless it runs there already; return its state and whether this call started it.

    Raises:
        ConfigurationError: a cluster with other settings runs.
        LocalClusterError: a cluster runs with dead servers, or the start failed (no process is left running).

    """
    with _only_one(directory, report):
        running = look(directory)
        if running is not None:
            _check_same(directory, running, cluster.settings)
            return running, False
        state.end_cluster(directory)  # left by a reboot
        shutil.rmtree(directory, ignore_errors=True)  # left by a failed start
        cluster.start()
        cluster.release()
        started = state.read(directory)
        if started is None:
            raise LocalClusterError(f"{directory / state.FILE_NAME} disappeared while the cluster was started")
        return started, True


def look(directory: Path) -> ClusterState | None:
    """Return the state of the cluster, None unless at least one of its servers or hosts runs."""
    found = state.read(directory)
    return found if found is not None and _running_count(directory, found) else None


def host_states(directory: Path, cluster: ClusterState) -> dict[str, str]:
    """Return the state of each host, as Docker calls it: "running", "paused", "exited", "missing"."""
    if not cluster.hosts:
        return {}
    found = containers.Engine(cluster.engine, str(directory.resolve())).states()
    return {host.name: found.get(host.name, "missing") for host in cluster.hosts}


def _running_count(directory: Path, cluster: ClusterState) -> int:
    hosts = [one for one in host_states(directory, cluster).values() if one in containers.RUNNING]
    return len(cluster.servers) - len(state.dead_servers(cluster)) + len(hosts)


def finish(directory: Path, report: Report) -> int:
    """Stop the cluster if there is one, remove its folder, and return how many servers or hosts were killed."""
    if not directory.exists():
        return 0
    with _only_one(directory, report):
        running = look(directory)
        count = 0 if running is None else _running_count(directory, running)
        state.end_cluster(directory)
        shutil.rmtree(directory, ignore_errors=True)  # without a state file: the logs of a failed start
        return count


def _check_same(directory: Path, running: ClusterState, wanted: dict[str, str]) -> None:
    if running.settings != wanted:
        have = " ".join(f"--{name} {value or '/'}" for name, value in running.settings.items())
        raise ConfigurationError(
            f"a cluster with other settings runs already ({have}): stop it with `zkrebalancer cluster down` first"
        )
    dead = [f"{server.name} (log: {server.log})" for server in state.dead_servers(running)]
    dead += [f"{name} ({found})" for name, found in host_states(directory, running).items() if found != "running"]
    if dead:
        names = ", ".join(dead)
        raise LocalClusterError(f"the cluster runs, but not {names}: stop it with `zkrebalancer cluster down` first")


@contextmanager
def _only_one(directory: Path, report: Report) -> Iterator[None]:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with locked(directory.with_suffix(".lock"), LOCK_DEADLINE_S, report):
            yield
    except OSError as error:
        raise LocalClusterError(f"the cluster's folder {directory} cannot be used: {error}") from None
