"""A KIP-848 or central group that does not fit into one write: whoever made it larger is refused, the others go on."""

from __future__ import annotations

import pytest

from tests.support.central_group import Outside
from tests.support.classic_consumer import NEWCOMER
from tests.support.group_coordinator import GROUP, REBALANCE_MS, SESSION_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with, described, group_of, settle
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.effects import Stored
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest, JoinGroupRequest
from zkrebalancer.group_protocol.settings import FIRST_LIMIT_MS, LONGEST_LIMIT_MS, GroupProtocolSettings

CENTRAL = GroupProtocolSettings(assigns_centrally=True)
LONG = "t|" + "x" * 500


def finish(coordinator: Coordinator, members: int = 2, length: int = 400) -> None:
    """Finish writes; those with more members, or with a longer expression, are too large."""
    while coordinator.writes:
        write = coordinator.writes.pop(0)
        content = write.content
        assert isinstance(content, stored.StoredConsumerGroup)
        if len(content.members) > members or any(len(one.topic_regex) > length for one in content.members):
            coordinator.step(Stored(write.write_id, E.GROUP_MAX_SIZE_REACHED))
        else:
            coordinator.keep(write.group_id, content)
            coordinator.step(Stored(write.write_id))


def pair(settings: GroupProtocolSettings | None = None) -> tuple[Coordinator, list[Client]]:
    """Return a group of two, of which writes finish only with `finish`."""
    coordinator = coordinator_with({"t": 4}, settings)
    if settings is CENTRAL:
        clients = [Client(coordinator, name) for name in "ab"]
        outside = Outside(coordinator)
        for _ in range(20):
            for client in clients:
                client.beat()
                outside.share(4)
            coordinator.pass_time(1_000)
    else:
        clients = group_of(coordinator, "a", "b")
    coordinator.stores_at_once = False
    return coordinator, clients


def group(coordinator: Coordinator) -> ConsumerGroup:
    found = coordinator.machine._groups[GROUP]
    assert isinstance(found, ConsumerGroup)
    return found


def beat(client: Client) -> E:
    client.send()
    finish(client.coordinator)
    return client.receive()


def change(client: Client, *, regex: str | None = None, names: tuple[str, ...] | None = None) -> E:
    """Send another subscription."""
    ticket = client.coordinator.send(
        ConsumerGroupHeartbeatRequest(
            GROUP,
            client.name,
            client.epoch,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_regex=regex,
            subscribed_topic_names=names,
        ),
        1,
    )
    client.ticket = ticket
    finish(client.coordinator)
    return client.receive()


@pytest.mark.parametrize("settings", [None, CENTRAL], ids=["client", "central"])
def test_only_the_newcomer_is_refused_and_the_others_keep_what_they_have(
    settings: GroupProtocolSettings | None,
) -> None:
    """In `SizeLimit.shrink`, keep the newcomer: nothing could be stored, and all members would get its error."""
    coordinator, members = pair(settings)
    owned = [client.numbers() for client in members]
    newcomer = Client(coordinator, "c")
    newcomer.send()
    members[0].send()
    finish(coordinator)
    assert newcomer.receive() is E.GROUP_MAX_SIZE_REACHED
    assert members[0].receive() is E.NONE
    assert set(group(coordinator).roster.members) == {"a", "b"}
    for _ in range(5):
        assert {beat(client) for client in members} == {E.NONE}
        coordinator.pass_time(1_000)
    assert [client.numbers() for client in members] == owned
    assert newcomer.beat() is E.GROUP_MAX_SIZE_REACHED  # at once, without a write
    coordinator.crash()
    assert {beat(client) for client in members} == {E.NONE}


