"""Finds why a group is stuck, from ZooKeeper's contents and from what the leader publishes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from zkrebalancer.protocol.command import StopFetcher
from zkrebalancer.protocol.fields import MAX_EPOCH_MS
from zkrebalancer.protocol.obstacles import BACKING_OFF, REFUSED, UNAPPROVED, PublishedObstacle
from zkrebalancer.protocol.ownership import EvictionRecord
from zkrebalancer.protocol.registration import stop_limit_ms
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.view import RECORD_GONE, SESSIONLESS, GroupView, Member

MAX_SHOWN = 20  # of each kind


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason, as a line for people and as values.

    `until_ms`: when it ends at the latest, since the epoch; `more`: how many reasons of its kind it stands for.
    """

    kind: str
    text: str
    member: str | None = None
    path: str | None = None
    right: str | None = None
    until_ms: int | None = None
    more: int = 0


def find_obstacles(
    view: GroupView, *, is_led: bool, published: Sequence[PublishedObstacle], unpublished: int
) -> list[Obstacle]:
    """Return why a group is stuck; empty if it is not. Of each kind, the first reasons, and how many more there are.

    `published`: the leader's reasons for this group and for all; `unpublished`: how many more it has, for any group.
    """
    more = f"{unpublished} more reasons, of this group or of others, are not published; the leader's log has them"
    return _bounded(
        *([] if is_led else [Obstacle("no-coordinator", "no coordinator leads; nothing is rebalanced until one does")]),
        *map(_published, published),
        *([Obstacle("unpublished", more)] if unpublished else []),
        *_of_settings(view.settings),
        *(obstacle for name in sorted(view.members) for obstacle in _of_member(view.members[name], view.settings)),
        *_of_absent(view),
        *(_of_lease(name, record) for name, record in sorted(view.evicted.items())),
    )


def _bounded(*obstacles: Obstacle) -> list[Obstacle]:
    counts: Counter[str] = Counter()
    shown = []
    for each in obstacles:
        counts[each.kind] += 1
        if counts[each.kind] <= MAX_SHOWN:
            shown.append(each)
    more = {kind: count - MAX_SHOWN for kind, count in counts.items() if count > MAX_SHOWN}
    return [*shown, *(Obstacle(kind, f"{count} more of this kind", more=count) for kind, count in more.items())]


def _published(obstacle: PublishedObstacle) -> Obstacle:
    where = "" if obstacle.group is not None else " (affects all groups)"
    if obstacle.kind == REFUSED:
        right = f", right {obstacle.right} is missing" if obstacle.right else ""
        text = f"ZooKeeper refuses {obstacle.path}: {obstacle.reason}{right}; retried at growing intervals{where}"
    elif obstacle.kind == UNAPPROVED:
        text = (
            f"a plan waits for `groups resume`: {obstacle.reason}, more than approve_moves_above; until then, only"
            " partitions without an owner are assigned"
        )
    elif obstacle.kind == BACKING_OFF:
        text = f"the last rebalance did not succeed: {obstacle.reason}; retried at growing intervals"
    else:
        text = f"in quarantine after a bug: {obstacle.reason}; retried at growing intervals"
    return Obstacle(obstacle.kind, text, path=obstacle.path, right=obstacle.right)


def _of_settings(settings: GroupSettings) -> Iterator[Obstacle]:
    if settings.starts_paused:
        by = f"operation {settings.paused_by}" if settings.paused_by else "an operation that does not name itself"
        yield Obstacle("paused", f"starts are paused by {by}; a pause that nothing renews ends after a minute")
    if settings.frozen:
        end_ms = settings.frozen_until_ms if settings.thaws else None
        until = f" until {_time(end_ms)}" if end_ms is not None else ""
        text = f"frozen{until}: no owned partition moves, partitions without an owner are assigned"
        yield Obstacle("frozen", text, until_ms=end_ms)
    for what, names in (("member", settings.drained_members), ("host", settings.drained_hosts)):
        for name in names:
            yield Obstacle("drained", f"{what} {name} is drained: it gets nothing that another member reads")


def _of_member(member: Member, settings: GroupSettings) -> Iterator[Obstacle]:
    name = member.consumer
    if not member.registered:
        yield Obstacle("unregistered", f"{name} is not registered any more, its session has not ended", name)
    elif member.registration is None:
        yield Obstacle("unreadable", f"{name} gets nothing: its registration cannot be read", name)
    if member.blocked_topics():
        yield Obstacle("unreadable", f"{name} may hold anything until it is evicted: its record cannot be read", name)
    if member.false_claims:
        yield Obstacle(
            "false-claim", f"{name} claims {len(member.false_claims)} partitions that it was not given", name
        )
    for kind, is_so, why in (
        ("record-gone", member.is_record_gone, RECORD_GONE),
        ("sessionless", member.is_sessionless, SESSIONLESS),
    ):
        if is_so:
            yield Obstacle(kind, f"{name} gets nothing, and will be evicted: {why}", name)
    for pending in tuple(member.pending)[:1]:  # a page looks at it in a thread, while the leader goes on
        is_stop = isinstance(pending.command, StopFetcher)
        what = "stop" if is_stop else "start"
        allowed_ms = settings.rebalance_timeout_ms
        limit_ms = stop_limit_ms(member.stop_timeout_ms, allowed_ms) if is_stop else allowed_ms
        until_ms = pending.sent_at_ms + limit_ms
        text = f"waiting for {name} to acknowledge a {what}, until {_time(until_ms)} if the leader does not change"
        yield Obstacle("waiting", text, name, until_ms=until_ms)


def _of_absent(view: GroupView) -> Iterator[Obstacle]:
    """Yield the static members that are away, if partitions wait for them.

    ZooKeeper has no host of a member that is away: a leader knows those that left under it, and others know none.
    """
    present = {member.instance for member in view.members.values()}
    for instance, (record, _version) in sorted(view.statics.items()):
        has_grace = record.grace_ms is not None  # then the member may still read them, so no drain ends the wait
        away = view.away.get(instance)
        host = away.registration.host if away is not None and away.registration is not None else None
        is_drained = view.settings.drains(record.consumer, instance, host) and not has_grace
        count = sum(not view.holders(partition) for partition in record.partitions)
        if record.deadline_ms is None or instance in present or is_drained or not count:
            continue
        text = f"static member {instance} is away: {count} of its partitions wait for it, until about"
        is_doubtful = host is None and view.settings.drained_hosts
        doubt = ", unless the leader saw it leave a drained host" if is_doubtful else ""
        remedy = "" if has_grace else f"{doubt}; `groups drain {view.group} {instance}` ends that"
        until_ms = min(record.deadline_ms, MAX_EPOCH_MS)  # another program may have written it
        yield Obstacle("static", f"{text} {_time(until_ms)}{remedy}", record.consumer, until_ms=until_ms)


def _of_lease(name: str, record: EvictionRecord | None) -> Obstacle:
    if record is None:
        return Obstacle("lease", f"waiting for the lease of the evicted {name}: its record cannot be read", name)
    until_ms = record.evicted_at_ms + record.lease_ms
    text = f"waiting for the lease of the evicted {name}, until about {_time(until_ms)}"
    return Obstacle("lease", text, name, until_ms=until_ms)


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1_000, UTC).isoformat(timespec="seconds")
