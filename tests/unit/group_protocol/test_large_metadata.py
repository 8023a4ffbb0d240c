"""What a consumer embeds in its requests costs a gateway little time, however many topics it names."""

from __future__ import annotations

import struct

import pytest

from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import GROUP, Coordinator
from tests.support.kip848_group import Client, coordinator_with
from zkrebalancer.group_protocol import consumer_protocol, stored
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer, OffsetDeleteAnswer
from zkrebalancer.group_protocol.consumer_protocol import (
    MAX_ENTRIES,
    MAX_METADATA_BYTES,
    SubscriptionError,
    read_assignment,
    read_subscription,
    read_version,
)
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import JoinGroupProtocol, OffsetDeleteRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredGroup, StoredMember, TooLargeGroupError

CENTRAL = GroupProtocolSettings(assigns_centrally=True)


def naming(count: int) -> bytes:
    """Return a subscription to this many topics without a name."""
    return struct.pack(">hi", 0, count) + bytes(2 * count) + struct.pack(">i", -1)


def owning(count: int) -> bytes:
    """Return a subscription to no topic with this many partitions of one, or of as many topics."""
    return struct.pack(">hiiihi", 1, 0, -1, 1, 0, count) + bytes(4 * count)


@pytest.mark.parametrize("metadata", [naming, owning])
def test_a_subscription_with_too_many_entries_is_refused_before_they_are_read(
    metadata: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_Reader.count`, spend nothing: millions of empty names fit into one request, and keep the gateway busy."""
    assert callable(metadata)
    assert read_subscription(metadata(MAX_ENTRIES - 1)).version in {0, 1}
    with pytest.raises(SubscriptionError, match="more than"):
        read_subscription(metadata(MAX_ENTRIES + 1))
    monkeypatch.setattr(consumer_protocol, "MAX_ENTRIES", 2)
    with pytest.raises(SubscriptionError, match="more than 2 entries"):
        read_assignment(struct.pack(">hihi", 1, 1, 0, 2) + bytes(8))


def test_a_version_is_read_without_what_follows() -> None:
    """In `read_version`, read the whole subscription: so did each SyncGroup."""
    assert read_version(b"\0\3?") == 3


@pytest.mark.parametrize("settings", [CENTRAL, GroupProtocolSettings()])
def test_a_join_with_too_much_metadata_is_refused_whatever_assigns(settings: GroupProtocolSettings) -> None:
    """In `Machine._check_metadata`, accept any size, or look at each protocol for itself."""
    coordinator = coordinator_with({"t": 4}, settings)
    half = bytes(MAX_METADATA_BYTES // 2)
    at_limit = coordinator.join(protocols=(JoinGroupProtocol("a", half), JoinGroupProtocol("b", half)))
    assert coordinator.is_waiting(at_limit) or coordinator.join_error(at_limit) is not E.GROUP_MAX_SIZE_REACHED
    coordinator.reports.clear()
    too_large = coordinator.join(protocols=(JoinGroupProtocol("a", half), JoinGroupProtocol("b", half + b"?")))
    assert coordinator.join_error(too_large) is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.reports == ["a join is refused: its metadata have 1048577 bytes, more than 1048576"]


def test_the_subscriptions_of_all_members_of_a_group_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `migration.upgraded` or `classic_requests._subscribed`, let each member have a limit of its own only."""
    monkeypatch.setattr("zkrebalancer.group_protocol.classic_requests.MAX_ENTRIES_OF_GROUP", 5)
    monkeypatch.setattr("zkrebalancer.group_protocol.migration.MAX_ENTRIES_OF_GROUP", 12)
    coordinator = coordinator_with({"t": 4, "u": 4})
    consumers = [ClassicConsumer(coordinator, name) for name in "ab"]
    settle(coordinator, consumers)
    asked = OffsetDeleteRequest(GROUP, ("u",))
    assert coordinator.ask(asked, OffsetDeleteAnswer).subscribed_topics == frozenset()
    assert len(consumers[0].owned) == 2
    settle(coordinator, [*consumers, ClassicConsumer(coordinator, "c")])
    assert coordinator.ask(asked, OffsetDeleteAnswer).subscribed_topics == {"u"}  # it may be
    newcomer = Client(coordinator, "d")
    assert newcomer.beat() is E.GROUP_ID_NOT_FOUND


def test_a_newcomer_is_told_why_a_group_cannot_change_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `migration.upgraded`, say that it is no consumer group: nobody would look for the limit."""
    coordinator = coordinator_with({"t": 4})
    settle(coordinator, [ClassicConsumer(coordinator, name) for name in "ab"])
    coordinator.reports.clear()
    for name, limit in (("migration.MAX_ENTRIES_OF_GROUP", 5), ("classic_requests.MAX_ENTRIES_OF_GROUP", 1)):
        monkeypatch.setattr(f"zkrebalancer.group_protocol.{name}", limit)
    client = Client(coordinator, "d")
    client.send()
    told = coordinator.answer(client.ticket, ConsumerGroupHeartbeatAnswer)
    why = "cannot change to the consumer protocol while it has its classic members"
    assert str(told.error_message).startswith(f"Group g {why}: a")
    assert str(told.error_message).endswith(" bytes cannot be read: more than 5 entries of all members")
    assert coordinator.ask(OffsetDeleteRequest(GROUP, ("u",)), OffsetDeleteAnswer).subscribed_topics == {"u"}
    kept = coordinator.reports
    assert kept[0] == f"a join is refused. {told.error_message}"
    assert kept[1].startswith("no offsets are deleted, because any topic may be in use: a subscription of ")


def test_a_newcomer_is_told_that_a_group_has_too_many_members_to_change_its_protocol() -> None:
    coordinator = coordinator_with({"t": 4}, GroupProtocolSettings(consumer_group_max_size=2))
    settle(coordinator, [ClassicConsumer(coordinator, name) for name in "ab"])
    client = Client(coordinator, "d")
    client.send()
    told = coordinator.answer(client.ticket, ConsumerGroupHeartbeatAnswer)
    assert told.error_code is E.GROUP_ID_NOT_FOUND
    assert str(told.error_message).endswith(": it has 2 members already, and may have 2 then")


def settle(coordinator: Coordinator, consumers: list[ClassicConsumer]) -> None:
    for _ in range(40):
        for consumer in consumers:
            consumer.act()
        coordinator.pass_time(1_000)


def test_a_group_that_could_not_be_read_again_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `to_bytes`, write however many bytes: zeros are compressed a thousandfold, and the group would be lost."""
    members = tuple(
        StoredMember(f"m{number}", None, "c", "h", 1, 1, (JoinGroupProtocol("p", bytes(400)),), b"")
        for number in range(3)
    )
    monkeypatch.setattr(stored, "MAX_WRITTEN_BYTES", 1_500)
    group = StoredGroup(1, "consumer", "p", "m0", is_assigned=False, members=members[:2])
    assert stored.from_bytes(stored.to_bytes(group)) == group
    with pytest.raises(TooLargeGroupError):
        stored.to_bytes(StoredGroup(1, "consumer", "p", "m0", is_assigned=False, members=members))
