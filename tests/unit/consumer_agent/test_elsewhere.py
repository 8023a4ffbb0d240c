"""What a group has at Kafka's brokers is looked at once, and decides whether partitions may begin."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import cycle
from queue import Queue
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumer_agent.errors import ConsumerError, GroupInUseError, KafkaUnavailableError, OffsetsElsewhereError
from consumer_agent.kafka import elsewhere, group_admin
from consumer_agent.kafka.elsewhere import FRESH_S, MIN_PAUSE_S, OVERDUE_S, Found, LookAtKafka, fault
from tests.support.deadlines import WITHIN_S
from tests.support.futures import ended

A, B = ("orders", 0), ("orders", 1)
SOON_S = 0.05
SETTINGS: dict[str, object] = {"bootstrap.servers": "b:1"}


def failure(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class Admin:
    """Kafka's admin client. The test answers when it is asked for members; offsets and topics are answered at once."""

    def __init__(self) -> None:
        self.described: list[Future[Any]] = []
        self.committed: dict[tuple[str, int], int] | KafkaException = {}
        self.has_groups = True

    def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, Future[Any]]:
        self.described.append(Future())
        return {groups[0]: self.described[-1]}

    def list_consumer_group_offsets(self, request: Any, **_: object) -> dict[str, Future[Any]]:
        found = self.committed
        if isinstance(found, dict):
            listed = mock.Mock(topic_partitions=[TopicPartition(*tp, offset) for tp, offset in found.items()])
            return {request[0].group_id: ended(listed)}
        return {request[0].group_id: ended(found)}

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        found = mock.Mock() if self.has_groups else failure(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return {name: ended(found) for name in topics.topic_names}

    def answer(self, committed: dict[tuple[str, int], int], *members: str) -> None:
        """Answer the last look."""
        self.committed = committed
        self.described[-1].set_result(mock.Mock(members=[mock.Mock(client_id=name) for name in members]))

    def fail(self, code: int = KafkaError._TIMED_OUT) -> None:
        self.described[-1].set_exception(failure(code))


class Looking:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.admin = Admin()
        monkeypatch.setattr(group_admin, "AdminClient", lambda _settings: self.admin)
        monkeypatch.setattr(group_admin, "close_aside", lambda clients: clients.clear())
        monkeypatch.setattr(elsewhere, "time", mock.Mock(monotonic=lambda: self.now_s))
        self.look = LookAtKafka("g", SETTINGS, reads_offsets=True)
        self.refused: list[ConsumerError] = []
        self.begun: list[str] = []

    @property
    def looks(self) -> int:
        return len(self.admin.described)

    def check(self, name: str, offsets: dict[tuple[str, int], int]) -> None:
        self.look.check(offsets, self.refused.append, lambda: self.begun.append(name))

    def ask(self, name: str) -> None:
        self.look.ask({B: None}, lambda error, is_known: self.begun.append(f"{name} {type(error).__name__} {is_known}"))

    def look_after(self, seconds: float) -> None:
        self.now_s += seconds
        self.look.look_after(self.refused.append)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looking]:
    looking = Looking(monkeypatch)
    yield looking
    looking.look.close()


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
    members = str(fault("g", Found(["c"], {}, []), {}))
    assert members.startswith("group g has members of Kafka's own protocol (c), which read the same records: stop them")
    assert members.endswith("one that was killed, or owned nothing when it closed, until its session expires")
    assert "\n" not in text + newer + members

    text = str(fault("g", Found(["d", "b", "c", "a"], {}, []), {}))
    assert "(a, b, c, …)" in text
    assert "\n" not in text


def test_partitions_are_fetched_only_after_the_first_answer(looking: Looking) -> None:
    looking.check("start", {})
    looking.check("first", {A: 600})
    assert looking.begun == []
    looking.admin.answer({A: 600, B: 600})
    assert (looking.begun, looking.refused) == (["start", "first"], [])
    looking.check("second", {B: 599})  # without another request
    assert (looking.begun, looking.looks) == (["start", "first"], 1)
    assert [type(error) for error in looking.refused] == [OffsetsElsewhereError]


def test_after_a_refusal_no_other_partition_begins(looking: Looking) -> None:
    """The first of several checks that wait must not take the others' offsets, or these begin without a check."""
    looking.check("start", {})
    looking.check("first", {A: 599})
    looking.check("second", {B: 700})
    looking.admin.answer({A: 600})
    assert looking.begun == []
    assert {type(error) for error in looking.refused} == {OffsetsElsewhereError}
    looking.look_after(1_000)
    assert looking.looks == 1


def test_a_partition_is_compared_once_so_that_a_seek_back_does_not_end_its_consumer(looking: Looking) -> None:
    looking.check("first", {A: 600})
    looking.admin.answer({A: 600})
    looking.check("again", {A: 10})
    assert (looking.begun, looking.refused) == (["first", "again"], [])


