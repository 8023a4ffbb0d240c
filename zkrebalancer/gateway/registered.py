"""The consumers of a group as they were read, and what fails in a transaction once another one registers.

A gateway looks who is registered, and writes later; an agent that registers in between may have committed offsets by
then. ZooKeeper checks no list of children in a transaction. But it numbers a sequential node by how many children were
ever created beside it, and every agent creates one in `channel` when it registers. So the transaction creates a
sequential node there, and deletes it under the number that was read: any other number fails. Nobody sees that node,
or watches `channel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from zkrebalancer.protocol import paths, registration
from zkrebalancer.protocol.calls import (
    Check,
    Children,
    Content,
    Create,
    Delete,
    Get,
    ListChildren,
    Operation,
    Reply,
)
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.requests import RequestLimit


class MemberRegisteredError(Exception):
    """A consumer registered, or changed its subscription, since the registrations were read."""


@dataclass(slots=True)
class Registered:
    """The consumers of one group."""

    group: str
    created: int | None  # children that `channel` ever had, read before the consumers; None: there is no such node
    consumers: tuple[str, ...]  # also one that was evicted a moment ago, and may still commit
    limit: RequestLimit  # of a transaction with the guard
    _unchanged: list[Operation] = field(default_factory=list, init=False)

    def guard(self) -> list[Operation]:
        """Return operations that fail if a consumer has registered since, or has changed what `topics` used."""
        channel = paths.channel(self.group)
        if self.created is None:
            return [Create(channel), *self._unchanged]
        probe = f"{channel}/{paths.PROBE}-"
        return [Create(probe, sequence=True), Delete(f"{probe}{self.created:010d}"), *self._unchanged]

    def note_written(self) -> None:
        """Note that a transaction with the guard was performed."""
        self.created = 0 if self.created is None else self.created + 1

    def topics(self, registrations: Iterable[tuple[str, Reply]]) -> set[str] | None:
        """Return the topics that consumers want, by their registrations.

        None if they may want any, or are too many to check in a transaction: half of it is for what is written.
        """
        room = self.limit.max_bytes // 2
        topics: set[str] = set()
        read: set[str] = set()
        for consumer, reply in registrations:
            if isinstance(reply, Content):
                try:
                    found = registration.decode(reply.content)
                except NodeContentError:
                    return None
                if found.pattern != registration.STATIC:
                    return None
                check = Check(paths.ids(self.group, consumer), reply.stat.version)
                room -= self.limit.operation_size(check)
                if room < 0:
                    return None
                read.add(consumer)
                topics.update(found.subscription)
                self._unchanged.append(check)
        return topics if read.issuperset(self.consumers) else None


def read_registered(group: str, ask: Callable[[Get | ListChildren], Reply], limit: RequestLimit) -> Registered:
    """Read who is registered; `ask` reads one node, which may be missing; `limit` is that of a transaction.

    A consumer that was evicted has no registration any more; it may commit as long as it has a record in `owners`.
    """
    channel = ask(Get(paths.channel(group)))  # first, so that a consumer that registers later is noticed
    lists = [ask(ListChildren(path)) for path in (paths.ids(group), paths.owners(group))]
    consumers = {name for listed in lists if isinstance(listed, Children) for name in listed.names}
    created = channel.stat.children_created if isinstance(channel, Content) else None
    return Registered(group, created, tuple(sorted(consumers)), limit)
