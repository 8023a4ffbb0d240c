"""One group for people: copied shallowly on the coordinator's loop, made into a document in a thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from zkrebalancer.coordinator.pages import lanes
from zkrebalancer.coordinator.pages.recent import Planned
from zkrebalancer.observe import service_level
from zkrebalancer.observe.obstacles import Obstacle, find_obstacles
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.history import Rebalanced
from zkrebalancer.protocol.obstacles import BACKING_OFF, QUARANTINED, REFUSED, PublishedObstacle
from zkrebalancer.rebalance.census import Figures, count
from zkrebalancer.rebalance.coordinator import Coordinator
from zkrebalancer.rebalance.group import Group
from zkrebalancer.rebalance.obstacles import group_of, to_publish, unapproved
from zkrebalancer.rebalance.turnover import OwnerChange
from zkrebalancer.rebalance.view import GroupView, Member

MEMBERS_PER_PAGE = 50
LANES_PER_PAGE = 60
MAX_CHANGES_SHOWN = 20
MAX_TOPICS_SHOWN = 5  # of a subscription, or of what a member owns
MAX_RANGES_SHOWN = 12
MAX_REFUSALS = 1_000  # that are searched for those of the group
NOT_READABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Parts:
    """Which parts of a group to show: topics and members whose names contain these, and which pages of them."""

    topic: str = ""
    lanes_page: int = 1
    member: str = ""
    members_page: int = 1


@dataclass(frozen=True, slots=True)
class Copied:
    """A group, as far as it is shown. `view` is a copy, but its members and their records are not."""

    figures: Figures
    view: GroupView
    topics: tuple[str, ...]
    published: tuple[PublishedObstacle, ...]
    planned: Planned | None
    since_ms: int
    changes: tuple[OwnerChange, ...]


def copy(coordinator: Coordinator, group: Group, planned: Planned | None, now_us: int, now_ms: int) -> Copied:
    """Copy what a document needs; the cost is that of counting the group."""
    turnover = coordinator.turnover.of(group.name)
    view = group.view
    return Copied(
        count(group, now_us),
        replace(
            view,
            members=dict(view.members),
            evicted=dict(view.evicted),
            statics=dict(view.statics),
            touched=OrderedDict(),
        ),
        tuple(group.planning.topics),
        tuple(_published(coordinator, group.name)),
        planned,
        now_ms if turnover is None else turnover.since_ms,
        () if turnover is None else tuple(turnover.changes),
    )


def _published(coordinator: Coordinator, group: str) -> Iterator[PublishedObstacle]:
    """Yield the leader's reasons for this group, and those for all groups."""
    scheduler = coordinator.scheduler
    if group in scheduler.backing_off:
        yield PublishedObstacle(group, BACKING_OFF, scheduler.backing_off[group])
    if group in scheduler.unapproved:
        yield unapproved(group, scheduler.unapproved[group])
    if group in coordinator.quarantine.out:
        yield PublishedObstacle(group, QUARANTINED, coordinator.quarantine.out[group])
    for call, refused in islice(scheduler.refusals.known.items(), MAX_REFUSALS):
        if group_of(call[0]) in {None, group}:
            yield to_publish(REFUSED, call, refused)


def document(copied: Copied, past: Sequence[Rebalanced], parts: Parts, started_ms: int) -> dict[str, Any]:
    """Return a group as plain data. `past`: its rebalances, oldest first; `started_ms`: see `overview.document`."""
    figures, view = copied.figures, copied.view
    obstacles = find_obstacles(view, is_led=True, published=copied.published, unpublished=0)
    return {
        "group": figures.group,
        "state": figures.state.value,
        "is_read": bool(view.created_zxid),
        "since_ms": started_ms + figures.since_us // 1_000,
        "generation": figures.generation,
        "members": figures.members,
        "partitions": figures.partitions,
        "unowned": figures.unowned,
        "pending_commands": figures.pending_commands,
        "settings": {name: value for name, value in asdict(view.settings).items() if name != "paused_by"},
        "last_change": None if view.last_change is None else asdict(view.last_change),
        "obstacles": [_obstacle(each) for each in obstacles],
        "planned": None if copied.planned is None else asdict(copied.planned),
        "evicted": sorted(view.evicted)[:MEMBERS_PER_PAGE],
        "roster": _roster(view, parts),
        "owners": _owners(copied, parts),
        "changes": [_change(each) for each in reversed(copied.changes[-MAX_CHANGES_SHOWN:])],
        "history": [asdict(each) for each in reversed(past)],
    }


def levels(slo: Mapping[str, float], past: Sequence[Rebalanced], lag_line: str | None) -> list[str]:
    """Return a line for each service level of a group."""
    return [*(level.line for level in service_level.levels(slo, past, None)), *([] if lag_line is None else [lag_line])]


def _obstacle(obstacle: Obstacle) -> dict[str, Any]:
    return {"kind": obstacle.kind, "text": obstacle.text, "until_ms": obstacle.until_ms}


# Members --------------------------------------------------------------------------------------------------------------


