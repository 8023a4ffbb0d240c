"""Reads a group from ZooKeeper, also while no coordinator runs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zkrebalancer.observe.obstacles import Obstacle, find_obstacles
from zkrebalancer.protocol import cluster_nodes, history, obstacles, paths, shards
from zkrebalancer.protocol.calls import ABSENT, Children, Content, Get, ListChildren, Refusal, Reply
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress, Topic
from zkrebalancer.protocol.errors import NodeContentError, RebalancerError, ZooKeeperRefusedError
from zkrebalancer.protocol.fields import MAX_PARTITION, TopicPartition
from zkrebalancer.protocol.history import History
from zkrebalancer.protocol.numbers import decimal
from zkrebalancer.protocol.obstacles import PublishedObstacle
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.protocol.shards import Number, Shard, ShardHost
from zkrebalancer.rebalance.problems import Problems, expected_refusals
from zkrebalancer.rebalance.reader import GroupReader
from zkrebalancer.rebalance.view import GroupView
from zkrebalancer.runtime.zk import BlockingZk

MAX_READS_AT_ONCE = 1_000  # pipelined
MAX_GROUPS_AT_ONCE = 50  # that are read side by side
MAX_TRIES = 3  # to judge the claims of members while a leader writes; then they are believed
EMPTY, STABLE, MOVING = "empty", "stable", "moving"


class UnknownGroupError(RebalancerError):
    """The group does not exist in ZooKeeper."""


@dataclass(slots=True)
class MemberReport:
    """One consumer; `registration` and `owners` are None if they cannot be read."""

    consumer: str
    registration: Registration | None = None
    owners: OwnersRecord | None = None
    pending_commands: int = 0


@dataclass(slots=True)
class GroupReport:
    """One group at about one moment: reads of several nodes are not a snapshot. `view`: as the coordinator sees it."""

    name: str
    view: GroupView
    members: list[MemberReport]
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    unreadable_offsets: set[TopicPartition] = field(default_factory=set)
    former_topics: set[str] = field(default_factory=set)  # created anew since the offsets of them were stored
    problems: Problems = field(default_factory=Problems)

    @property
    def settings(self) -> GroupSettings:
        """Its settings; the defaults if they cannot be read."""
        return self.view.settings

    @property
    def generation(self) -> int:
        """The generation of the last plan."""
        return self.view.generation

    @property
    def evicted(self) -> list[str]:
        """The evicted consumers whose leases are not over."""
        return sorted(self.view.evicted)

    @property
    def state(self) -> str:
        """`empty`, `stable`, or `moving` while commands are pending or the leases of evicted consumers last."""
        if any(member.pending_commands for member in self.members) or self.evicted:
            return MOVING
        return STABLE if self.members else EMPTY

    def owned(self) -> dict[TopicPartition, str]:
        """Return partition -> consumer thread (`<consumer>-<thread>`)."""
        return {
            partition: f"{member.consumer}-{thread}"
            for member in self.members
            if member.owners is not None
            for partition, thread in member.owners.partitions.items()
        }


def read_shards(zk: BlockingZk) -> tuple[Shard, ...]:
    """Return the shards of groups; raises NodeContentError, ZooKeeperRefusedError if their number cannot be read."""
    doubted: int | None = None  # version of a node that names one shard beside the barrier of several
    while True:
        reply = zk.perform(Get(paths.SHARDS), ABSENT)
        number, version = Number(), -1
        try:
            if isinstance(reply, Content):
                number, version = shards.decode_number(reply.content), reply.stat.version
            if number.shards > 1 or not isinstance(zk.perform(Get(shards.BARRIER), ABSENT), Content):
                return number.all(version)
            if doubted == version:
                raise NodeContentError("it is missing" if version < 0 else "it is empty")
        except NodeContentError as error:
            raise type(error)(shards.damaged(error)) from None
        doubted = version  # it may have been changed before the barrier was looked for


def read_leaders(zk: BlockingZk, of: Sequence[Shard]) -> list[CoordinatorAddress | None]:
    """Return the leader of each shard, None if there is none, also while a restore keeps coordinators from leading.

    Raises:
        ZooKeeperRefusedError: a leader's node may not be read.

    """
    return [leader_in(reply) for reply in zk.perform_all([Get(shard.coordinator) for shard in of], ABSENT)]


def leader_in(reply: Reply) -> CoordinatorAddress | None:
    """Return the leader that the node of a shard's leader names."""
    if not isinstance(reply, Content) or not reply.stat.ephemeral_owner:
        return None  # a node of no session names no leader: a coordinator removes it, or it keeps all from leading
    found = _coordinator(reply)
    return None if found.brokerid == NOBODY else found


