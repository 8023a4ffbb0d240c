"""The state of a running cluster as a JSON file in its folder: enough to check and to kill all of its processes."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from zkrebalancer.localcluster import containers
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.processes import ProcessRecord, end, is_alive

FILE_NAME = "cluster.json"


@dataclass(frozen=True, slots=True)
class ServerState:
    """One program of the cluster; `port` is None if it does not listen."""

    name: str
    process: ProcessRecord
    port: int | None
    log: str


@dataclass(frozen=True, slots=True)
class HostState:
    """One Docker host of the cluster; `logs` is the beginning of its logs' paths."""

    name: str
    address: str
    logs: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster's addresses, settings and processes; with hosts, their Docker engine."""

    zookeeper: str
    bootstrap: str
    settings: dict[str, str]
    servers: tuple[ServerState, ...]
    hosts: tuple[HostState, ...] = ()
    engine: str = ""


def write(directory: Path, state: ClusterState) -> None:
    """Replace the state file atomically."""
    partial = directory / f"{FILE_NAME}.partial"
    partial.write_text(json.dumps(asdict(state), indent=1))
    partial.replace(directory / FILE_NAME)


def read(directory: Path) -> ClusterState | None:
    """Return the state in `directory`, None if there is no state file.

    Raises:
        LocalClusterError: the file is invalid.

    """
    file = directory / FILE_NAME
    try:
        document = json.loads(file.read_text())
        servers = tuple(
            ServerState(entry["name"], ProcessRecord(**entry["process"]), entry["port"], entry["log"])
            for entry in document["servers"]
        )
        hosts = tuple(HostState(**entry) for entry in document.get("hosts", ()))
        addresses = document["zookeeper"], document["bootstrap"]
        return ClusterState(*addresses, document["settings"], servers, hosts, document.get("engine", ""))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LocalClusterError(f"{file} is invalid; kill its servers by hand and delete {directory}") from None


def dead_servers(state: ClusterState) -> list[ServerState]:
    """Return the servers that no longer run."""
    return [server for server in state.servers if not is_alive(server.process)]


def end_cluster(directory: Path) -> None:
    """Kill every process in the state file that still runs, remove every host, and remove the folder.

    Has no effect without a state file. Raises LocalClusterError if a process does not end or Docker does not answer.
    """
    state = read(directory)
    if state is None:
        return
    for server in state.servers:
        end(server.process)
    if state.engine:
        containers.Engine(state.engine, str(directory.resolve())).remove_all()
    clear(directory)
    directory.rmdir()


def clear(directory: Path, keep: str = "") -> None:
    """Remove everything from the folder, except for files with the suffix `keep`.

    The state file is removed last: if this process dies before that, the guard still removes the folder.
    """
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != FILE_NAME and not (keep and entry.suffix == keep):
            entry.unlink()
    (directory / FILE_NAME).unlink(missing_ok=True)
