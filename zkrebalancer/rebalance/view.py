"""The leader's view of one group: its members, what they hold, and the holders of each partition.

Partition p is held by consumer C when p is in `owners/C`, in a start-fetcher in `channel/C` (also one whose sending has
an unknown outcome), or in `evicted/C`. The index from partition to holders is updated with each change, so that the
cost of an acknowledgement depends on what it changes, not on the size of the group.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import KeysView, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from zkrebalancer.protocol import ownership, paths, registration
from zkrebalancer.protocol.calls import Content
from zkrebalancer.protocol.cluster_nodes import UNREAD, Topic
from zkrebalancer.protocol.command import INSTANCE_FENCED, Command, StartFetcher, StopFetcher, applied, decode
from zkrebalancer.protocol.errors import CommandError, NodeContentError
from zkrebalancer.protocol.fields import MAX_ABSENT_PARTITIONS, Bound, TopicPartition
from zkrebalancer.protocol.last_change import LastChange
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.blocks import ALL_TOPICS, Blocks
from zkrebalancer.rebalance.marks import OffsetMarks
from zkrebalancer.rebalance.states import MEMBER_TRANSITIONS, InvalidTransitionError, MemberState
from zkrebalancer.rebalance.unclaimed import Unclaimed

RECORD_GONE = "its record of what it owns was removed"  # why a member is evicted
SESSIONLESS = "its registration or its record belongs to no session"
ANY_VERSION = -1  # of a node that may not be read: it is written whatever it says

NONE: frozenset[Any] = frozenset()  # one for all members: every other empty set takes 216 bytes


@dataclass(slots=True)
class PendingCommand:
    """A command that, as far as the leader knows, its consumer has not acknowledged."""

    command: Command
    node: str | None  # its path, None while it is being sent
    sent_at_ms: int = 0  # since the epoch; 0 while it is being sent


@dataclass(slots=True)
class Member:
    """One consumer with a live session: what was read of it, and its state, which follows from that."""

    consumer: str
    registration: Registration | None = None  # None: it could not be read
    owners: OwnersRecord | None = None  # None: it could not be read, so all that was given counts as held
    pending: list[PendingCommand] = field(default_factory=list)
    unreadable_commands: bool = False
    refused: frozenset[str] = NONE  # paths of what ZooKeeper refuses to show: record, channel, commands
    # What it may own: held when it was read, or sent since. None: unknown, so that its record is believed.
    given: Mapping[TopicPartition, int] | None = field(default_factory=dict)
    false_claims: frozenset[TopicPartition] = NONE  # in its record, but never given
    is_record_gone: bool = False  # `owners` is gone although `ids` exists; the field `owners` is the last record
    is_sessionless: bool = False  # a node of it is not ephemeral: from a copied tree, a backup, or written by hand
    failed_tries: int = 0  # starts in a row that were cancelled
    joined_zxid: int = 0  # when it registered, in the order of ZooKeeper's writes
    registered: bool = True  # False: its `ids` node is gone but its session lives
    leaving_with: Mapping[TopicPartition, int] | None = None  # what an eviction record names that is being written
    is_refused: bool = False  # ZooKeeper refuses what it needs: a command, its record, or the removal of a late command
    refused_tries: int = 0  # in a row
    is_eviction_refused: bool = False  # by ZooKeeper, at the last try
    is_registration_refused: bool = False  # it exists, but may not be read
    is_given_hidden: bool = False  # what it was given may not be read: what it claims is believed, it gets nothing more
    read_again_us: int = 0  # before that, a changed registration waits
    recorded_instance: str | None = None  # without a registration: the instance whose record names it
    pattern_refused: bool = False  # its wildcard does not compile, and that was logged once
    state: MemberState = MemberState.READY

    # What was read ---------------------------------------------------------------------------------------------------

    def read_registration(self, reply: Content) -> str | None:
        """Replace the registration; if it cannot be read, keep the former one and return the problem."""
        self.is_registration_refused = False
        self.joined_zxid = reply.stat.created_zxid
        self.is_sessionless = self.is_sessionless or not reply.stat.ephemeral_owner
        try:
            self.registration = registration.decode(reply.content)
        except NodeContentError as error:
            if self.registration is not None:
                return f"consumer {self.consumer}: {error}; its former registration stays in force"
            return f"consumer {self.consumer} gets nothing: {error}"
        return None

    def read_owners(self, reply: Content, bound: Bound | None, end_if_as_given: bytes | None = None) -> str | None:
        """Replace the ownership record; if it cannot be read, return the problem: the member holds all it was given.

        `end_if_as_given`: see `ownership.decode_owners`.
        """
        self.is_sessionless = self.is_sessionless or not reply.stat.ephemeral_owner
        try:
            record = ownership.decode_owners(reply.content, bound, self.given, end_if_as_given)
        except NodeContentError as error:
            self.owners = None
            holds = "anything" if self.given is None else "all that it was given"
            return f"{self.consumer} may hold {holds} until it is evicted: {error}"
        given, owned = self.given, record.partitions
        is_believed = given is None or given is owned
        self.false_claims = NONE if is_believed else frozenset(owned.keys() - (given or {}).keys()) or NONE
        if self.false_claims:
            record = record._replace(partitions={tp: t for tp, t in record.partitions.items() if tp in (given or ())})
        self.owners = record
        return None

    def read_command(self, reply: Content, path: str, bound: Bound) -> str | None:
        """Add a command that could not be read before; if it is invalid, return the problem."""
        try:
            found = PendingCommand(decode(reply.content, bound), path, reply.stat.created_ms)
        except CommandError as error:
            self.unreadable_commands = True
            return f"{path}: {error}; its consumer has to refuse it"
        self.adopt(sorted([*self.pending, found], key=lambda pending: pending.node or ""))
        return None

    def adopt(self, pending: list[PendingCommand]) -> None:
        """Adopt the commands that were found in its channel, except starts of what was never given."""
        given, self.pending = self.given, pending
        if given is not None and pending:
            starts = (p.command for p in pending if isinstance(p.command, StartFetcher))
            forged = frozenset(tp for start in starts for tp in start.partitions if tp not in given)
            if forged:
                self.false_claims |= forged
                self.pending = [p for p in pending if forged.isdisjoint(p.command.partitions or ())]

    # The state -------------------------------------------------------------------------------------------------------

    def go(self, state: MemberState) -> None:
        """Change the state.

        Raises:
            InvalidTransitionError: the table has no such transition.

        """
        if state is self.state:
            return
        if state not in MEMBER_TRANSITIONS[self.state]:
            raise InvalidTransitionError(f"member {self.consumer}: {self.state.value} -> {state.value}: {self}")
        self.state = state

    def follow(self) -> None:
        """Change to the state that follows from what was read and sent; an eviction in progress continues."""
        if self.state is not MemberState.EVICTING:
            self.go(self._implied_state())

    def call_eviction_off(self) -> None:
        """Leave EVICTING, because the eviction was too late."""
        self.go(self._implied_state())

    def _implied_state(self) -> MemberState:
        if not self.registered:
            return MemberState.UNREGISTERED
        if self.false_claims or self.is_record_gone or self.is_sessionless:
            return MemberState.BROKEN
        if not self.is_readable or self.is_given_hidden:
            return MemberState.UNREADABLE
        return MemberState.ANSWERING if self.pending else MemberState.READY

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way to or from it, whatever the record of its partitions says."""
        is_record_hidden = self.state is MemberState.UNREADABLE and self.is_readable and not self.pending
        return self.state is MemberState.READY or is_record_hidden

    @property
    def takes_part(self) -> bool:
        """Whether it may be assigned anything."""
        leaving = {MemberState.UNREGISTERED, MemberState.BROKEN, MemberState.EVICTING, MemberState.GONE}
        is_known = self.registration is not None or self.is_registration_refused
        return is_known and self.state not in leaving

    @property
    def instance(self) -> str | None:
        """The instance id of a static member."""
        return self.registration.instance_id if self.registration else self.recorded_instance

    @property
    def stop_timeout_ms(self) -> int | None:
        """The time for a stop that it has registered."""
        return self.registration.stop_timeout_ms if self.registration else None

    # What it holds ---------------------------------------------------------------------------------------------------

    def held(self) -> Mapping[TopicPartition, int]:
        """Return partition -> consumer thread of what is owned or being started."""
        known = self.owners.partitions if self.owners else {}
        owned = known if self.is_readable else self.given or known
        if not self.pending:
            return owned  # not a copy, because most members never need one
        starts = [p.command.partitions for p in self.pending if isinstance(p.command, StartFetcher)]
        held = dict(owned)
        for partitions in starts:
            held.update(partitions)
        return held

    def expected(self) -> Mapping[TopicPartition, int]:
        """Return partition -> consumer thread of what is owned once every pending command is acknowledged."""
        partitions = self.owners.partitions if self.owners else {}
        for pending in self.pending:
            partitions = applied(partitions, pending.command)
        return partitions

    @property
    def stops_everything(self) -> bool:
        """Whether it has to acknowledge a stop of everything that all members get, not one for being fenced."""
        return any(
            isinstance(pending.command, StopFetcher)
            and pending.command.partitions is None
            and pending.command.cause.kind != INSTANCE_FENCED
            for pending in self.pending
        )

    @property
    def is_readable(self) -> bool:
        """Whether its record, and all of its commands, could be read."""
        return self.owners is not None and not self.unreadable_commands and not self.refused

    def blocked_topics(self) -> tuple[str, ...]:
        """Topics that count as held completely, because it is unknown what the consumer holds.

        These are all topics: its subscription may have changed, and does not show what it still holds.
        """
        return () if self.given is not None or self.is_readable else (ALL_TOPICS,)


