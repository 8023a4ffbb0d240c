"""Evicts a consumer: removes its registration, upon which the leader ends its membership.

Every leader does that for a missing registration: also one of an older version, or one that begins to lead later. It
waits for the consumer's lease before others get the partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import MemberReport
from zkrebalancer.operations import audit
from zkrebalancer.operations.configure import read_settings
from zkrebalancer.protocol import last_change, paths
from zkrebalancer.protocol.calls import CHANGED, Check, Delete, Multi, Refused, SetContent
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.runtime.zk import BlockingZk

MAX_NAMES_SHOWN = 5


class NoSuchConsumerError(RebalancerError):
    """The group has no such consumer."""


class NotEvictableError(RebalancerError):
    """The consumer has left, or its membership is ending already."""


def read_consumer(zk: BlockingZk, group: str, consumer: str) -> MemberReport:
    """Return one consumer of a group.

    Raises:
        InvalidNameError, UnknownGroupError: the group's name is illegal, or there is no such group.
        NoSuchConsumerError: it has no such consumer; the message names those that it has.
        ZooKeeperRefusedError: the group may not be read.

    """
    members = {member.consumer: member for member in inspection.read_group(zk, group).members}
    if consumer not in members:
        raise NoSuchConsumerError(f"group {group} has no consumer {consumer:.80}; it has {first_names(members)}")
    return members[consumer]


def first_names(names: Iterable[str]) -> str:
    """Return the first of some names in a line, `none` without any."""
    known = sorted(names)
    return ", ".join([*known[:MAX_NAMES_SHOWN], *(["…"] if len(known) > MAX_NAMES_SHOWN else [])]) or "none"


def evict(zk: BlockingZk, group: str, consumer: str) -> None:
    """Remove the registration of a consumer that `read_consumer` has found.

    The group's settings name who did, in the same transaction.

    Raises:
        NotEvictableError: it has no registration or no ownership record any more, or the settings have just changed.
        UnknownGroupError: the group was deleted.
        NodeContentError, ZooKeeperRefusedError: the settings cannot be read, or a node may not be written.

    """
    _settings, node = read_settings(zk, group)
    content = last_change.noted(node.content, audit.change(f"evicted {consumer}"), node.stat.version)
    named = SetContent(paths.group(group), content, node.stat.version)
    # Without both nodes, its session would count as over, and its lease would not be waited for.
    all_three = Multi((Check(paths.owners(group, consumer)), Delete(paths.ids(group, consumer)), named))
    if isinstance(zk.perform(all_three, CHANGED), Refused):
        raise NotEvictableError(
            f"group {group}: {consumer} has left, its membership is ending already, or the settings have just changed"
        )
    audit.record(f"evicted {consumer} from group {group}")
