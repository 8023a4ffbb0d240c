"""Brokers with an `inter.broker.protocol.version` below 2.8 give topics no ids: groups get along without them."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.central_group import Outside
from tests.support.classic_consumer import ClassicConsumer
from tests.support.group_coordinator import Coordinator
from tests.support.kip848_group import Client
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer
from zkrebalancer.group_protocol.consumer_roster import ConsumerMember, ConsumerRoster
from zkrebalancer.group_protocol.consumer_states import ConsumerMemberState
from zkrebalancer.group_protocol.effects import TopicsRead
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.reconciliation import Position
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.topics import NO_ID, Topic

CENTRAL = GroupProtocolSettings(assigns_centrally=True)


def read(*, with_ids: bool) -> TopicsRead:
    """Return the topics "t" and "z", as all brokers show them."""
    ids = {name: UUID(int=at) if with_ids else NO_ID for at, name in enumerate(("t", "z"), 1)}
    return TopicsRead({name: Topic.of(name, topic_id, 4) for name, topic_id in ids.items()})


def coordinator(*, with_ids: bool, settings: GroupProtocolSettings | None = None) -> Coordinator:
    made = Coordinator(settings)
    made.topics_read = read(with_ids=with_ids)
    made.step(made.topics_read)
    return made


def test_a_client_gets_partitions_of_its_own_topic() -> None:
    """In `Topic.of`, keep the id that all have: its partitions were taken for those of the last topic, "z"."""
    groups = coordinator(with_ids=False, settings=CENTRAL)
    outside, client = Outside(groups), ClassicConsumer(groups, "a")
    for _ in range(20):
        client.act()
        outside.share(4)
    assert client.numbers() == [0, 1, 2, 3]
    assert {topic for one in groups.standings.values() for topic, _number in one.held} == {"t"}


@pytest.mark.parametrize("with_restart", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("is_eager", [False, True])
def test_nobody_notices_when_topics_get_ids(*, with_ids: bool, is_eager: bool, with_restart: bool) -> None:
    """In `ConsumerGroup.renew_ids`, do nothing: a change of a made-up id took all partitions from their owners.

    A gateway that starts may also meet a broker that does not show the ids yet.
    """
    groups = coordinator(with_ids=with_ids, settings=CENTRAL)
    outside = Outside(groups)
    clients = [ClassicConsumer(groups, name, is_eager=is_eager) for name in "ab"]
    for _ in range(60):
        for client in clients:
            client.act()
            outside.share(4)
        groups.pass_time(100)
    owned = [client.numbers() for client in clients]
    before = [(client.generation, numbers) for client, numbers in zip(clients, owned, strict=True)]
    assert all(owned)
    groups.unheard, groups.topics_read = [], read(with_ids=not with_ids)
    if with_restart:
        groups.crash()
        outside.adopt()
    else:
        groups.step(groups.topics_read)
    for _ in range(20):
        for client in clients:
            client.act()
            assert [(one.generation, one.numbers()) for one in clients] == before
        groups.pass_time(100)
    assert groups.unheard
    for reported in groups.unheard:
        held = [sorted(number for _topic, number in one.held) for one in reported.members]
        assert sorted(held) == sorted(owned)


def test_what_is_held_is_not_free_once_its_topic_has_another_id() -> None:
    """In `ConsumerRoster.renew_ids`, keep the holders: until they report again, others may get what they hold."""
    roster, (former, present) = ConsumerRoster(), (UUID(int=at) for at in (1, 2))
    position = Position(1, 1, ConsumerMemberState.STABLE, frozenset({(former, 0)}))
    roster.add(ConsumerMember("a", None, position=position))
    roster.renew_ids({former: present})
    assert [roster.is_free((topic, 0)) for topic in (former, present)] == [True, False]
    roster.remove(roster.members["a"])
    assert roster.is_free((present, 0))


@pytest.mark.parametrize("settings", [None, CENTRAL])
def test_clients_that_need_ids_are_refused(settings: GroupProtocolSettings | None) -> None:
    """In `check_ids`, let them join: they would ask the brokers for the names of ids that do not exist, for ever."""
    groups = coordinator(with_ids=False, settings=settings)
    for client in (Client(groups, "a"), Client(groups, "b", (), regex="z.*")):
        assert client.beat() is E.UNSUPPORTED_VERSION
        text = groups.answer(client.ticket, ConsumerGroupHeartbeatAnswer).error_message
        assert text is not None
        assert "has no id" in text
    assert Client(groups, "c", ("none",)).beat() is E.NONE
    groups.step(read(with_ids=True))
    assert Client(groups, "a").beat() is E.NONE


def test_a_member_whose_topic_is_made_later_without_an_id_is_refused_too() -> None:
    """In `check_ids`, look only at what joins."""
    groups = Coordinator(CENTRAL)
    groups.step(TopicsRead({}))
    client = Client(groups, "a")
    assert client.beat() is E.NONE
    groups.step(read(with_ids=False))
    assert client.beat() is E.UNSUPPORTED_VERSION
    assert client.beat(-1) is E.NONE  # it can leave