def _coordinator(node: Content) -> CoordinatorAddress:
    try:
        return cluster_nodes.decode_coordinator(node.content)
    except NodeContentError as error:
        return cluster_nodes.unknown_coordinator(error)


def read_leader(zk: BlockingZk, group: str = "") -> CoordinatorAddress | None:
    """Return the leader of a group's shard, None if there is none; raises as `read_shards` and `read_leaders`."""
    return read_leaders(zk, [shard_of_group(zk, group)])[0]


def read_unfinished_restore(zk: BlockingZk) -> str | None:
    """Return what to tell people about a restore that keeps coordinators from leading; None if there is none.

    Raises:
        ZooKeeperRefusedError: its nodes may not be read.

    """
    node, barrier = zk.perform_all([Get(paths.COORDINATOR), Get(paths.RESTORE)], ABSENT)
    if not (isinstance(node, Content) and isinstance(barrier, Content)):
        return None
    return cluster_nodes.unfinished_restore(_coordinator(node))


def read_shard_hosts(zk: BlockingZk) -> list[ShardHost]:
    """Return the coordinators that can lead shards, by broker id, without invalid ones; raises ZooKeeperRefusedError.

    With one shard, there may be none, because only then they do not register.
    """
    names = _names(zk.perform(ListChildren(paths.SHARD_HOSTS), ABSENT))
    found: list[ShardHost] = []
    for reply in zk.perform_all([Get(f"{paths.SHARD_HOSTS}/{name}") for name in names], ABSENT):
        if isinstance(reply, Content) and reply.stat.ephemeral_owner:  # others are from a copied tree
            with contextlib.suppress(NodeContentError):
                found.append(shards.decode_host(reply.content))
    return sorted(found, key=lambda host: host.brokerid)


def read_groups(zk: BlockingZk) -> tuple[list[GroupReport], list[ZooKeeperRefusedError]]:
    """Read every group, sorted by name, without nodes that cannot be groups.

    Also return why other groups cannot be read.

    Raises:
        ZooKeeperRefusedError: the groups may not be listed.

    """
    reports: list[GroupReport] = []
    refused: list[ZooKeeperRefusedError] = []
    names = list(filter(paths.is_legal_name, _names(zk.perform(ListChildren(paths.GROUPS), ABSENT))))
    for begin in range(0, len(names), MAX_GROUPS_AT_ONCE):
        some = names[begin : begin + MAX_GROUPS_AT_ONCE]
        for name, found in zip(some, _read_some(zk, some, {}), strict=True):
            if isinstance(found, ZooKeeperRefusedError):
                refused.append(found)
            elif isinstance(found, GroupReader):  # otherwise, it was deleted since it was listed
                try:
                    reports.append(read_group(zk, name) if _is_doubtful(found) else _report(found))
                except ZooKeeperRefusedError as error:
                    refused.append(error)
                except UnknownGroupError:
                    continue
    return reports, refused


def _is_doubtful(reader: GroupReader) -> bool:
    """Whether a group has to be read again."""
    return reader.needs_topics or reader.grounds.is_overtaken


def read_group(zk: BlockingZk, name: str, *, judge: bool = True) -> GroupReport:
    """Read one group, as the coordinator reads it; without `judge`, believe what its members claim.

    Raises:
        InvalidNameError: not a legal name.
        UnknownGroupError: ZooKeeper has no such group.
        ZooKeeperRefusedError: it may not be read; what may not be read of one consumer is a problem in the report.

    """
    topics: Mapping[str, Topic] = {}
    reader = _read_group(zk, paths.validate_name("group", name), topics, judge=judge)
    if reader.needs_topics:
        topics = read_topics(zk)
        reader = _read_group(zk, name, topics, judge=judge)
    for number in range(MAX_TRIES):
        if not reader.grounds.is_overtaken:
            break
        reader = _read_group(zk, name, topics, judge=number + 1 < MAX_TRIES)
    return _report(reader)


