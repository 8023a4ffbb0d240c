"""Approvals: how many moves wait for an operator."""

from __future__ import annotations

from zkrebalancer.observe import inspection
from zkrebalancer.operations.configure import read_settings
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.obstacles import UNAPPROVED
from zkrebalancer.runtime.zk import BlockingZk


class NothingWaitsError(RebalancerError):
    """No plan of the group waits for an operator."""


def waiting_moves(zk: BlockingZk, group: str) -> int:
    """Return how many partitions the leader's plan would move that waits.

    Raises:
        InvalidNameError, UnknownGroupError: the name is illegal, or the group does not exist.
        NothingWaitsError: none waits, or none that the leader has published.
        NodeContentError, ZooKeeperRefusedError: a node cannot be read.

    """
    read_settings(zk, group)
    for each in inspection.read_published(zk).obstacles:
        if each.group == group and each.kind == UNAPPROVED and each.moves is not None:
            return each.moves
    raise NothingWaitsError(
        f"group {group}: no plan waits for approval; `groups describe {group} --state` shows one, a second after it was"
        " made"
    )