def test_partitions_that_come_and_go_are_not_all_remembered(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "MAX_PASSED", 3)
    looking.check("first", {("t", 0): 1})
    looking.admin.answer({})
    for number in range(5):
        looking.check("later", {("t", number): 1})
    assert list(looking.look._passed) == [("t", 2), ("t", 3), ("t", 4)]


def test_an_answer_that_is_old_forbids_nothing(looking: Looking) -> None:
    """The topic was made anew, for example: Kafka has forgotten its offsets, and ZooKeeper has none yet."""
    looking.check("first", {A: 600})
    looking.admin.answer({A: 600, B: 700})
    looking.now_s += FRESH_S
    looking.ask("new")
    looking.check("moved", {B: 1})
    assert (looking.begun, looking.looks) == (["first"], 2)
    looking.admin.answer({})
    assert (looking.begun, looking.refused) == (["first", "new NoneType True", "moved"], [])

    looking.now_s += FRESH_S
    looking.ask("newer")  # what is known allows it
    assert (looking.begun[-1], looking.looks) == ("newer NoneType True", 2)


def test_what_an_old_answer_forbids_is_forbidden_if_kafka_still_says_so(looking: Looking) -> None:
    looking.check("first", {A: 600})
    looking.admin.answer({A: 600, B: 700})
    looking.now_s += FRESH_S
    looking.ask("new")
    looking.admin.answer({A: 600, B: 700})
    assert looking.begun == ["first", "new OffsetsElsewhereError True"]


def test_members_in_kafka_end_a_consumer_before_it_has_partitions(looking: Looking) -> None:
    looking.check("start", {})
    looking.admin.answer({A: 600}, "plain")
    assert (looking.begun, [type(error) for error in looking.refused]) == ([], [GroupInUseError])


def test_an_outage_delays_nobody_for_longer_and_the_answer_counts_later(looking: Looking) -> None:
    looking.check("first", {A: 599})
    looking.admin.fail()
    assert looking.begun == ["first"]
    looking.look_after(0)
    assert looking.looks == 1  # not yet
    looking.look_after(10)
    looking.look_after(0)
    assert looking.looks == 2
    looking.admin.answer({A: 600})
    assert [type(error) for error in looking.refused] == [OffsetsElsewhereError]
    looking.look_after(1_000)
    assert looking.looks == 2


def test_a_client_that_never_answers_holds_nothing_up_and_is_replaced(looking: Looking) -> None:
    looking.check("first", {A: 599})
    looking.ask("new")
    looking.look_after(OVERDUE_S - 1)
    assert looking.begun == []
    looking.look_after(1)
    assert looking.begun == ["first", "new NoneType False"]
    looking.look_after(MIN_PAUSE_S)
    assert looking.looks == 2
    looking.admin.answer({A: 600})
    assert [type(error) for error in looking.refused] == [OffsetsElsewhereError]


