"""Which members a group has at gateways: with `--assign client`, only what gateways store of it shows them."""

from __future__ import annotations

from zkrebalancer.gateway.nodes import node_path
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.stored import StoredGroupError
from zkrebalancer.operations.nodes import exists
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.runtime.zk import BlockingZk

MAX_NAMES_SHOWN = 3


def members_at_gateways(zk: BlockingZk, group: str) -> str | None:
    """Return, for an error, which members a group has at gateways and what to do about them; None if it has none.

    Members stay while no gateway serves them: once one does, their clients go on. Raises ZooKeeperRefusedError.
    """
    path = node_path(group)
    node = zk.perform(Get(path), ABSENT)
    if not isinstance(node, Content):
        return None
    try:
        found = stored.from_bytes(node.content).members
    except StoredGroupError as error:
        return f"group {group} may have members at a gateway: {path}: {error}; stop its clients and delete this node"
    if not found:
        return None
    names = ", ".join(sorted({f"{one.client_id} on {one.client_host}" for one in found})[:MAX_NAMES_SHOWN])
    text = f"group {group} has members at a gateway ({names}); stop them first"
    if exists(zk, f"{paths.BUCKET_OWNERS}/{bucket_of(group)}"):
        return text
    return f"{text}; no gateway serves them now: start one, or delete {path} if none is used any more"
