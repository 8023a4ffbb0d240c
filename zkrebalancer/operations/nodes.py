"""Shared functions for nodes: list children, create missing ones, read several without the invalid, find members."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from zkrebalancer.protocol import paths, shards
from zkrebalancer.protocol.calls import ABSENT, Children, Content, Create, Get, ListChildren, Multi, Refusal
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.runtime.zk import BlockingZk

Decoded = TypeVar("Decoded")


def exists(zk: BlockingZk, path: str) -> bool:
    """Whether there is such a node; raises ZooKeeperRefusedError."""
    return isinstance(zk.perform(Get(path), ABSENT), Content)


def names_below(zk: BlockingZk, path: str) -> tuple[str, ...]:
    """Return the names of a node's children, sorted; empty if the node does not exist; raises ZooKeeperRefusedError."""
    listed = zk.perform(ListChildren(path), ABSENT)
    return listed.names if isinstance(listed, Children) else ()


def members_of_region(zk: BlockingZk, group: str) -> tuple[str, ...]:
    """Return the live members of the group's consistent region, sorted; those of a `ForcedRegion` are no consumers.

    A node without a session is of a copied tree, and nobody's. Raises ZooKeeperRefusedError.
    """
    names = names_below(zk, paths.region(group, "members"))
    nodes = zk.perform_all([Get(paths.region(group, "members", name)) for name in names], ABSENT)
    found = zip(names, nodes, strict=True)
    return tuple(name for name, node in found if isinstance(node, Content) and node.stat.ephemeral_owner)


def count_shards(zk: BlockingZk) -> int:
    """Return the number of shards of groups; raises NodeContentError, ZooKeeperRefusedError."""
    node = zk.perform(Get(paths.SHARDS), ABSENT)
    return shards.decode_number(node.content).shards if isinstance(node, Content) else 1


def create_missing(zk: BlockingZk, *nodes: str) -> None:
    """Create nodes that do not exist, in this order; raises ZooKeeperRefusedError.

    Existing ones are only read: without the right at the parent, ZooKeeper would refuse to create even those.
    """
    for path in nodes:
        if not exists(zk, path):
            zk.perform(Multi((Create(path),)), {Refusal.NODE_EXISTS})


def read_each(zk: BlockingZk, nodes: Mapping[str, str], decode: Callable[[Content], Decoded]) -> dict[str, Decoded]:
    """Return name -> decoded content of the nodes (name -> path), without missing and invalid ones.

    `decode` raises NodeContentError for invalid content.

    Raises:
        ZooKeeperRefusedError: one of them may not be read.

    """
    found: dict[str, Decoded] = {}
    contents = zk.perform_all([Get(path) for path in nodes.values()], ABSENT)
    for name, node in zip(nodes, contents, strict=True):
        if isinstance(node, Content):
            with suppress(NodeContentError):
                found[name] = decode(node)
    return found
