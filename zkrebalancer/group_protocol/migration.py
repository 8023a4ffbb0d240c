"""A group changes its protocol while its members continue: conversion between the two stored forms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zkrebalancer.group_protocol.classic_group import ClassicGroup
from zkrebalancer.group_protocol.classic_roster import ClassicMember
from zkrebalancer.group_protocol.consumer_classic import named
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.consumer_protocol import (
    MAX_ENTRIES_OF_GROUP,
    PROTOCOL_TYPE,
    Entries,
    Subscription,
    SubscriptionError,
    needs_own_assignor,
    read_assignment,
    read_subscription,
    read_version,
    write_assignment,
)
from zkrebalancer.group_protocol.consumer_roster import ClassicSide, ConsumerMember, to_stored
from zkrebalancer.group_protocol.consumer_states import ConsumerMemberState
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.reconciliation import Partition, Partitions, Position
from zkrebalancer.group_protocol.refusals import RefusedError
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredGroup, StoredMember, StoredTopic
from zkrebalancer.group_protocol.topics import Topics


def upgraded(group: ClassicGroup, topics: Topics, max_size: int) -> StoredConsumerGroup:
    """Return a classic consumer group as a KIP-848 group, which will have one more member, and `max_size` at most.

    Members keep what they have; the generation becomes their epoch.

    Raises:
        RefusedError: it cannot become one.

    """
    classic = list(group.roster.members.values())
    is_own = any(needs_own_assignor(protocol.name for protocol in member.protocols) for member in classic)
    if is_own or group.roster.protocol_type != PROTOCOL_TYPE:
        report = (
            "a consumer's join is refused: the group's members assign among themselves, as those of Kafka Streams do"
        )
        raise RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.", report)
    if len(classic) >= max_size:
        raise _kept_out(group, f"it has {len(classic)} members already, and may have {max_size} then")
    entries = Entries(MAX_ENTRIES_OF_GROUP, " of all members")
    try:
        subscriptions = [read_subscription(_metadata(group, member), entries) for member in classic]
        assignments = [read_assignment(member.assignment, entries) for member in classic]
    except SubscriptionError as error:
        raise _kept_out(group, str(error)) from None
    held = _held([*assignments, *(subscription.owned for subscription in subscriptions)], topics)
    members = [
        _upgraded_member(group, member, subscription, assigned | owned)
        for member, subscription, assigned, owned in zip(
            classic, subscriptions, held[: len(classic)], held[len(classic) :], strict=True
        )
    ]
    wanted = {name for member in members for name in member.topic_names if name in topics.by_name}
    seen = tuple(
        StoredTopic(name, topics.by_name[name].topic_id.bytes, topics.by_name[name].partition_count)
        for name in sorted(wanted)
    )
    stored = tuple(to_stored(member) for member in members)
    return StoredConsumerGroup(group.generation_id, group.generation_id, seen, stored)


def _kept_out(group: ClassicGroup, reason: str) -> RefusedError:
    text = f"Group {group.group_id} cannot change to the consumer protocol while it has its classic members: {reason}"
    return RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, text, f"a join is refused. {text}")


def _metadata(group: ClassicGroup, member: ClassicMember) -> bytes:
    return member.metadata(group.protocol_name) or member.protocols[0].metadata


def _held(claims: Iterable[Mapping[str, tuple[int, ...]]], topics: Topics) -> list[Partitions]:
    """Return the existing partitions of each claim, without those of the claims before it.

    All assignments come first: a leader may have given a partition to two members. Then comes what members owned when
    they joined: while partitions are being assigned, no assignment is known, but cooperative members read on, also what
    they have just been told to give up.
    """
    taken: set[Partition] = set()
    held = []
    for claim in claims:
        found = {
            (topics.by_name[topic].topic_id, number)
            for topic, numbers in claim.items()
            if topic in topics.by_name
            for number in numbers
        }
        held.append(frozenset(found - taken))
        taken |= found
    return held


def _upgraded_member(
    group: ClassicGroup, member: ClassicMember, subscription: Subscription, held: Partitions
) -> ConsumerMember:
    return ConsumerMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        subscription.rack_id,
        member.rebalance_timeout_ms,
        tuple(sorted(set(subscription.topics))),
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
        position=Position(group.generation_id, group.generation_id, ConsumerMemberState.STABLE, held),
        target=held,
    )


def downgraded(group: ConsumerGroup) -> StoredGroup | None:
    """Return a group with only classic members as a classic group; None if it is too large."""
    members = list(group.roster.members.values())
    if len(members) > group.world.settings.group_max_size:
        return None
    stored = tuple(_downgraded_member(group, member) for member in members)
    common = set.intersection(*({protocol.name for protocol in member.protocols} for member in stored))
    name = next(protocol.name for protocol in stored[0].protocols if protocol.name in common)
    return StoredGroup(group.group_epoch, PROTOCOL_TYPE, name, stored[0].member_id, is_assigned=True, members=stored)


def _downgraded_member(group: ConsumerGroup, member: ConsumerMember) -> StoredMember:
    classic = member.classic or ClassicSide(0, ())
    version = read_version(classic.protocols[0].metadata)
    return StoredMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        classic.session_timeout_ms,
        member.rebalance_timeout_ms,
        classic.protocols,
        write_assignment(version, named(group, member.position.assigned)),
    )


def go_on_as_classic(classic: ClassicGroup, stored: StoredGroup, group: ConsumerGroup) -> None:
    """Let a classic group continue with the members of a KIP-848 group, and call them to join."""
    classic.restore(stored)
    classic.former_generations = {one.member_id: one.position.epoch for one in group.roster.members.values()}
    classic.prepare_rebalance("the last KIP-848 member is gone")
