"""Rights that a real server withholds for a while."""

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
