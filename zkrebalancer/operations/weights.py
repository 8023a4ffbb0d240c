"""Writes a group's weights, which its coordinator reads with the lag."""

from __future__ import annotations

from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Content, Create, Done, Get, Multi, SetContent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk


class WeightsNotWrittenError(RebalancerError):
    """Somebody else wrote them at the same moment."""

    retriable = True


def require_group(zk: BlockingZk, group: str) -> None:
    """Raise InvalidNameError or UnknownGroupError: the name is none, or there is no such group."""
    if not isinstance(zk.perform(Get(paths.group(paths.validate_name("group", group)))), Content):
        raise UnknownGroupError(f"there is no group {group}; `groups list` shows those that are")


def write_weights(zk: BlockingZk, group: str, content: bytes) -> None:
    """Write `content` as the group's weights, in the place of what was there.

    Raises:
        InvalidNameError, UnknownGroupError: the name is none, or there is no such group.
        WeightsNotWrittenError: somebody else wrote at the same moment.

    """
    require_group(zk, group)
    path = paths.weights(group)
    node = zk.perform(Get(path))
    write = SetContent(path, content, node.stat.version) if isinstance(node, Content) else Create(path, content)
    if not isinstance(zk.perform(Multi((write,))), Done):
        raise WeightsNotWrittenError(f"group {group}: its weights were changed at this moment; try again")