def test_an_error_that_is_not_known_is_no_answer(looking: Looking, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a partition would begin as if Kafka had no offset. The reason is told once."""
    looking.ask("new")
    looking.admin.fail(KafkaError.UNKNOWN)
    assert (looking.begun, caplog.messages) == (["new NoneType False"], [])
    for _ in range(2):
        looking.now_s += MIN_PAUSE_S
        looking.ask("again")
        looking.admin.fail(KafkaError.UNKNOWN)
    assert looking.begun[1:] == ["again NoneType False"] * 2
    (told,) = caplog.messages
    assert told.startswith("group g: Kafka does not say whether plain Kafka consumers use this group (")


def test_brokers_that_have_no_topic_for_offsets_of_groups_have_no_offsets(looking: Looking) -> None:
    """With fewer brokers than `offsets.topic.replication.factor`, Kafka never answers about a group.

    Brokers that have just started may not know the topic yet.
    """
    looking.admin.has_groups = False
    for expected in (False, True):
        looking.ask("new")
        looking.admin.fail(KafkaError.COORDINATOR_NOT_AVAILABLE)
        assert looking.begun[-1] == f"new NoneType {expected}"
        looking.now_s += MIN_PAUSE_S
    looking.ask("newer")
    assert (looking.begun[-1], looking.looks) == ("newer NoneType True", 2)

    looking.look = LookAtKafka("g", SETTINGS, reads_offsets=True)
    for has_groups in (False, True, False):
        looking.admin.has_groups = has_groups
        looking.ask("new")
        looking.admin.fail(KafkaError.COORDINATOR_NOT_AVAILABLE)
        assert looking.begun[-1] == "new NoneType False"
        looking.now_s += MIN_PAUSE_S


def test_brokers_that_had_groups_are_not_believed_at_once_that_they_have_none(looking: Looking) -> None:
    """In `LookAtKafka._learned`, count from before they had some: they have restarted, and know no topics yet."""
    looking.admin.has_groups = False
    looking.ask("early")
    looking.admin.fail(KafkaError.COORDINATOR_NOT_AVAILABLE)
    looking.admin.has_groups = True
    looking.ask("then")
    looking.admin.answer({B: 8})
    looking.now_s += FRESH_S + MIN_PAUSE_S
    looking.ask("later")  # asks again, for what was found forbids it, and is old
    looking.admin.has_groups = False
    looking.admin.fail(KafkaError.COORDINATOR_NOT_AVAILABLE)
    assert looking.begun == ["early NoneType False", "then OffsetsElsewhereError True", "later NoneType False"]


def test_that_there_are_no_groups_is_found_out_although_a_client_takes_long_to_make(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `oauth_cb`. The coordinator never answers, so its client is replaced, aside.

    In `_Requests._no_answer`, ask through the client that did not answer: its request is refused.
    """
    limits_s = cycle([SOON_S, WITHIN_S])  # of the question about the group, and of that about Kafka

    def made(_settings: object) -> Admin:
        monkeypatch.setattr(elsewhere, "READ_TIMEOUT_S", next(limits_s))
        return looking.admin

    monkeypatch.setattr(group_admin, "AdminClient", made)
    looking.look = LookAtKafka("g", {**SETTINGS, "oauth_cb": print}, reads_offsets=True)
    looking.admin.has_groups = False
    for expected in (False, True):
        answers: Queue[bool] = Queue()
        looking.look.ask({B: None}, lambda _error, is_known, answers=answers: answers.put(is_known))
        assert answers.get(timeout=WITHIN_S) is expected
        looking.now_s += MIN_PAUSE_S


def test_closing_a_look_closes_its_client_and_makes_no_other(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the client and its thread stay until the request's limit."""
    closed: list[object] = []
    monkeypatch.setattr(group_admin, "close_aside", closed.extend)
    looking.check("first", {A: 600})
    looking.look.close()
    assert closed == [looking.admin]
    looking.admin.answer({A: 600})
    looking.look.look_after(looking.refused.append)
    looking.now_s += OVERDUE_S
    looking.look_after(MIN_PAUSE_S)
    looking.ask("new")
    assert (looking.looks, closed) == (1, [looking.admin])


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._UNSUPPORTED_FEATURE])
def test_what_kafka_hides_is_a_warning_only_where_it_matters(
    looking: Looking, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    """A partition without an offset in ZooKeeper may be one of plain consumers."""
    looking.check("first", {A: 600})
    looking.admin.committed = failure(code)
    looking.admin.fail(code)
    assert (looking.begun, caplog.messages) == (["first"], [])
    looking.ask("new")
    looking.ask("newer")
    assert looking.begun[1:] == ["new NoneType True", "newer NoneType True"]
    assert [text.split(" (")[0] for text in caplog.messages] == [
        f"group g: Kafka does not show its {what} there" for what in ("members", "offsets")
    ]


class AnsweringAdmin(Admin):
    """The same, which answers at once; the last answer is repeated."""

    def __init__(self, *answers: list[str] | KafkaException) -> None:
        super().__init__()
        self.answers = list(answers)

    def describe_consumer_groups(self, groups: list[str], **_: object) -> dict[str, Future[Any]]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, list):
            return {groups[0]: ended(mock.Mock(members=[mock.Mock(client_id=name) for name in answer]))}
        return {groups[0]: ended(answer)}


AWAY = failure(KafkaError.NOT_COORDINATOR)


@pytest.mark.parametrize(
    ("answers", "committed", "expected"),
    [
        ([[]], {A: 600}, None),
        ([AWAY, []], {A: 600}, None),  # its coordinator has just moved
        ([failure(KafkaError.GROUP_AUTHORIZATION_FAILED)], {}, None),  # brokers will never say
        ([[]], {A: 601}, OffsetsElsewhereError),
        ([[]], {B: 0}, OffsetsElsewhereError),
        ([["plain"]], {}, GroupInUseError),
        ([AWAY], {}, KafkaUnavailableError),
    ],
)
def test_a_look_of_who_joins_no_group_waits_for_an_answer_and_fails_as_a_consumer_does(
    answers: list[list[str] | KafkaException],
    committed: dict[tuple[str, int], int],
    expected: type[ConsumerError] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin, closed = AnsweringAdmin(*answers), list[object]()
    admin.committed = committed
    monkeypatch.setattr(group_admin, "AdminClient", lambda _settings: admin)
    monkeypatch.setattr(group_admin, "close_aside", closed.extend)
    monkeypatch.setattr(elsewhere, "RETRY_S", 0.0)
    limit_s = SOON_S if expected is KafkaUnavailableError else WITHIN_S
    with pytest.raises(expected) if expected is not None else nullcontext():
        elsewhere.look_once("g", SETTINGS, {A: 600, B: None}, limit_s)
    assert closed