def _report(reader: GroupReader) -> GroupReport:
    view = reader.view
    members = [
        MemberReport(member.consumer, member.registration, member.owners, len(reader.commands.get(member.consumer, ())))
        for member in sorted(view.members.values(), key=lambda member: member.consumer)
        if member.registered
    ]
    return GroupReport(view.group, view, members, problems=reader.problems)


def _read_group(zk: BlockingZk, name: str, topics: Mapping[str, Topic], *, judge: bool = True) -> GroupReader:
    (found,) = _read_some(zk, [name], topics, judge=judge)
    if isinstance(found, RebalancerError):
        raise found
    return found


def _read_some(
    zk: BlockingZk, names: Sequence[str], topics: Mapping[str, Topic], *, judge: bool = True
) -> list[GroupReader | RebalancerError]:
    """Read groups side by side, so that many cost few round trips; an error is why one of them cannot be read."""
    readers = {name: GroupReader(name, topics, judge=judge) for name in names}
    failed: dict[str, RebalancerError] = {}
    for stages in zip(*(reader.stages() for reader in readers.values()), strict=True):
        of_stage = [(name, stage) for name, stage in zip(readers, stages, strict=True) if name not in failed]
        reads = [(name, *one) for name, stage in of_stage for some in stage() for one in some.each()]
        replies = zk.perform_all([call for _name, call, _handle in reads], frozenset(Refusal))
        for (name, call, handle), reply in zip(reads, replies, strict=True):
            try:
                require_expected(call, reply, expected_refusals(call.path, of_tool=True))
            except ZooKeeperRefusedError as error:
                failed.setdefault(name, error)
            else:
                handle(reply)
        for name, _stage in of_stage:
            if not readers[name].exists:
                failed[name] = UnknownGroupError(f"there is no group {name}; `groups list` shows all groups")
    for name in readers.keys() - failed.keys():
        readers[name].finish()
    return [failed.get(name, reader) for name, reader in readers.items()]


def read_topics(zk: BlockingZk) -> dict[str, Topic]:
    """Return all topics of the cluster, without invalid ones; raises ZooKeeperRefusedError."""
    listed = zk.perform(ListChildren(paths.BROKER_TOPICS), ABSENT)
    names = list(filter(paths.is_legal_topic, _names(listed)))
    found: dict[str, Topic] = {}
    for name, reply in zip(names, zk.perform_all([Get(paths.topic(name)) for name in names], ABSENT), strict=True):
        if isinstance(reply, Content):
            with contextlib.suppress(NodeContentError):
                found[name] = cluster_nodes.decode_topic(reply.content, reply.stat.created_zxid)
    return found


@dataclass(frozen=True, slots=True)
class Published:
    """What the present leader publishes: obstacles, how many more it has, and why its node cannot be read."""

    is_led: bool
    obstacles: Sequence[PublishedObstacle] = ()
    more: int = 0
    problem: str | None = None


def read_published(zk: BlockingZk, shard: Shard) -> Published:
    """Return why groups are stuck as the leader of a shard publishes it, without what a former leader published.

    Raises:
        ZooKeeperRefusedError: the leader's nodes may not be read.

    """
    (leader,) = read_leaders(zk, [shard])
    node = zk.perform(Get(shard.obstacles), ABSENT)
    if leader is None or not isinstance(node, Content):
        return Published(is_led=leader is not None)
    if not leader.is_known:
        return Published(is_led=True, problem=f"the leader is {leader.name}")
    try:
        epoch, found, more = obstacles.decode(node.content)
    except NodeContentError as error:
        return Published(is_led=True, problem=str(error))
    return Published(is_led=True, obstacles=found, more=more) if epoch == leader.epoch else Published(is_led=True)


def shard_of_group(zk: BlockingZk, group: str) -> Shard:
    """Return the shard of a group; raises as `read_shards`."""
    return next(shard for shard in read_shards(zk) if shard.has(group))


