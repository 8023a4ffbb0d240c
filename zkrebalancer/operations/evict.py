"""Evicts a consumer: removes its registration, upon which the leader ends its membership.

Every leader does so for a missing registration, also an older one, or one that begins to lead later. It waits for the
consumer's lease before others get the partitions.
"""

from __future__ import annotations

from zkrebalancer.observe import inspection
from zkrebalancer.observe.inspection import MemberReport
from zkrebalancer.operations import audit
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import CHANGED, Check, Delete, Multi, Refused
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
        some = ", ".join([*sorted(members)[:MAX_NAMES_SHOWN], *(["…"] if len(members) > MAX_NAMES_SHOWN else [])])
        raise NoSuchConsumerError(f"group {group} has no consumer {consumer:.80}; it has {some or 'none'}")
    return members[consumer]


def evict(zk: BlockingZk, group: str, consumer: str) -> None:
    """Remove the registration of a consumer that `read_consumer` has found.

    Raises:
        NotEvictableError: it has no registration or no ownership record any more.
        ZooKeeperRefusedError: its registration may not be removed.

    """
    # Without both nodes, its session would count as over, and its lease would not be waited for.
    both = Multi((Check(paths.owners(group, consumer)), Delete(paths.ids(group, consumer))))
    if isinstance(zk.perform(both, CHANGED), Refused):
        raise NotEvictableError(f"group {group}: {consumer} has left, or its membership is ending already")
    audit.record(f"evicted {consumer} from group {group}")
