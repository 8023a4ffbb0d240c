"""Writes a group's weights."""

from __future__ import annotations

from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations.nodes import exists
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, CHANGED, Content, Create, Done, Get, Multi, SetContent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk


class WeightsNotWrittenError(RebalancerError):
    """The weights changed while they were being replaced; nothing was written."""

    retriable = True


def require_group(zk: BlockingZk, group: str) -> None:
    """Check that a group exists.

    Raises:
        InvalidNameError, UnknownGroupError: the name is illegal, or there is no such group.
        ZooKeeperRefusedError: it may not be read.

    """
    if not exists(zk, paths.group(paths.validate_name("group", group))):
        raise UnknownGroupError(f"there is no group {group}; `groups list` shows all groups")


def write_weights(zk: BlockingZk, group: str, content: bytes) -> None:
    """Replace the group's weights by `content`.

    Raises:
        InvalidNameError, UnknownGroupError: the name is illegal, or there is no such group.
        WeightsNotWrittenError: another program changed them at the same moment.
        ZooKeeperRefusedError: they may not be read or written.

    """
    require_group(zk, group)
    path = paths.weights(group)
    node = zk.perform(Get(path), ABSENT)
    write = SetContent(path, content, node.stat.version) if isinstance(node, Content) else Create(path, content)
    if not isinstance(zk.perform(Multi((write,)), CHANGED), Done):
        raise WeightsNotWrittenError(f"group {group}: its weights have just changed; try again")
