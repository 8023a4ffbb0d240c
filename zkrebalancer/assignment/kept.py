"""Whether sticky would leave a small group as it is, without columns: after a failover, that is so in most groups.

The fixed cost of numpy's calls, some 140 µs, is more than such a group is worth.
"""

from __future__ import annotations

from collections.abc import Collection

from zkrebalancer.assignment.model import Member, Problem

STICKY = frozenset({"sticky", "cooperative_sticky"})  # the strategies that leave as it is what sticky leaves
MAX_CHECKED = 500  # members and partitions: this takes a fifth of a millisecond; the columns of more are worth it


def keeps_all(problem: Problem) -> bool:
    """Whether sticky surely changes nothing; False if that is not so, or is not seen here.

    It changes nothing if all members read the same topics with one thread each, hold every partition of them once, and
    no member holds two partitions more than another one.
    """
    members = problem.members.values()
    if not members:
        return True
    count = sum(problem.topics.values())
    sizes = [len(member.owned) for member in members]
    if count + len(sizes) > MAX_CHECKED or sum(sizes) != count or max(sizes) - min(sizes) > 1:
        return False
    return _read_the_same(members, problem.topics.keys()) and _hold_each_once(members, problem, count)


def _read_the_same(members: Collection[Member], topics: Collection[str]) -> bool:
    """Whether each member reads all these topics, and each the same ones, with one thread."""
    first = next(iter(members)).threads
    if any(member.threads is not first and member.threads != first for member in members):
        return False
    return all(topic in first for topic in topics) and all(count == 1 for count in first.values())


def _hold_each_once(members: Collection[Member], problem: Problem, count: int) -> bool:
    """Whether the members, which hold so many partitions, hold each existing one, in thread 0."""
    held = set().union(*(member.owned for member in members))
    if len(held) != count or any(any(member.owned.values()) for member in members):
        return False
    return all(0 <= number < problem.topics.get(topic, 0) for topic, number in held)
