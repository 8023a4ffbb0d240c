"""What a run looks like at one moment, folded from its events: who owns what, which rebalances were, who reads how far.

Pure: events go in, nothing is read. The events of two processes may come in slightly the wrong order, so an end counts
only for the owner that it names. The verdict is not made here but by `observe/checker.py`, from the complete files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from zkrebalancer.experiments.tail import Event
from zkrebalancer.observe.checker import Rebalance
from zkrebalancer.protocol.fields import TopicPartition

UNDER_WAY = "under way"
MEMBER_UUID_LENGTH = 37  # "-" and the uuid that a registration appends to the client id


@dataclass(slots=True)
class GroupPicture:
    """One group: its consumers in the order of their arrival, who owns what, and the next offset that was delivered."""

    members: list[str] = field(default_factory=list)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    delivered: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class Picture:
    """The whole run.

    `produced` is the next offset of each partition, `plans` has every rebalance under (group, generation, cause id),
    `causes` maps cause ids to triggers, `leader` is the broker id of the leading coordinator.
    """

    groups: dict[str, GroupPicture] = field(default_factory=dict)
    plans: dict[tuple[str, int, str], Rebalance] = field(default_factory=dict)
    produced: dict[TopicPartition, int] = field(default_factory=dict)
    leader: int | None = None
    causes: dict[str, str] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take one event; kinds that are not shown are passed over."""
        take = _TAKERS.get(event["kind"])
        if take is not None:
            take(self, event)

    @property
    def rebalances(self) -> list[Rebalance]:
        """Every rebalance in the order of the plans."""
        return list(self.plans.values())

    def partitions(self) -> list[TopicPartition]:
        """Return every partition that is written or owned, sorted."""
        owned = [partition for group in self.groups.values() for partition in group.owners]
        return sorted({*self.produced, *owned})

    def produced_count(self) -> int:
        """Return how many records were produced."""
        return sum(self.produced.values())

    def behind(self, group: str) -> int:
        """Return how many records of those produced were not delivered to a group yet."""
        delivered = self.group(group).delivered
        return sum(max(0, end - delivered.get(partition, 0)) for partition, end in self.produced.items())

    def group(self, name: str) -> GroupPicture:
        """Return a group, an empty one if nothing is known of it."""
        return self.groups.setdefault(name, GroupPicture())


def client_of(member: str) -> str:
    """Return the client id of a consumer (`<client id>-<uuid>`)."""
    return member[:-MEMBER_UUID_LENGTH]


def _requested(picture: Picture, event: Event) -> None:
    picture.causes[event["cause_id"]] = event["trigger"]


def _planned(picture: Picture, event: Event) -> None:
    picture.plans[event["group"], event["generation"], event["cause_id"]] = Rebalance(
        group=event["group"],
        generation=event["generation"],
        mode=event["mode"],
        cause=picture.causes.get(event["cause_id"], "unknown"),
        members=event["member_count"],
        partitions=event["partition_count"],
        moved=event["moved_count"],
        settled_ms=None,
        pause_ms_max=None,
        outcome=UNDER_WAY,
    )


def _finished(picture: Picture, event: Event) -> None:
    key = (event["group"], event["generation"], event["cause_id"])
    if key in picture.plans:
        times_ms = {"settled_ms": event["settled_us"] / 1_000, "pause_ms_max": event["pause_us_max"] / 1_000}
        picture.plans[key] = replace(picture.plans[key], outcome=event["outcome"], **times_ms)


def _joined(picture: Picture, event: Event) -> None:
    members = picture.group(event["group"]).members
    if event["member"] not in members:
        members.append(event["member"])


def _left(picture: Picture, event: Event) -> None:
    members = picture.group(event["group"]).members
    if event["member"] in members:
        members.remove(event["member"])


def _started(picture: Picture, event: Event) -> None:
    owners = picture.group(event["group"]).owners
    owners.update({(event["topic"], partition): event["member"] for partition in event["partitions"]})


def _stopped(picture: Picture, event: Event) -> None:
    owners = picture.group(event["group"]).owners
    for partition in event["partitions"]:
        if owners.get((event["topic"], partition)) == event["member"]:
            del owners[event["topic"], partition]


def _ended(picture: Picture, event: Event) -> None:
    group = picture.group(event["group"])
    group.owners = {partition: owner for partition, owner in group.owners.items() if owner != event["member"]}


def _produced(picture: Picture, event: Event) -> None:
    partition = (event["topic"], event["partition"])
    picture.produced[partition] = max(picture.produced.get(partition, 0), event["last_offset"] + 1)


def _delivered(picture: Picture, event: Event) -> None:
    delivered = picture.group(event["group"]).delivered
    partition = (event["topic"], event["partition"])
    delivered[partition] = max(delivered.get(partition, 0), event["last_offset"] + 1)


def _elected(picture: Picture, event: Event) -> None:
    picture.leader = event["brokerid"]


def _resigned(picture: Picture, event: Event) -> None:
    if picture.leader == event["brokerid"]:
        picture.leader = None


_TAKERS: dict[str, Callable[[Picture, Event], None]] = {
    "rebalance_requested": _requested,
    "rebalance_planned": _planned,
    "rebalance_finished": _finished,
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
