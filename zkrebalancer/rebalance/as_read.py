"""Whether sticky would leave a small group as it was read, without a description of its members.

After an election, that is so in most groups. To describe members takes most of the time of planning, and memory: it is
done once something has changed. What is checked here is what `assignment.kept` checks in a described problem.
"""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.assignment.kept import MAX_CHECKED, STICKY
from zkrebalancer.protocol.cluster_nodes import UNREAD
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.rebalance.states import MemberState
from zkrebalancer.rebalance.subscriptions import Subscriptions
from zkrebalancer.rebalance.view import GroupView, Member


def topics_of_kept_group(view: GroupView, subscriptions: Subscriptions, max_looks: int) -> Mapping[str, int] | None:
    """Return the topics that the members of a group read if sticky surely changes nothing and no member is special.

    None: that is not so, or not seen here. `max_looks`: at topics.
    """
    if view.settings.strategy not in STICKY or _has_special_members(view):
        return None
    members = view.members.values()
    if not 0 < len(members) <= MAX_CHECKED:
        return None
    first = next(iter(members)).registration
    if first is None or not all(_is_plain(member, first) for member in members):
        return None
    topics = _resolved(first, subscriptions, max_looks)
    if topics is None or not _are_shared(topics, view):
        return None
    return topics


def _has_special_members(view: GroupView) -> bool:
    """Whether some member is drained, static or evicted, or some partition waits for one."""
    drains = view.settings.drained_members or view.settings.drained_hosts
    return bool(drains or view.evicted or view.statics or view.away or view.waiting_for)


def _is_plain(member: Member, first: Registration) -> bool:
    """Whether a member has nothing to answer, is not static, and subscribes as the first one does."""
    known = member.registration
    if known is None or member.state is not MemberState.READY or member.is_refused or known.instance_id is not None:
        return False
    return known is first or (known.pattern == first.pattern and known.subscription == first.subscription)


def _resolved(registration: Registration, subscriptions: Subscriptions, max_looks: int) -> Mapping[str, int] | None:
    try:
        if subscriptions.resolve_some(registration, max_looks) >= max_looks:
            return None
        return subscriptions.resolve(registration)
    except PatternError:
        return None  # logged when its topics are needed


def _are_shared(topics: Mapping[str, int], view: GroupView) -> bool:
    """Whether the members hold every partition of these topics once, and nothing else, none two more than another.

    If all partitions have a holder, and the members do not hold more partitions than there are, each has one holder.
    """
    if len(topics) > MAX_CHECKED:
        return False
    held = [view.held_by(consumer) for consumer in view.members]
    sizes = [*map(len, held)]
    count = 0
    for topic, threads in topics.items():
        known = view.topics.get(topic)
        if threads != 1 or known is None or known is UNREAD or known.count != len(known.partitions):
            return False
        count += known.count
    if count + len(sizes) > MAX_CHECKED or sum(sizes) != count or max(sizes) - min(sizes) > 1:
        return False
    return all(map(view.is_fully_held, topics)) and not any(any(threads.values()) for threads in held)