def test_a_newcomer_may_take_the_place_of_a_member_and_may_try_again_later() -> None:
    coordinator, (a, b) = pair()
    newcomer = Client(coordinator, "c")
    assert beat(newcomer) is E.GROUP_MAX_SIZE_REACHED
    b.send(-1)
    finish(coordinator)
    assert beat(newcomer) is E.NONE
    for _ in range(FIRST_LIMIT_MS // 10_000 + 1):
        coordinator.pass_time(10_000)
        assert {beat(one) for one in (a, newcomer)} == {E.NONE}
    assert group(coordinator).size_limit.max_size == CENTRAL.consumer_group_max_size
    coordinator.stores_at_once = True
    b = Client(coordinator, "b")
    settle(coordinator, a, b, newcomer)


def test_a_group_that_is_too_large_again_admits_nobody_for_twice_as_long() -> None:
    """In `SizeLimit.shrink`, wait as long each time: the group would be stored in vain every minute."""
    coordinator, members = pair()
    limit = group(coordinator).size_limit
    usual = limit.max_size
    waited_s = []
    for _ in range(3):
        assert beat(Client(coordinator, "c")) is E.GROUP_MAX_SIZE_REACHED
        seconds = 0
        while limit.max_size != usual:
            coordinator.pass_time(10_000)
            assert {beat(client) for client in members} == {E.NONE}
            seconds += 10
        waited_s.append(seconds)
    assert waited_s == [60, 120, 240]
    assert LONGEST_LIMIT_MS >= 240_000


@pytest.mark.parametrize("settings", [None, CENTRAL], ids=["client", "central"])
def test_a_change_that_makes_a_member_too_large_is_taken_back(settings: GroupProtocolSettings | None) -> None:
    """In `SizeLimit.shrink`, look for newcomers only: all members would get the error of the change."""
    coordinator, (a, b) = pair(settings)
    owned = [a.numbers(), b.numbers()]
    assert change(a, regex=LONG) is E.GROUP_MAX_SIZE_REACHED
    for _ in range(5):
        assert {beat(a), beat(b)} == {E.NONE}
    assert group(coordinator).roster.members["a"].topic_regex == ""
    assert [a.numbers(), b.numbers()] == owned
    assert change(a, regex="t|u") is E.GROUP_MAX_SIZE_REACHED  # at once: the group may not grow for a while
    assert not coordinator.writes
    assert beat(a) is E.NONE
    assert change(b, names=("u",)) is E.NONE  # no longer than before
    coordinator.crash()
    assert beat(a) is E.NONE


def test_a_change_is_not_taken_back_if_the_group_is_too_large_because_of_a_newcomer() -> None:
    coordinator, (a, b) = pair()
    newcomer = Client(coordinator, "c")
    newcomer.send()
    a.ticket = coordinator.send(
        ConsumerGroupHeartbeatRequest(GROUP, "a", a.epoch, subscribed_topic_regex="t|uv", topic_partitions=None), 1
    )
    finish(coordinator)
    assert newcomer.receive() is E.GROUP_MAX_SIZE_REACHED
    assert a.receive() is E.NONE
    assert group(coordinator).roster.members["a"].topic_regex == "t|uv"
    assert beat(b) is E.NONE


def test_nobody_gets_the_error_of_a_size_that_nobody_caused() -> None:
    """In `ConsumerGroup._not_stored`, pass the error on: clients may end on it, though they changed nothing."""
    coordinator, (a, b) = pair()
    b.send(-1)
    a.send()
    while coordinator.writes:
        coordinator.step(Stored(coordinator.writes.pop(0).write_id, E.GROUP_MAX_SIZE_REACHED))
    assert b.receive() is E.COORDINATOR_NOT_AVAILABLE
    coordinator.pass_time(2_000)
    finish(coordinator)
    assert a.receive() is E.NONE
    assert {beat(a), beat(a)} == {E.NONE}
    assert a.numbers() == [0, 1, 2, 3]


def test_a_static_member_that_returns_is_no_newcomer() -> None:
    """In `_key`, take the member id: a member that only restarted would be refused with the newcomer."""
    coordinator = coordinator_with({"t": 4})
    former = Client(coordinator, "a", instance_id="i")
    other = Client(coordinator, "b")
    settle(coordinator, former, other)
    former.beat(-2)
    coordinator.stores_at_once = False
    newcomer, later = Client(coordinator, "c"), Client(coordinator, "a2", instance_id="i")
    coordinator.send(ConsumerGroupHeartbeatRequest(GROUP, "b", other.epoch, subscribed_topic_regex="u"), 1)
    newcomer.send()  # these two are in the write after that one
    later.send()
    finish(coordinator)
    assert newcomer.receive() is E.GROUP_MAX_SIZE_REACHED
    assert later.receive() is E.NONE
    assert beat(other) is E.NONE


def test_a_classic_newcomer_of_a_central_group_is_refused_too() -> None:
    """In `SizeLimit.shrink`, do not refuse a held join first: the client would join again with the same id at once."""
    coordinator, members = pair(CENTRAL)
    join = JoinGroupRequest(GROUP, "", SESSION_MS, "consumer", NEWCOMER, REBALANCE_MS)
    ticket = coordinator.send(join, 3)
    finish(coordinator)
    assert coordinator.join_error(ticket) is E.GROUP_MAX_SIZE_REACHED
    assert {beat(client) for client in members} == {E.NONE}
    assert coordinator.join_error(coordinator.send(join, 3)) is E.GROUP_MAX_SIZE_REACHED
    assert len(described(coordinator).members) == len(members)


def test_a_member_of_a_group_at_its_limit_may_come_from_a_longer_address() -> None:
    """In `_size`, count the address: a member would be refused for good because another host or NAT has its traffic."""
    coordinator, (a, _b) = pair()
    assert beat(Client(coordinator, "c")) is E.GROUP_MAX_SIZE_REACHED
    a.ticket = coordinator.send(ConsumerGroupHeartbeatRequest(GROUP, "a", a.epoch), 1, client_host="/10.100.100.100")
    finish(coordinator)
    assert a.receive() is E.NONE
    assert group(coordinator).roster.members["a"].client_host == "/10.100.100.100"
    assert change(a, regex=LONG) is E.GROUP_MAX_SIZE_REACHED
    assert group(coordinator).roster.members["a"].client_host == "/127.0.0.1"  # from where it asked last
