"""What a group has at Kafka's brokers is looked at once, and decides whether partitions may begin."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumer_agent.errors import ConsumerError, GroupInUseError, OffsetsElsewhereError
from consumer_agent.kafka import elsewhere
from consumer_agent.kafka.elsewhere import OVERDUE_S, Found, LookAtKafka, fault

A, B = ("orders", 0), ("orders", 1)
SETTINGS = {"bootstrap.servers": "b:1"}


class Admin:
    """Kafka's admin client; the test answers its requests."""

    def __init__(self) -> None:
        self.described: list[Future[Any]] = []
        self.offsets: Future[Any] = Future()

    def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, Future[Any]]:
        self.described.append(Future())
        return {groups[0]: self.described[-1]}

    def list_consumer_group_offsets(self, request: Any, **_: object) -> dict[str, Future[Any]]:
        return {request[0].group_id: self.offsets}

    def answer(self, offset: int, *members: str) -> None:
        """Answer the last look: members, and an offset of the first partition."""
        self.offsets.set_result(mock.Mock(topic_partitions=[TopicPartition(*A, offset)]))
        self.described[-1].set_result(mock.Mock(members=[mock.Mock(client_id=name) for name in members]))

    def fail(self) -> None:
        self.described[-1].set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))


class Looking:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.admin = Admin()
        monkeypatch.setattr(elsewhere, "AdminClient", lambda _settings: self.admin)
        monkeypatch.setattr(elsewhere, "close_aside", lambda clients: clients.clear())
        monkeypatch.setattr(elsewhere, "time", mock.Mock(monotonic=lambda: self.now_s))
        self.look = LookAtKafka("g", SETTINGS, reads_offsets=True)
        self.refused: list[ConsumerError] = []
        self.begun: list[str] = []

    def check(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        self.look.check(offsets, self.refused.append, lambda: self.begun.append(name))

    def ask(self, name: str) -> None:
        self.look.ask([B], lambda error, is_known: self.begun.append(f"{name} {error} {is_known}"))

    def look_after(self, seconds: float) -> None:
        self.now_s += seconds
        self.look.look_after(self.refused.append)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(monkeypatch)


@pytest.mark.parametrize(
    ("members", "committed", "expected"),
    [
        ([], {}, None),
        ([], {("orders", 2): 900}, None),  # of a partition that does not begin now
        ([], {A: 600}, None),
        ([], {A: 599}, None),
        ([], {A: 601}, OffsetsElsewhereError),  # newer than in ZooKeeper
        ([], {B: 0}, OffsetsElsewhereError),  # and none in ZooKeeper
        (["c"], {}, GroupInUseError),
        (["c"], {B: 7}, GroupInUseError),
    ],
)
def test_members_and_offsets_forbid_to_begin(
    members: list[str], committed: dict[tuple[str, int], int], expected: type[ConsumerError] | None
) -> None:
    found = fault("g", Found(members, committed, []), {A: 600, B: None})
    assert type(found) is (expected or type(None))


def test_an_error_is_one_line_that_names_what_was_found_and_the_ways_on() -> None:
    ways = ("dual", "groups offsets import g --from kafka", "ignore_kafka_offsets")
    text = str(fault("g", Found([], {A: 7, B: 8}, []), {B: None, A: None}))
    assert text.startswith("group g has offsets in Kafka, for example 7 for orders/0, and none in ZooKeeper")
    assert all(way in text for way in ways)
    newer = str(fault("g", Found([], {A: 600}, []), {A: 599}))
    assert "newer offsets in Kafka, for example 600 for orders/0, than in ZooKeeper (599)" in newer
    assert all(way in newer for way in ways)
    assert "\n" not in text + newer

    text = str(fault("g", Found(["d", "b", "c", "a"], {}, []), {}))
    assert "(a, b, c, …)" in text
    assert "\n" not in text


def test_partitions_are_fetched_only_after_the_first_answer(looking: Looking) -> None:
    looking.check("start", {})
    looking.check("first", {A: 600})
    assert looking.begun == []
    looking.admin.answer(600)
    assert (looking.begun, looking.refused) == (["start", "first"], [])
    looking.check("second", {A: 599})  # without another request
    assert (looking.begun, len(looking.admin.described)) == (["start", "first"], 1)
    assert [type(error) for error in looking.refused] == [OffsetsElsewhereError]


def test_members_in_kafka_end_a_consumer_before_it_has_partitions(looking: Looking) -> None:
    looking.check("start", {})
    looking.admin.answer(600, "plain")
    assert (looking.begun, [type(error) for error in looking.refused]) == ([], [GroupInUseError])


def test_an_outage_delays_nobody_for_longer_and_the_answer_counts_later(looking: Looking) -> None:
    looking.check("first", {A: 599})
    looking.admin.fail()
    assert looking.begun == ["first"]
    looking.look_after(0)
    assert len(looking.admin.described) == 1  # not yet
    looking.look_after(10)
    looking.look_after(0)
    assert len(looking.admin.described) == 2
    looking.admin.answer(600)
    assert [type(error) for error in looking.refused] == [OffsetsElsewhereError]
    looking.look_after(1_000)
    assert len(looking.admin.described) == 2


def test_a_client_that_never_answers_is_replaced(looking: Looking) -> None:
    looking.check("first", {A: 600})
    looking.look_after(OVERDUE_S)
    looking.admin.answer(600)
    assert (looking.begun, looking.refused) == (["first"], [])


def test_what_kafka_hides_is_a_warning_only_where_it_matters(
    looking: Looking, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition without an offset in ZooKeeper may be one of plain consumers."""
    refusal = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    looking.check("first", {A: 600})
    looking.admin.offsets.set_exception(refusal)
    looking.admin.described[-1].set_exception(refusal)
    assert (looking.begun, caplog.messages) == (["first"], [])
    looking.ask("new")
    looking.ask("newer")
    assert looking.begun[1:] == ["new None True", "newer None True"]
    assert [text.split(" (")[0] for text in caplog.messages] == [
        f"group g: Kafka does not show its {what} there" for what in ("members", "offsets")
    ]
