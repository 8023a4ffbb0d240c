"""One new topic concerns many groups with many members: it delays neither the gateway's lease nor other groups."""

from __future__ import annotations

from collections.abc import Iterable
from unittest import mock
from uuid import UUID

import pytest

from tests.support.group_coordinator import REBALANCE_MS, Coordinator
from tests.support.kip848_group import coordinator_with, group_of, topics
from zkrebalancer.group_protocol import topic_news
from zkrebalancer.group_protocol.assignors import ASSIGNORS, Subscriber
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.effects import TopicsRead
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest, OffsetFetchRequest
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.topics import MAX_ALIKE, NO_ID, Topic, Topics

GROUPS = ("a", "b", "c")
CENTRAL = GroupProtocolSettings(assigns_centrally=True)


@pytest.fixture
def _few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_news, "LOOKS_PER_STEP", 1)


def join_each(coordinator: Coordinator, names: Iterable[str] = GROUPS, expression: str = ".*") -> None:
    """Let one client join each group."""
    for name in names:
        request = ConsumerGroupHeartbeatRequest(
            name,
            f"member-{name}",
            0,
            None,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=(),
            subscribed_topic_regex=expression,
            topic_partitions=(),
        )
        coordinator.send(request, 1)


def group(coordinator: Coordinator, name: str) -> ConsumerGroup:
    found = coordinator.machine._groups[name]
    assert isinstance(found, ConsumerGroup)
    return found


@pytest.mark.usefixtures("_few_looks")
def test_a_new_topic_is_told_to_some_groups_in_each_step() -> None:
    """In `TopicNews._tell_some`, tell all: with 300 groups and 1,000 topics that took a second, in one step."""
    coordinator = coordinator_with({"t": 1})
    join_each(coordinator)
    coordinator.step(topics({"t": 1, "u": 1}))
    assert [sorted(group(coordinator, name).seen) for name in GROUPS] == [["t", "u"], ["t"], ["t"]]
    for _ in GROUPS:
        coordinator.pass_time(1)
    assert [sorted(group(coordinator, name).seen) for name in GROUPS] == [["t", "u"]] * 3


@pytest.mark.usefixtures("_few_looks")
def test_a_group_that_is_gone_is_passed_over_and_later_news_replace_earlier_ones() -> None:
    """In `TopicNews._tell_some`, expect the group; in `read`, keep what was to be told."""
    coordinator = coordinator_with({"t": 1})
    join_each(coordinator)
    coordinator.step(topics({"t": 1, "u": 1}))
    coordinator.machine._forget(group(coordinator, "b"))
    coordinator.step(topics({"t": 1, "u": 1, "v": 1}))
    for _ in GROUPS:
        coordinator.pass_time(1)
    assert [sorted(group(coordinator, name).seen) for name in ("a", "c")] == [["t", "u", "v"]] * 2
    assert not coordinator.machine._news._untold


@pytest.mark.usefixtures("_few_looks")
def test_news_survive_the_failure_of_the_group_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `TIMER`, name this group, which requests about offsets may: others would hear nothing of the new topic."""
    coordinator = coordinator_with({"t": 1})
    join_each(coordinator)
    coordinator.step(topics({"t": 1, "u": 1}))
    monkeypatch.setattr("zkrebalancer.group_protocol.machine.for_unknown_group", mock.Mock(side_effect=KeyError))
    coordinator.failures = []
    coordinator.send(OffsetFetchRequest(""))
    assert [one.group_id for one in coordinator.failures] == [""]
    for _ in GROUPS:
        coordinator.pass_time(1)
    assert [sorted(group(coordinator, name).seen) for name in GROUPS] == [["t", "u"]] * 3


@pytest.mark.usefixtures("_few_looks")
def test_all_groups_know_the_ids_of_topics_at_once() -> None:
    """In `TopicNews.read`, rename nothing: clients report partitions by the new ids, as if they had given up theirs."""
    coordinator = coordinator_with({"t": 1}, CENTRAL)
    join_each(coordinator)
    made_up = Topic.of("t", NO_ID, 1)
    coordinator.step(TopicsRead({"t": made_up}))
    assert [group(coordinator, name).seen for name in GROUPS] == [{"t": made_up}] * 3


def test_members_that_subscribe_alike_share_what_they_select() -> None:
    """In `Topics.selected`, select anew: one new topic took three seconds with 3,000 members that want 10,000."""
    coordinator = coordinator_with({"t": 4, "u": 1})
    group_of(coordinator, "a", "b")
    known = coordinator.machine._topics
    selected = known.selected(("t", "x"), "u.*")
    assert selected == {"t", "u"}
    assert known.selected(("t", "x"), "u.*") is selected
    coordinator.step(topics({"t": 4, "u": 1, "x": 1}))
    assert known.selected(("t", "x"), "u.*") == {"t", "u", "x"}
    assert known.selected((), "u.*") is known.matching("u.*")


def test_few_subscriptions_are_remembered() -> None:
    """In `Topics.selected`, remember all: each may select ten thousand topics."""
    known = Topics()
    known.replace({"t": Topic(UUID(int=1), 1)})
    for number in range(3 * MAX_ALIKE):
        assert known.selected(("t", f"x{number}"), "") == {"t"}
    assert len(known._selected) == MAX_ALIKE


def test_what_all_members_select_is_found_whatever_their_order() -> None:
    known = Topics()
    known.replace({name: Topic(UUID(int=number), 1) for number, name in enumerate("tuvw")})
    alike, other = (("t", "u"), ""), ((), "v")
    assert known.selected_by_all([alike, alike, other, alike]).keys() == {"t", "u", "v"}
    assert known.selected_by_all([]) == {}


def test_an_assignor_gives_members_that_subscribe_alike_one_description_of_their_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `_assignor`, describe the topics of each member: with 300 members of 5,000 topics that took a second."""
    described: list[int] = []

    def decide(_strategy: str, problem: object) -> dict[str, object]:
        described.extend(id(member.threads) for member in problem.members.values())  # type: ignore[attr-defined]
        return {}

    monkeypatch.setattr("zkrebalancer.group_protocol.assignors.decide", decide)
    wanted = frozenset({"t", "u"})
    members = {name: Subscriber(wanted, frozenset()) for name in "ab"}
    ASSIGNORS["uniform"]({**members, "c": Subscriber(frozenset({"t"}), frozenset())}, {"t": 1, "u": 1})
    assert described[0] == described[1] != described[2]
