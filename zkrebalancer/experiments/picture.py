"""The state of a run folded from its events: owners, rebalances, and how far each group has read.

Pure. Events of two processes may arrive slightly out of order, so an end counts only for the owner that it names. The
verdict does not come from here but from `observe/checker.py`, which reads the complete files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from zkrebalancer.observe.reading import Event
from zkrebalancer.observe.rebalances import Rebalance, RebalanceLog
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.shards import shard_of

MEMBER_UUID_LENGTH = 37  # "-" and the uuid appended to the client id


@dataclass(slots=True)
class GroupPicture:
    """One group.

    `members` are in order of arrival; `delivered` has the next offset of each partition; `freed_us` has the time
    (`mono_us`) at which a partition lost its owner; `changed_us` is the time of the last start or stop. If owners
    overlap, `owners` has the one that started last, and `others` those before it that have not stopped.
    """

    members: list[str] = field(default_factory=list)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    others: dict[TopicPartition, list[str]] = field(default_factory=dict)
    freed_us: dict[TopicPartition, int] = field(default_factory=dict)
    delivered: dict[TopicPartition, int] = field(default_factory=dict)
    changed_us: int = 0
    stale: set[TopicPartition] = field(default_factory=set)  # of a deleted topic, until started again


@dataclass(slots=True)
class Picture:
    """The whole run; `produced` has the next offset of each partition, `leaders` the broker id of each shard's leader.

    `shards`: how many shards of groups there are.
    """

    groups: dict[str, GroupPicture] = field(default_factory=dict)
    log: RebalanceLog = field(default_factory=RebalanceLog)
    produced: dict[TopicPartition, int] = field(default_factory=dict)
    leaders: dict[int, int] = field(default_factory=dict)
    shards: int = 1

    def leader_of(self, group: str) -> int | None:
        """Return the leader of a group's shard, None if there is none."""
        return self.leaders.get(shard_of(group, self.shards))

    def apply(self, event: Event) -> None:
        """Apply one event; other kinds are ignored."""
        handle = _HANDLERS.get(event["kind"])
        if handle is not None:
            handle(self, event)

    @property
    def rebalances(self) -> list[Rebalance]:
        """Every rebalance, in the order of the plans."""
        return self.log.rebalances

    def partitions(self) -> list[TopicPartition]:
        """Return every partition that has records or an owner, sorted."""
        owned = [partition for group in self.groups.values() for partition in group.owners]
        return sorted({*self.produced, *owned})

    def produced_count(self) -> int:
        """Return how many records were produced."""
        return sum(self.produced.values())

    def behind(self, group: str) -> int:
        """Return how many produced records were not yet delivered to a group."""
        delivered = self.group(group).delivered
        return sum(max(0, end - delivered.get(partition, 0)) for partition, end in self.produced.items())

    def group(self, name: str) -> GroupPicture:
        """Return a group; an unknown one is empty."""
        return self.groups.setdefault(name, GroupPicture())


def client_of(member: str) -> str:
    """Return the client id of a consumer (`<client id>-<uuid>`)."""
    return member[:-MEMBER_UUID_LENGTH]


def _joined(picture: Picture, event: Event) -> None:
    members = picture.group(event["group"]).members
    if event["member"] not in members:
        members.append(event["member"])


def _left(picture: Picture, event: Event) -> None:
    members = picture.group(event["group"]).members
    if event["member"] in members:
        members.remove(event["member"])


def _started(picture: Picture, event: Event) -> None:
    group = picture.group(event["group"])
    for number in event["partitions"]:
        partition = (event["topic"], number)
        group.stale.discard(partition)
        before = [*group.others.pop(partition, ()), group.owners.get(partition, event["member"])]
        others = [member for member in before if member != event["member"]]
        if others:
            group.others[partition] = others
        group.owners[partition] = event["member"]
        group.changed_us = max(group.changed_us, event["mono_us"])
        freed_us = group.freed_us.pop(partition, event["mono_us"])
        picture.log.started(event, event["mono_us"] - freed_us)


def _stopped(picture: Picture, event: Event) -> None:
    for number in event["partitions"]:
        _free(picture, event, (event["topic"], number))


def _ended(picture: Picture, event: Event) -> None:
    for partition in list(picture.group(event["group"]).owners):
        _free(picture, event, partition)


def _free(picture: Picture, event: Event, partition: TopicPartition) -> None:
    group = picture.group(event["group"])
    others = group.others.get(partition, [])
    if group.owners.get(partition) == event["member"]:
        group.changed_us = max(group.changed_us, event["mono_us"])
        if others:
            group.owners[partition] = others.pop()
        else:
            del group.owners[partition]
            group.freed_us[partition] = event["mono_us"]
    elif event["member"] in others:
        others.remove(event["member"])


def _produced(picture: Picture, event: Event) -> None:
    partition = (event["topic"], event["partition"])
    picture.produced[partition] = max(picture.produced.get(partition, 0), event["last_offset"] + 1)


def _delivered(picture: Picture, event: Event) -> None:
    group = picture.group(event["group"])
    partition = (event["topic"], event["partition"])
    if partition not in group.stale:
        group.delivered[partition] = max(group.delivered.get(partition, 0), event["last_offset"] + 1)


def _topic_deleted(picture: Picture, event: Event) -> None:
    """Reset the topic's offsets: a topic created under its name starts again at 0."""
    topic = event["topic"]
    picture.produced = {partition: end for partition, end in picture.produced.items() if partition[0] != topic}
    for group in picture.groups.values():
        gone = {partition for partition in {*group.delivered, *group.owners} if partition[0] == topic}
        group.stale |= gone
        for partition in gone:
            group.delivered.pop(partition, None)


def _elected(picture: Picture, event: Event) -> None:
    count = event.get("shards", 1)
    if count != picture.shards:
        picture.shards, picture.leaders = count, {}
    picture.leaders[event.get("shard", 0)] = event["brokerid"]


def _resigned(picture: Picture, event: Event) -> None:
    shard = event.get("shard", 0)
    if event.get("shards", 1) == picture.shards and picture.leaders.get(shard) == event["brokerid"]:
        del picture.leaders[shard]


_HANDLERS: dict[str, Callable[[Picture, Event], None]] = {
    "rebalance_requested": lambda picture, event: picture.log.requested(event),
    "rebalance_planned": lambda picture, event: picture.log.planned(event),
    "rebalance_finished": lambda picture, event: picture.log.finished(event),
    "topic_deleted": _topic_deleted,
    "member_joined": _joined,
    "member_left": _left,
    "fetcher_started": _started,
    "fetcher_stopped": _stopped,
    "ownership_ended": _ended,
    "produced": _produced,
    "delivered": _delivered,
    "leader_elected": _elected,
    "leader_resigned": _resigned,
}
