"""Approvals: how many moves wait for an operator."""

from __future__ import annotations

from dataclasses import replace

from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import GroupReport
from zkrebalancer.operations.configure import Altered, read_settings
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.obstacles import UNAPPROVED
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk


class NothingWaitsError(RebalancerError):
    """No plan of the group waits for an operator."""


class ChangedMeanwhileError(RebalancerError):
    """The plan that waited was followed by another one."""


def approving(zk: BlockingZk, group: str) -> tuple[int, Altered]:
    """Return how many partitions the plan that waits at the leader would move, and the change that approves it.

    The change raises ChangedMeanwhileError if the group has had another plan since this one was made.

    Raises:
        InvalidNameError, UnknownGroupError: the name is illegal, or the group does not exist.
        NothingWaitsError: none waits, or none that the leader has published.
        NodeContentError, ZooKeeperRefusedError: a node cannot be read.

    """
    read_settings(zk, group)
    found = inspection.read_published(zk, inspection.shard_of_group(zk, group))
    for each in found.obstacles:
        if each.group == group and each.kind == UNAPPROVED and each.moves is not None and each.generation is not None:
            return each.moves, _approved(each.moves, each.generation)
    more = f"; {found.more} more obstacles are not published" if found.more else ""
    more += f"; what the leader publishes cannot be read: {found.problem}" if found.problem is not None else ""
    raise NothingWaitsError(
        f"group {group}: no plan waits for approval; `groups describe {group} --state` shows one, a second after it was"
        f" made{more}"
    )


def _approved(moves: int, generation: int) -> Altered:
    def altered(report: GroupReport) -> GroupSettings:
        if report.generation != generation:
            raise ChangedMeanwhileError(
                f"group {report.name} has had another plan since the one that waited; repeat this in a second"
            )
        return replace(report.settings, approved_moves=moves, approved_generation=generation)

    return altered
