"""Functions of the agent that only Spark queries use."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from consumer_agent.membership.events import Origin
from consumer_agent.runtime.notices import Tell
from consumer_agent.spark import PlanningConsumer
from tests.support.deadlines import WITHIN_S
from tests.unit.consumer_agent.admin import NO_ANSWER, Admin
from tests.unit.consumer_agent.region.test_own_state import SETTINGS, begun
from zkrebalancer.pipeline.source import membership
from zkrebalancer.pipeline.source.kafka import Logs
from zkrebalancer.pipeline.source.membership import Membership
from zkrebalancer.pipeline.source.options import parse
from zkrebalancer.protocol.fields import TopicPartition

ONE, OTHER = ("orders", 0), ("orders", 1)
OPTIONS = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g", "topics": "orders"}
SOON_S = 0.05


def latest(partition: TopicPartition, _where: str | int) -> int:
    """Answer as Kafka does while the only broker of one partition is away."""
    if partition == OTHER:
        raise NO_ANSWER
    return 9


def test_the_ends_of_other_brokers_logs_are_known_while_one_is_away() -> None:
    """As it was: librdkafka dropped all answers of a request if one leader did not answer, so nothing was planned."""
    admin = Admin(latest)
    with mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=admin):
        consumer = PlanningConsumer(enable_auto_commit=False, **SETTINGS)
        begun(consumer)
        assert consumer.ends([ONE, OTHER], WITHIN_S) == {ONE: 9}
        assert consumer.ends([], WITHIN_S) == {}


def test_a_client_that_does_not_answer_holds_a_query_up_for_a_moment_only() -> None:
    admin = Admin(latest, holds=True)
    with mock.patch("consumer_agent.kafka.offset_queries.AdminClient", return_value=admin):
        consumer = PlanningConsumer(enable_auto_commit=False, **SETTINGS)
        begun(consumer)
        assert consumer.ends([ONE], SOON_S) == {}


def test_partitions_that_are_not_read_for_want_of_an_end_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = mock.Mock(spec=PlanningConsumer)
    consumer.assignment.return_value, consumer.position.return_value = [ONE, OTHER], {}
    consumer.advance.return_value, consumer.origins.return_value = {}, {}
    monkeypatch.setattr(membership, "PlanningConsumer", mock.Mock(return_value=consumer))
    monkeypatch.setattr(membership, "Logs", mock.Mock(spec=Logs))
    member = Membership(parse(OPTIONS))
    told = []
    for ends in ({ONE: 9}, {ONE: 9}, {ONE: 9, OTHER: 9}, {}):
        caplog.clear()
        consumer.ends.return_value = ends
        member.plan(10)
        told.append([record.getMessage() for record in caplog.records if record.levelno == logging.WARNING])
    text = "Kafka at b:1 does not report the ends of {} partitions, such as orders/{}: only targets are read"
    assert told == [[text.format(1, 1)], [], [], [text.format(2, 0)]]


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_nothing_is_planned_by_the_end_of_a_topic_that_was_made_anew_meanwhile(*, is_made_anew: bool) -> None:
    """In `PlanningConsumer.advance`, ask for no generation: the batch went beyond the end, and never ended."""
    consumer = PlanningConsumer(enable_auto_commit=False, **SETTINGS)
    begun(consumer)._look = None
    shared = consumer._frontend.shared
    shared.emit_until(2**60)
    shared.admit(ONE, 1, 190)
    shared.origins[ONE] = Origin("then", 0)
    shared.tell(Tell.ASSIGNED, [ONE])
    with mock.patch.multiple(membership, PlanningConsumer=mock.Mock(return_value=consumer), Logs=mock.DEFAULT):
        member = Membership(parse(OPTIONS))
    member.poll()

    def ends(*_: object) -> dict[TopicPartition, int]:
        if is_made_anew:  # its stop is acknowledged at once, as no batch is in flight
            shared.admit(ONE, 2, 0)
        return {ONE: 200}

    with mock.patch.object(consumer, "ends", ends):
        assert [(one.begin, one.end) for one in member.plan(1_000)] == [(190, 200)] * (not is_made_anew)