class Released(NamedTuple):
    """The partitions that a change of one consumer has freed."""

    consumer: str
    partitions: frozenset[TopicPartition]
    unblocked: bool  # whether a block on whole topics ended, so that any partition may be free now


@dataclass(slots=True)
class GroupView(OffsetMarks):
    """Everything that is known of a group, as the basis of decisions."""

    group: str
    topics: Mapping[str, Topic]  # of the cluster
    settings: GroupSettings = field(default_factory=GroupSettings)
    settings_version: int = 0
    last_change: LastChange | None = None  # None: this version of the settings names no user
    created_zxid: int = 0  # of the group's node; if it differs, the group was deleted and created again
    generation: int = 0
    generation_version: int = 0
    given_version: int = -1  # of the mark of the records of what was given; -1: unknown
    members: dict[str, Member] = field(default_factory=dict)
    evicted: dict[str, EvictionRecord | None] = field(default_factory=dict)  # None: unreadable, holds everything
    statics: dict[str, tuple[StaticMember, int]] = field(default_factory=dict)  # instance -> (record, version)
    unreadable_statics: dict[str, int] = field(default_factory=dict)  # instance -> version, or ANY_VERSION
    incarnations: dict[str, str] = field(default_factory=dict)  # see `OffsetMarks`
    recorded_incarnations: dict[str, str] = field(default_factory=dict)
    away: dict[str, Member] = field(default_factory=dict)  # static members that left under this leadership, by instance
    waiting_for: dict[TopicPartition, str] = field(default_factory=dict)  # goes to this instance only: it may return
    lease_until_us: int = 0  # by the leader's clock: a consumer whose session seems over may have a lease until then
    is_recorded: bool = True  # whether the records of what was given to its members are reliable
    recorded: set[str] = field(default_factory=set)  # consumers that have such a record
    unrecorded: OrderedDict[str, None] = field(default_factory=OrderedDict)  # consumers whose record is out of date
    awaited: Unclaimed | None = None  # partitions that may wait for static members of whom nothing may be read
    hidden: set[str] = field(default_factory=set)  # paths of marks, static members, what was given, or lists of these
    hidden_topics: set[str] = field(default_factory=set)
    are_marks_hidden: bool = False  # see `OffsetMarks`
    barred: dict[str, None] = field(default_factory=dict)  # topics that get no start: ZooKeeper refuses their marks
    is_unbarred: bool = False  # some are not barred any more: the next plan starts them, without a stop of everything
    full: dict[str, int] = field(default_factory=dict)  # consumer -> bytes of its record, into which no more fits
    touched: OrderedDict[str, None] = field(default_factory=OrderedDict)  # consumers that planning has to examine
    # By topic: while one dictionary of half a million entries grows, every group waits for 20 ms.
    _holders: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    _held: dict[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    _blocks: Blocks = field(default_factory=Blocks)

    def bound(self) -> Bound:
        """Return how many partitions one node may name; the cluster's topics are known before nodes are read."""
        return Bound(self._partition_count)

    def _partition_count(self, topic: str) -> int:
        known = self.topics.get(topic)
        return MAX_ABSENT_PARTITIONS if known is UNREAD else known.count if known is not None else 0

    def become(self, other: GroupView) -> None:
        """Replace everything by what was read again, except what ZooKeeper does not have, or does not show now."""
        other.away, other.lease_until_us, other.waiting_for = self.away, self.lease_until_us, self.waiting_for
        other.awaited, other.barred, other.is_unbarred = self.awaited, self.barred, self.is_unbarred
        other.full = {consumer: size for consumer, size in self.full.items() if consumer in other.members}
        for consumer in other.members.keys() & self.members.keys():
            member, before = other.members[consumer], self.members[consumer]
            member.failed_tries, member.refused_tries = before.failed_tries, before.refused_tries
            member.registration = member.registration or before.registration
            member.pattern_refused = before.pattern_refused and member.registration == before.registration
            member.recorded_instance = before.recorded_instance
        hides_all = other.hides(paths.static(self.group))
        hidden = {name for name, version in other.unreadable_statics.items() if version == ANY_VERSION}
        known = {name: (self.statics[name][0], ANY_VERSION) for name in self.statics if hides_all or name in hidden}
        other.statics = known | other.statics  # in the order of their writing, as far as that is known
        for name in known.keys() & hidden:
            del other.unreadable_statics[name]
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def touch(self, consumer: str) -> None:
        """Note a change of a consumer: update its state, and let the next planning examine it again."""
        self.touched[consumer] = None
        if consumer in self.members:
            self.members[consumer].follow()

    def refresh(self, consumer: str) -> Released:
        """Update the index after a change of one consumer; return what is free now."""
        self.touch(consumer)
        member = self.members.get(consumer)
        record = self.evicted.get(consumer)
        held = member.held() if member else {}
        blocks = member.blocked_topics() if member else ()
        if member is not None and not blocks and not member.is_given_hidden:
            if member.given is not held and (member.given is None or held.keys() != member.given.keys()):
                self.unrecorded[consumer] = None
            member.given = held
        leaving_with = member.leaving_with if member else None
        if record is not None or leaving_with:
            held = {**(record.partitions if record else {}), **(leaving_with or {}), **held}
        if consumer in self.evicted:
            blocks += (ALL_TOPICS,) if record is None else record.topics
        unblocked = self._blocks.change(consumer, blocks)
        return Released(consumer, frozenset(self._reindex(consumer, held)), unblocked)

    def _reindex(self, consumer: str, held: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        before = self._held.get(consumer, {})
        alone = (consumer,)  # one tuple for all partitions
        for topic, partition in held.keys() - before.keys() if before else held:
            holders = self._holders.setdefault(topic, {})
            holders[partition] = (*holders[partition], consumer) if partition in holders else alone
        released = set()
        for topic, partition in before.keys() - held.keys() if before else ():
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
        """Forget a consumer whose session is over; return what is free now."""
        self.hidden.discard(paths.given(self.group, consumer))
        member = self.members.pop(consumer, None)
        if member is not None:
            member.go(MemberState.GONE)
        return self.refresh(consumer)

    def end_waiting(self, started: Mapping[TopicPartition, int]) -> None:
        """Note that these partitions were started, at the instances for which they waited."""
        for partition in self.waiting_for.keys() & started.keys():
            del self.waiting_for[partition]

    # Questions -------------------------------------------------------------------------------------------------------

    def hides(self, folder: str) -> bool:
        """Whether the children of a folder of the group may not be read."""
        return folder in self.hidden

    def held_by(self, consumer: str) -> Mapping[TopicPartition, int]:
        """Return partition -> consumer thread of what one consumer holds."""
        return self._held.get(consumer, {})

    def holders(self, partition: TopicPartition) -> tuple[str, ...]:
        """Return the holders of a partition: none if it is free; more than one would violate the protocol."""
        topic, number = partition
        return self._holders.get(topic, {}).get(number, ())  # in one step: another thread reads it, too

    def held_count(self, topic: str) -> int:
        """Return how many partitions of a topic are held."""
        return len(self._holders.get(topic, ()))

    def refused_path(self) -> str:
        """Return a node of a member that may not be read; "": all may."""
        return min((path for member in self.members.values() for path in member.refused), default="")

    def is_fully_held(self, topic: str) -> bool:
        """Whether each partition that a topic has, and no other, has a holder."""
        known = self.topics.get(topic)
        return known is not None and self._holders.get(topic, {}).keys() == known.partitions

    def held_topics(self) -> KeysView[str]:
        """Every topic of which a partition is held."""
        return self._holders.keys()

    def exists(self, partition: TopicPartition) -> bool:
        """Whether the cluster has the partition now, or may have it, because the topic could never be read."""
        return self.topics.get(partition[0]) is UNREAD or self.is_known(partition)

    def is_known(self, partition: TopicPartition) -> bool:
        """Whether the topic was read, and has the partition now."""
        topic = self.topics.get(partition[0])
        return topic is not None and partition[1] in topic.partitions

    def may_start(self, consumer: str, partition: TopicPartition) -> bool:
        """Whether a start-fetcher for the partition may be sent to the consumer now."""
        if self.settings.starts_paused or self.is_stale(partition[0]):
            return False
        if self.is_withheld(partition):
            return False
        if (self.unreadable_statics or self.hidden) and self.cannot_be_recorded(self.members[consumer]):
            return False
        if not self.exists(partition):
            return False  # deleted since the plan was made; the next plan leaves it out
        awaited = self.waiting_for.get(partition)
        if awaited is not None and awaited != self.members[consumer].instance:
            return False
        return self.is_free_for(consumer, partition)

    def is_withheld(self, partition: TopicPartition) -> bool:
        """Whether no member may get it: its mark may not be stored or read, or an unknown static member may return."""
        is_awaited = self.awaited is not None and partition in self.awaited
        return is_awaited or partition[0] in self.barred or self.is_hidden_topic(partition[0])

    def stands_still(self, topic: str) -> bool:
        """Whether nothing of it is started: its mark may not be read or stored. A stale one is reset once free."""
        return self.is_hidden_topic(topic) or (topic in self.barred and not self.is_stale(topic))

    def cannot_be_recorded(self, member: Member) -> bool:
        """Whether no start of a static member can be recorded: its registration, or what waits for it, is unknown."""
        known = member.registration
        if known is None:
            return member.instance is not None
        return known.static_grace_ms is not None and self.is_hidden(known)

    def is_hidden(self, registration: Registration) -> bool:
        """Whether the record of a static member may not be read, and was not before: then it is not written either."""
        instance = registration.instance_id
        if instance is None or instance in self.statics:
            return False
        return self.unreadable_statics.get(instance) == ANY_VERSION or self.hides(paths.static(self.group))

    def is_free_for(self, consumer: str, partition: TopicPartition) -> bool:
        """Whether no other consumer holds the partition, and none blocks its topic."""
        holders = self.holders(partition)
        if holders and holders != (consumer,):
            return False
        return partition[0] not in self._blocks
