"""Faults of Docker hosts that need a command on the host: silent partitions, slow links, a full disk.

The others are methods of `containers.Host`: `kill`, `stop`, `start`, `pause`, `resume`, `disconnect`, `connect`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zkrebalancer.localcluster.containers import Host
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError

FILLER = "filler"
_NO_NETEM = "kind is unknown"  # tc's words


def cut_off(host: Host, *peers: str) -> None:
    """Drop every packet between the host and these addresses: connections stay open, and are silent."""
    for chain, side in (("INPUT", "--source"), ("OUTPUT", "--destination")):
        _run(host, "iptables", "--wait", "--append", chain, side, ",".join(peers), "--jump", "DROP")


def cut_off_from(host: Host, others: Iterable[Host]) -> None:
    """Drop every packet between the host and other hosts."""
    cut_off(host, *(other.address for other in others if other is not host))


def heal(host: Host) -> None:
    """Undo every `cut_off` of the host."""
    for chain in ("INPUT", "OUTPUT"):
        _run(host, "iptables", "--wait", "--flush", chain)


def slow_down(host: Host, delay_ms: int) -> None:
    """Delay every packet that leaves the host.

    Raises:
        MissingToolError: this machine's kernel cannot delay packets.

    """
    code, output = host.run(
        "tc", "qdisc", "replace", "dev", _interface(host), "root", "netem", "delay", f"{delay_ms}ms"
    )
    if _NO_NETEM in output:
        raise MissingToolError("this machine's kernel cannot delay packets: it lacks the module sch_netem")
    _require(host, code, output)


def speed_up(host: Host) -> None:
    """Undo `slow_down`."""
    _run(host, "tc", "qdisc", "del", "dev", _interface(host), "root")


def fill_disk(host: Host, data: Path) -> None:
    """Write to the host's folder of data until no byte is free; meant for a cluster with `disk_mb`."""
    _code, output = host.run("dd", "if=/dev/zero", f"of={data / FILLER}", "bs=64k")
    if "No space left" not in output:
        raise LocalClusterError(f"the disk of {host.name} is not full: {output}")


def free_disk(host: Host, data: Path) -> None:
    """Undo `fill_disk`."""
    _run(host, "rm", str(data / FILLER))


def _interface(host: Host) -> str:
    """Return the name of the interface with the host's address; another one after each `connect`."""
    code, output = host.run("ip", "-oneline", "address", "show", "to", host.address)
    _require(host, code, output)
    return output.split()[1]


def _run(host: Host, *command: str) -> None:
    _require(host, *host.run(*command))


def _require(host: Host, code: int, output: str) -> None:
    if code != 0:
        raise LocalClusterError(f"on {host.name}: {output or f'exit code {code}'}")