def _roster(view: GroupView, parts: Parts) -> dict[str, Any]:
    names = sorted(name for name in view.members if parts.member.lower() in name.lower())
    page, pages, shown = cut(names, parts.members_page, MEMBERS_PER_PAGE)
    lines = [_member(view.members[name]) for name in shown]
    return {"matching": len(names), "page": page, "pages": pages, "members": lines}


def _member(member: Member) -> dict[str, Any]:
    known, owners = member.registration, member.owners
    subscription = [] if known is None else list(known.subscription)
    return {
        "member": member.consumer,
        "state": member.state.value,
        "host": NOT_READABLE if known is None else known.host,
        "instance": None if known is None else known.instance_id,
        "rack": None if known is None else known.rack,
        "capacity": None if known is None else known.capacity,
        "pattern": None if known is None else known.pattern,
        "subscription": some(subscription, MAX_TOPICS_SHOWN),
        "count": None if owners is None else len(owners.partitions),
        "owns": NOT_READABLE if owners is None else ranges(owners.partitions),
        "pending": [
            {
                "option": pending.command.option,
                "count": None if pending.command.partitions is None else len(pending.command.partitions),
                "sent_at_ms": pending.sent_at_ms or None,
            }
            for pending in tuple(member.pending)
        ],
    }


def ranges(partitions: Mapping[TopicPartition, object]) -> str:
    """Return partitions as text: `orders 0-3, 7; payments 1`, at most MAX_TOPICS_SHOWN topics."""
    by_topic = fields.topics_to_ranges(partitions)
    texts = []
    for topic, found in islice(by_topic.items(), MAX_TOPICS_SHOWN):
        numbers = [str(first) if first == last else f"{first}-{last}" for first, last in found[:MAX_RANGES_SHOWN]]
        texts.append(f"{topic} " + some(numbers, MAX_RANGES_SHOWN, len(found)))
    return some(texts, MAX_TOPICS_SHOWN, len(by_topic), separator="; ")


def some(names: Sequence[str], limit: int, total: int | None = None, separator: str = ", ") -> str:
    """Return at most `limit` names, and how many more there are of `total`."""
    more = (len(names) if total is None else total) - limit
    return separator.join([*names[:limit], *([f"{more} more"] if more > 0 else [])])


def cut(names: Sequence[Any], page: int, size: int) -> tuple[int, int, Sequence[Any]]:
    """Return the nearest page that exists, how many there are, and the page's content."""
    pages = max(1, -(-len(names) // size))
    page = min(max(1, page), pages)
    return page, pages, names[(page - 1) * size : page * size]


# Owners ---------------------------------------------------------------------------------------------------------------


def _owners(copied: Copied, parts: Parts) -> dict[str, Any]:
    view = copied.view
    topics = sorted(name for name in copied.topics if name in view.topics and parts.topic.lower() in name.lower())
    page, pages, shown = cut(Lanes(view, topics), parts.lanes_page, LANES_PER_PAGE)
    owners = {partition: _owner(view, partition) for partition in shown}
    known = lanes.spans(copied.since_ms, copied.changes, owners)
    found = lanes.newest(known)
    first_ms = min((span.from_ms for of in found.values() for span in of), default=copied.since_ms)
    names = list(dict.fromkeys(span.member for of in found.values() for span in of))
    position = {name: number for number, name in enumerate(names)}
    return {
        "since_ms": copied.since_ms if found == known else first_ms,
        "page": page,
        "pages": pages,
        "matching": len(Lanes(view, topics)),
        "members": names,
        "lanes": [
            {
                "topic": topic,
                "partition": number,
                "spans": [[span.from_ms, span.to_ms, position[span.member]] for span in found[topic, number]],
            }
            for topic, number in shown
        ],
    }


class Lanes(Sequence[TopicPartition]):
    """All partitions of these topics, in order; a slice examines only the topics in it."""

    def __init__(self, view: GroupView, topics: Sequence[str]) -> None:
        """`topics` are known to the view."""
        self._topics = [(topic, view.topics[topic].partitions) for topic in topics]

    def __len__(self) -> int:
        """Return the number of partitions."""
        return sum(len(partitions) for _topic, partitions in self._topics)

    def __getitem__(self, wanted: int | slice) -> Any:  # noqa: ANN401  # one, or a list of them
        """Return partitions by position."""
        if isinstance(wanted, int):
            return self[wanted : wanted + 1][0]
        first, last, _step = wanted.indices(len(self))
        found: list[TopicPartition] = []
        before = 0
        for topic, partitions in self._topics:
            if before < last and first < before + len(partitions):
                numbers = sorted(partitions)[max(0, first - before) : last - before]
                found += [(topic, number) for number in numbers]
            before += len(partitions)
        return found


def _owner(view: GroupView, partition: TopicPartition) -> str | None:
    for name in view.holders(partition):
        member = view.members.get(name)
        if member is not None and member.owners is not None and partition in member.owners.partitions:
            return name
    return None


def _change(change: OwnerChange) -> dict[str, Any]:
    return {
        "at_ms": change.at_ms,
        "member": change.member,
        "gained": ranges(dict.fromkeys(change.gained)),
        "gained_count": len(change.gained),
        "lost": ranges(dict.fromkeys(change.lost)),
        "lost_count": len(change.lost),
    }
