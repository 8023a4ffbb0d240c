"""What the leader knows of one group: its consumers, what they hold, and who holds each partition.

Partition p is held by consumer C when p is in `owners/C`, in a start-fetcher in `channel/C` (also one whose sending has
an unknown outcome), or in `evicted/C`. The index from partition to holders is kept up to date change by change, so that
an acknowledgement costs what it changes and not what the group has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import KeysView, Mapping
from dataclasses import dataclass, field

from zkrebalancer.protocol.command import Command, StartFetcher, applied
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings

ALL_TOPICS = "*"  # not a legal topic name: stands for every topic of the group


@dataclass(slots=True)
class PendingCommand:
    """A command that its consumer has not acknowledged as far as the leader knows."""

    command: Command
    node: str | None  # its path, None while the sending is under way


@dataclass(slots=True)
class Member:
    """One registered consumer."""

    consumer: str
    registration: Registration | None = None  # None: it could not be read
    owners: OwnersRecord | None = None  # None: it could not be read, so all of `blocked_topics` counts as held
    owners_version: int = -1
    pending: list[PendingCommand] = field(default_factory=list)
    unreadable_commands: bool = False
    failed_tries: int = 0  # starts in a row that were cancelled
    evicting: bool = False
    joined_zxid: int = 0  # when it registered, in the order of ZooKeeper's writes
    registered: bool = True  # False: its `ids` node is gone but its session lives
    pattern_refused: bool = False  # its wildcard does not compile, and that was said once

    def held(self) -> dict[TopicPartition, int]:
        """Return partition -> consumer thread of what is owned or being started."""
        held = dict(self.owners.partitions) if self.owners else {}
        for pending in self.pending:
            if isinstance(pending.command, StartFetcher):
                held.update(pending.command.partitions)
        return held

    def expected(self) -> dict[TopicPartition, int]:
        """Return partition -> consumer thread of what is owned once every pending command is acknowledged."""
        partitions = dict(self.owners.partitions) if self.owners else {}
        for pending in self.pending:
            partitions = applied(partitions, pending.command)
        return partitions

    @property
    def busy(self) -> bool:
        """Whether it has to answer something before it can be sent another command."""
        return bool(self.pending) or self.evicting or self.owners is None or self.unreadable_commands

    def blocked_topics(self) -> tuple[str, ...]:
        """Topics of which everything counts as held, because what the consumer holds cannot be read.

        That is every topic: its subscription may have changed since, and says nothing of what it still holds.
        """
        return () if self.owners is not None and not self.unreadable_commands else (ALL_TOPICS,)


@dataclass(frozen=True, slots=True)
class Released:
    """What a change at one consumer let go of."""

    consumer: str
    partitions: frozenset[TopicPartition]
    unblocked: bool  # a block on whole topics ended: any partition may be free now


@dataclass(frozen=True, slots=True)
class Vacancy:
    """Who had a partition that nobody holds, and since when nobody does."""

    consumer: str
    since_us: int


@dataclass(slots=True)
class GroupView:
    """Everything of a group that decisions rest on."""

    settings: GroupSettings = field(default_factory=GroupSettings)
    settings_version: int = 0
    created_zxid: int = 0  # of the group's node: another one means that the group was deleted and created again
    generation: int = 0
    generation_version: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    tombstones: dict[str, EvictionRecord | None] = field(default_factory=dict)  # None: unreadable, holds everything
    statics: dict[str, tuple[StaticMember, int]] = field(default_factory=dict)  # instance -> (record, version)
    incarnations: dict[str, str] = field(default_factory=dict)  # topic -> which one the stored offsets belong to
    touched: OrderedDict[str, None] = field(default_factory=OrderedDict)  # different since they were looked at
    # By topic: while one dictionary of half a million entries grows, everybody waits for 20 ms.
    _holders: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    _held: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    _blocks: dict[str, tuple[str, ...]] = field(default_factory=dict)  # consumer -> topics it blocks

    def touch(self, consumer: str) -> None:
        """Something about the consumer is different now: the next planning looks at it again."""
        self.touched[consumer] = None

    def refresh(self, consumer: str) -> Released:
        """Bring the index up to date after a change at one consumer; tell what nobody holds any more."""
        self.touch(consumer)
        member = self.members.get(consumer)
        tombstone = self.tombstones.get(consumer)
        held = member.held() if member else {}
        if tombstone is not None:
            held = {**tombstone.partitions, **held}
        blocks = member.blocked_topics() if member else ()
        if consumer in self.tombstones:
            blocks += (ALL_TOPICS,) if tombstone is None else tombstone.topics
        unblocked = bool(self._blocks.pop(consumer, ())) and not blocks
        if blocks:
            self._blocks[consumer] = blocks
        return Released(consumer, frozenset(self._reindex(consumer, held)), unblocked)

    def _reindex(self, consumer: str, held: dict[TopicPartition, int]) -> set[TopicPartition]:
        before = self._held.get(consumer, {})
        for topic, partition in held.keys() - before.keys():
            holders = self._holders.setdefault(topic, {})
            holders[partition] = (*holders.get(partition, ()), consumer)
        released = set()
        for topic, partition in before.keys() - held.keys():
            holders = self._holders[topic]
            rest = tuple(other for other in holders[partition] if other != consumer)
            if rest:
                holders[partition] = rest
                continue
            del holders[partition]
            released.add((topic, partition))
            if not holders:
                del self._holders[topic]
        if held:
            self._held[consumer] = held
        else:
            self._held.pop(consumer, None)
        return released

    def remove(self, consumer: str) -> Released:
        """Forget a consumer whose session is over; tell what nobody holds any more."""
        self.members.pop(consumer, None)
        return self.refresh(consumer)

    def held_by(self, consumer: str) -> Mapping[TopicPartition, int]:
        """Return partition -> consumer thread of what one consumer holds."""
        return self._held.get(consumer, {})

    def holders(self, partition: TopicPartition) -> tuple[str, ...]:
        """Who holds a partition; more than one is a broken promise, none is free."""
        topic, number = partition
        return self._holders[topic].get(number, ()) if topic in self._holders else ()

    def held_topics(self) -> KeysView[str]:
        """Every topic of which somebody holds a partition."""
        return self._holders.keys()

    def is_free_for(self, consumer: str, partition: TopicPartition) -> bool:
        """Whether a start of the partition may be sent to the consumer: nobody else holds it."""
        holders = self.holders(partition)
        if holders and holders != (consumer,):
            return False
        return not self._blocks or not any(
            topic in {ALL_TOPICS, partition[0]}
            for blocker, topics in self._blocks.items()
            if blocker != consumer
            for topic in topics
        )
