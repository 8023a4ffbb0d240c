"""Server-side assignors of KIP-848 groups, by the names that clients know: functions from members to partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zkrebalancer.assignment import decide
from zkrebalancer.assignment.model import Member, Problem

NamedPartition = tuple[str, int]  # topic, number
DEFAULT_ASSIGNOR = "uniform"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member to assign to; `target` is its previous target."""

    topics: frozenset[str]
    target: frozenset[NamedPartition]
    instance_id: str | None = None
    rack_id: str | None = None


# Maps members, and partition counts by topic, to what each member gets. Members without partitions may be missing; no
# partition occurs twice.
Assignor = Callable[[Mapping[str, Subscriber], Mapping[str, int]], Mapping[str, frozenset[NamedPartition]]]


def _assignor(strategy: str) -> Assignor:
    def assign(members: Mapping[str, Subscriber], topics: Mapping[str, int]) -> Mapping[str, frozenset[NamedPartition]]:
        alike = {topics: dict.fromkeys(topics, 1) for topics in {member.topics for member in members.values()}}
        problem = Problem(topics, {name: _member(member, alike[member.topics]) for name, member in members.items()})
        return {
            name: frozenset((topic, number) for topic, numbers in threads.get(0, {}).items() for number in numbers)
            for name, threads in decide(strategy, problem).items()
        }

    return assign


def _member(member: Subscriber, threads: Mapping[str, int]) -> Member:
    return Member(threads, dict.fromkeys(member.target, 0), 0, member.instance_id, member.rack_id)


ASSIGNORS: Mapping[str, Assignor] = {DEFAULT_ASSIGNOR: _assignor("sticky"), "range": _assignor("range")}
