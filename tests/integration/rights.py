"""Rights that a real server withholds for a while, and quotas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions

WORLD = Id("world", "anyone")


@contextmanager
def denied(zookeeper: str, path: str, right: int) -> Iterator[None]:
    """Take a right of everybody's at a node away, for a while."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        client.set_acls(path, [ACL(Permissions.ALL & ~right, WORLD)])
        yield
        client.set_acls(path, [ACL(Permissions.ALL, WORLD)])
    finally:
        client.stop()
        client.close()


@contextmanager
def full(zookeeper: str, path: str) -> Iterator[None]:
    """Let ZooKeeper refuse every new node below a path, as over a quota, for a while."""
    servers, _, chroot = zookeeper.partition("/")
    quota = f"/zookeeper/quota/{chroot}{path}"
    client = KazooClient(servers)
    client.start()
    try:
        client.ensure_path(quota)
        client.create(f"{quota}/zookeeper_limits", b"count=-1,bytes=-1,countHardLimit=0,byteHardLimit=-1")
        client.create(f"{quota}/zookeeper_stats", b"count=0,bytes=0")
        yield
    finally:
        client.delete(quota, recursive=True)
        client.stop()
        client.close()
