"""Creates a group, and deletes one that has no consumers and no members of a region.

One transaction deletes all nodes of a group, so that it is either whole or gone. A consumer that registers meanwhile
makes the transaction fail, because a node with children cannot be deleted; so does every other change.

Only a group with very many nodes needs more than one transaction. Its offsets are deleted first, then all others but
its folders, while starts are paused, so that no consumer that registers meanwhile starts at some of them. A deletion
that is killed then leaves a group that has lost some of its offsets, and can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zkrebalancer.observe.inspection import UnknownGroupError
from zkrebalancer.operations import audit
from zkrebalancer.operations.gateway_members import members_at_gateways
from zkrebalancer.operations.nodes import create_missing, members_of_region, names_below
from zkrebalancer.operations.starts_pause import starts_paused
from zkrebalancer.protocol import last_change, paths, settings
from zkrebalancer.protocol.calls import (
    ABSENT,
    CHANGED,
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Multi,
    Operation,
    Refusal,
    Refused,
    SetContent,
)
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

MAX_NODES_AT_ONCE = 5_000
NO_VERSION = -1  # of a node that does not exist yet
MAX_NAMES_SHOWN = 3


class GroupExistsError(RebalancerError):
    """There is a group of this name already."""


class GroupInUseError(RebalancerError):
    """The group has consumers, evicted ones whose leases are not over, or members of a region."""


class GroupChangedError(RebalancerError):
    """The group changed while it was being deleted."""

    retriable = True


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """The paths of a group's nodes, children before their parents, and of those with a stored offset."""

    every: Sequence[str]
    offsets: Sequence[str]


def create_group(zk: BlockingZk, group: str, wanted: GroupSettings | None) -> None:
    """Create a group with these settings; None: without any, so that the defaults apply.

    Raises:
        InvalidNameError: the name is not allowed.
        GroupExistsError: there is a group of this name.
        ZooKeeperRefusedError: it may not be created.

    """
    path = paths.group(paths.validate_name("group", group))
    create_missing(zk, paths.CONSUMERS, paths.GROUPS)
    content = b"" if wanted is None else settings.encode(wanted)
    nodes = [Create(path, last_change.noted(content, audit.change("created the group"), NO_VERSION))]
    nodes += [Create(f"{path}/{name}") for name in paths.GROUP_CHILDREN]
    if isinstance(zk.perform(Multi(tuple(nodes)), {Refusal.NODE_EXISTS}), Refused):
        raise GroupExistsError(f"there is a group {group} already; `groups configure` changes its settings")


def read_nodes(zk: BlockingZk, group: str) -> GroupNodes:
    """Return the nodes of a group without consumers.

    Raises:
        InvalidNameError, UnknownGroupError: the name is not allowed, or there is no such group.
        GroupInUseError: it has consumers, or members of a region.
        ZooKeeperRefusedError: it may not be read.

    """
    path = paths.group(paths.validate_name("group", group))
    level = [path]
    every: list[str] = []
    while level:
        every += level
        lists = zk.perform_all([ListChildren(above) for above in level], ABSENT)
        if level == [path] and not isinstance(lists[0], Children):
            raise UnknownGroupError(f"there is no group {group}; `groups list` shows all groups")
        found = zip(level, lists, strict=True)
        level = [f"{above}/{name}" for above, listed in found if isinstance(listed, Children) for name in listed.names]
    refuse_members(zk, group)
    above_offsets = paths.offsets(group) + "/"
    offsets = [node for node in every if node.startswith(above_offsets) and "/" in node.removeprefix(above_offsets)]
    return GroupNodes(every[::-1], offsets)


def refuse_members(zk: BlockingZk, group: str) -> None:
    """Raise GroupInUseError if the group has members, also at gateways or in a region; a dead channel is none."""
    members = sorted({*names_below(zk, paths.ids(group)), *names_below(zk, paths.owners(group))})
    if members:
        raise GroupInUseError(f"group {group} has consumers ({_some(members)}); stop them first")
    evicted = names_below(zk, paths.evicted(group))
    if evicted:
        text = "their leases may not be over; try again once a coordinator has removed them"
        raise GroupInUseError(f"group {group} has evicted consumers ({_some(evicted)}): {text}")
    if in_region := members_of_region(zk, group):
        raise GroupInUseError(f"group {group} has members of a region ({_some(in_region)}); stop them first")
    if at_gateways := members_at_gateways(zk, group):
        raise GroupInUseError(at_gateways)


def delete_group(zk: BlockingZk, group: str, nodes: GroupNodes) -> None:
    """Delete a group with all its nodes, as `read_nodes` has found them.

    Raises:
        GroupInUseError, GroupChangedError, UnknownGroupError: it has got consumers, changed, or was deleted meanwhile.
        OffsetsRefusedError: the same, while the many offsets of a large group were being deleted.
        ZooKeeperRefusedError: it may not be deleted; then nothing is.

    """
    naming = _naming(zk, group)
    deletes = [*(Delete(path) for path in nodes.every), *naming]
    if len(deletes) <= MAX_NODES_AT_ONCE and zk.request_limit.fits(deletes):
        _delete_at_once(zk, group, deletes)
        return
    _delete_below(zk, group, nodes)
    try:
        left = read_nodes(zk, group).every
        _delete_at_once(zk, group, [*(Delete(path) for path in left), *naming])
    except (GroupInUseError, GroupChangedError) as error:
        raise type(error)(f"{error}; its stored offsets are deleted already") from None


def _naming(zk: BlockingZk, group: str) -> list[Operation]:
    """Return the write that names the operator to the leader: in a served group's mark, which outlives the group."""
    node, mark = zk.perform_all([Get(paths.group(group)), Get(paths.served(group))], ABSENT)
    if not isinstance(node, Content) or not isinstance(mark, Content):
        return []
    change = audit.change("deleted the group")
    return [SetContent(paths.served(group), last_change.deletion(change, node.stat.created_zxid))]


def _delete_at_once(zk: BlockingZk, group: str, deletes: Sequence[Operation]) -> None:
    if isinstance(zk.perform(Multi(tuple(deletes)), {*CHANGED, Refusal.NOT_EMPTY}), Refused):
        refuse_members(zk, group)
        raise GroupChangedError(f"group {group} changed meanwhile and is not deleted; try again")


def _delete_below(zk: BlockingZk, group: str, nodes: GroupNodes) -> None:
    """Delete stored offsets, then what else is below the folders of the group, in several transactions."""
    # Without the right to delete the group, this is refused, before any offset is deleted.
    zk.perform(Multi((Delete(paths.group(group)),)), {Refusal.NOT_EMPTY})
    offsets = frozenset(nodes.offsets)
    depth_of_folders = paths.group(group).count("/") + 1
    others = [path for path in nodes.every if path.count("/") > depth_of_folders and path not in offsets]
    # Lives last: a group that goes on without them would count from its generation again, and sinks ignore lower ones.
    others.sort(key=lambda path: path.startswith(paths.lives(group) + "/"))
    # A region's order first: it is made anew, with a reset. With the former one, members would go on with their states,
    # and without offsets.
    order = [path for path in others if path == paths.region(group, "order")]
    rest = (path for path in (*nodes.offsets, *others) if path not in order)
    waiting: list[Operation] = [Delete(path) for path in (*order, *rest)]
    with starts_paused(zk, group, "began to delete the group") as pause:
        while waiting:
            pause.write(zk, waiting)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return ", ".join(names[:MAX_NAMES_SHOWN]) + more