def read_obstacles(zk: BlockingZk, report: GroupReport) -> list[Obstacle]:
    """Return why a group is stuck; raises as `read_published`, except that a damaged number of shards is a reason."""
    try:
        shard = shard_of_group(zk, report.name)
    except NodeContentError as error:
        unknown = find_obstacles(report.view, is_led=True, published=(), unpublished=0)
        return [Obstacle("shards", str(error), path=paths.SHARDS), *unknown]
    found = read_published(zk, shard)
    if found.problem is not None:
        report.problems.add("coordinator_obstacles", found.problem)
    published = [each for each in found.obstacles if each.group in {None, report.name}]
    partial = None if found.is_led else read_unfinished_restore(zk)
    restore = [] if partial is None else [Obstacle("restore", partial, path=paths.RESTORE)]
    return restore + find_obstacles(report.view, is_led=found.is_led, published=published, unpublished=found.more)


def read_history(zk: BlockingZk, name: str) -> History:
    """Return the last rebalances of a group, as its leaders recorded them.

    Raises:
        NodeContentError, ZooKeeperRefusedError: the node cannot be read.

    """
    node = zk.perform(Get(paths.history(name)), ABSENT)
    return history.decode(node.content) if isinstance(node, Content) else History()


def read_offsets(zk: BlockingZk, report: GroupReport) -> None:
    """Add the stored offsets to a report, without those that belong to former topics; raises ZooKeeperRefusedError."""
    topics = _names(zk.perform(ListChildren(paths.offsets(report.name)), ABSENT))
    report.former_topics = former_topics(zk, report.name, topics)
    for topic in sorted(report.former_topics):
        report.problems.add("stored offsets", f"those of {topic} belong to a former topic: the leader will delete them")
    present = [topic for topic in topics if topic not in report.former_topics]
    for partition, content in offset_nodes(zk, report.name, present):
        try:
            report.offsets[partition] = cluster_nodes.decode_counter(f"offset of {partition}", content)
        except NodeContentError as error:
            report.problems.add("stored offsets", str(error))
            report.unreadable_offsets.add(partition)


def former_topics(zk: BlockingZk, group: str, topics: Collection[str]) -> set[str]:
    """Return those of the topics that were created anew since the group's offsets of them were stored.

    The coordinator's rule decides. A topic with invalid contents is not among them. Raises ZooKeeperRefusedError.
    """
    names = sorted(topics)
    places = [path for name in names for path in (paths.topic(name), paths.offsets(group, name))]
    replies = zk.perform_all([Get(path) for path in places], ABSENT)
    records = zk.perform_all([Get(paths.incarnations(group, name)) for name in names], ABSENT)
    known: dict[str, Topic] = {}
    view = GroupView(group, known)
    for name, topic, mark, record in zip(names, replies[::2], replies[1::2], records, strict=True):
        with contextlib.suppress(NodeContentError):
            if isinstance(topic, Content):
                known[name] = cluster_nodes.decode_topic(topic.content, topic.stat.created_zxid)
        for reply, stored in ((mark, view.incarnations), (record, view.recorded_incarnations)):
            if isinstance(reply, Content):
                with contextlib.suppress(NodeContentError):  # then the other one decides
                    stored[name] = ""
                    stored[name] = cluster_nodes.decode_mark(reply.content)
    return {name for name in names if view.is_stale(name)}


def offset_nodes(zk: BlockingZk, group: str, topics: Collection[str]) -> Iterator[tuple[TopicPartition, bytes]]:
    """Yield each stored offset of these topics' partitions, undecoded; raises ZooKeeperRefusedError."""
    listed = zk.perform_all([ListChildren(paths.offsets(group, topic)) for topic in topics], ABSENT)
    partitions = [
        (topic, number)
        for topic, names in zip(topics, listed, strict=True)
        for name in _names(names)
        if (number := decimal(name, MAX_PARTITION)) is not None
    ]
    for begin in range(0, len(partitions), MAX_READS_AT_ONCE):
        asked = partitions[begin : begin + MAX_READS_AT_ONCE]
        answers = zk.perform_all([Get(paths.offsets(group, *partition)) for partition in asked], ABSENT)
        for partition, reply in zip(asked, answers, strict=True):
            if isinstance(reply, Content):
                yield partition, reply.content


def _names(reply: Reply) -> tuple[str, ...]:
    return reply.names if isinstance(reply, Children) else ()
