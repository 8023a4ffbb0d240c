"""The parts of the group protocol that need no machine: timers, buckets, stored groups, topics, subscriptions."""

from __future__ import annotations

import contextlib
import zlib
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.group_protocol import placement, stored
from zkrebalancer.group_protocol.consumer_protocol import (
    Subscription,
    SubscriptionError,
    read_assignment,
    read_subscription,
    write_assignment,
)
from zkrebalancer.group_protocol.effects import Received
from zkrebalancer.group_protocol.placement import BUCKETS, bucket_of, gateway_of
from zkrebalancer.group_protocol.requests import JoinGroupProtocol, JoinGroupRequest
from zkrebalancer.group_protocol.scheduler import SPARE_QUEUE_ENTRIES, Scheduler, TimerKey
from zkrebalancer.group_protocol.stored import (
    StoredConsumerGroup,
    StoredContent,
    StoredGroup,
    StoredGroupError,
    StoredMember,
    StoredTopic,
)
from zkrebalancer.group_protocol.topics import EXPRESSION_BYTES, SELECTED_BYTES, Topic, Topics, check_expression
from zkrebalancer.protocol.errors import PatternError
from zkrebalancer.protocol.fields import MAX_TEXT_BYTES
from zkrebalancer.protocol.patterns import MAX_PATTERN_LENGTH, TopicFilter
from zkrebalancer.protocol.places import java_hash

# ---- where a group is served


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("console-consumer-12345", 158455506),
        ("größe", 98762257),
        ("😀", 1772899),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_names_hash_as_in_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_group_has_the_bucket_that_kafka_gives_it() -> None:
    assert bucket_of("hello") == 99162322 % BUCKETS
    assert bucket_of("console-consumer-12345") == 158455506 % BUCKETS
    assert bucket_of("polygenelubricants") == 0  # the smallest number has no absolute value


def test_few_long_names_are_remembered() -> None:
    """In `bucket_of`, remember all: ten thousand names of 32 KiB are 320 MB; or none: each step of a request hashes."""
    known = placement._bucket_of_usual.cache_info().currsize
    for number in range(20):
        name = f"{number}{'n' * 1_000}"
        misses = placement._bucket_of_long.cache_info().misses
        assert bucket_of(name) == bucket_of(name) == abs(java_hash(name)) % BUCKETS
        assert placement._bucket_of_long.cache_info().misses == misses + 1
    assert placement._bucket_of_usual.cache_info().currsize == known
    assert placement._bucket_of_long.cache_info().currsize < 20


def test_a_gateway_that_goes_takes_only_its_own_buckets_with_it() -> None:
    three = {bucket: gateway_of(bucket, ["g1", "g2", "g3"]) for bucket in range(BUCKETS)}
    two = {bucket: gateway_of(bucket, ["g3", "g1"]) for bucket in range(BUCKETS)}
    assert all(two[bucket] == gateway for bucket, gateway in three.items() if gateway != "g2")
    assert set(three.values()) == {"g1", "g2", "g3"}


# ---- timers


def key(name: str) -> TimerKey:
    return "g", "session", name


def test_timers_wake_in_order_and_only_when_due() -> None:
    scheduler, woken = Scheduler(), []
    for name, delay_ms in (("c", 30), ("a", 10), ("b", 20)):
        scheduler.start_timer(key(name), delay_ms, lambda name=name: woken.append(name))  # type: ignore[misc]
    assert scheduler.next_deadline_ms() == 10
    scheduler.now_ms = 20
    scheduler.wake_due()
    assert woken == ["a", "b"]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(-2, 9)), st.integers(0, 5)), min_size=9)
)
def test_timers_agree_with_a_plain_model(steps: list[tuple[str, int | None, int]]) -> None:
    """In `start_timer`, postpone to no later time, or wake what the timer was started with first."""
    scheduler, woken, deadlines, expected = Scheduler(), list[str](), dict[str, int](), list[str]()
    latest = dict[str, str]()
    for number, (name, delay_ms, passes_ms) in enumerate(steps):
        if delay_ms is None:
            scheduler.cancel_timer(key(name))
            deadlines.pop(name, None)
        else:
            latest[name] = f"{name}{number}"
            scheduler.start_timer(key(name), delay_ms, lambda label=latest[name]: woken.append(label))  # type: ignore[misc]
            deadlines[name] = scheduler.now_ms + max(1, delay_ms)
        next_ms = scheduler.next_deadline_ms()
        assert not deadlines or (next_ms is not None and next_ms <= min(deadlines.values()))
        scheduler.now_ms += passes_ms
        scheduler.wake_due()
        due = [name for name, deadline_ms in deadlines.items() if deadline_ms <= scheduler.now_ms]
        expected += [latest[name] for name in due]
        deadlines = {name: deadline_ms for name, deadline_ms in deadlines.items() if name not in due}
        assert sorted(woken) == sorted(expected)


@pytest.mark.parametrize("delay_ms", [0, -1, -(2**31)])
def test_a_timer_that_starts_itself_again_is_woken_once_in_a_step(delay_ms: int) -> None:
    """In `start_timer`, let it be due at once: the step never ends, and the gateway hangs with all of its groups."""
    scheduler, woken = Scheduler(), list[int]()

    def wake() -> None:
        woken.append(scheduler.now_ms)
        assert len(woken) <= 3
        scheduler.start_timer(key("a"), delay_ms, wake)

    wake()
    for now_ms in (0, 1, 2):
        scheduler.now_ms = now_ms
        scheduler.wake_due()
    assert woken == [0, 1, 2]


def test_heartbeats_and_members_that_come_and_go_do_not_let_the_queue_grow() -> None:
    scheduler = Scheduler()
    for number in range(10_000):
        scheduler.start_timer(key("m"), 10_000, lambda: None)
        scheduler.start_timer(key(f"m{number}"), 10_000, lambda: None)
        scheduler.cancel_timer(key(f"m{number}"))
        scheduler.now_ms += 1
    assert len(scheduler._queue) <= SPARE_QUEUE_ENTRIES + 4


# ---- members' ids


@pytest.mark.parametrize("name", ["c" * (2**15 - 1), "\U0001f600" * (2**13 - 1)])
@pytest.mark.parametrize("is_static", [False, True])
def test_the_id_of_a_member_fits_into_answers_whatever_the_name_of_its_client(name: str, is_static: bool) -> None:
    """In `new_member_id`, take all of the name: nobody could describe this group, or others together with it."""
    request = JoinGroupRequest("g", "", 10_000, "consumer", (), group_instance_id=name if is_static else None)
    received = Received(1, request, 4, name, "/h", "f" * 32)
    member_id = received.new_member_id(request.group_instance_id)
    assert len(member_id.encode()) <= MAX_TEXT_BYTES
    assert member_id.endswith(f"-{received.fresh_id}")


# ---- stored groups

NAMES = st.text(max_size=5)
MEMBERS = st.builds(
    StoredMember,
    NAMES,
    st.none() | NAMES,
    NAMES,
    NAMES,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.lists(st.builds(JoinGroupProtocol, NAMES, st.binary(max_size=9)), max_size=2).map(tuple),
    st.binary(max_size=9),
)
GROUPS = st.builds(
    StoredGroup,
    st.integers(0, 2**31 - 1),
    st.none() | NAMES,
    st.none() | NAMES,
    st.none() | NAMES,
    st.booleans(),
    st.lists(MEMBERS, max_size=3).map(tuple),
)


@given(GROUPS)
def test_a_stored_group_is_read_as_it_was_written(group: StoredGroup) -> None:
    assert stored.from_bytes(stored.to_bytes(group)) == group


@given(GROUPS, st.data())
def test_a_damaged_group_is_refused_or_read_but_never_an_accident(group: StoredGroup, data: st.DataObject) -> None:
    content = bytearray(stored.to_bytes(group))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        read = stored.from_bytes(bytes(content))
    except StoredGroupError:
        return
    assert read == group  # a bit that zlib does not use


ANYTHING = st.none() | st.integers(-9, 9) | st.binary(max_size=3) | st.dictionaries(NAMES, NAMES) | st.lists(NAMES)


@given(ANYTHING)
def test_what_is_no_group_is_refused(content: object) -> None:
    with pytest.raises(StoredGroupError, match="cannot be read"):
        stored.from_bytes(zlib.compress(msgpack.packb(content)))


def test_a_group_of_a_later_version_is_refused_and_one_with_more_fields_is_read() -> None:
    group = StoredGroup(3, "consumer", "range", "m", is_assigned=True, members=())
    fields = msgpack.unpackb(zlib.decompress(stored.to_bytes(group)))
    assert stored.from_bytes(zlib.compress(msgpack.packb({**fields, "more": 1}))) == group
    with pytest.raises(StoredGroupError, match="version 2"):
        stored.from_bytes(zlib.compress(msgpack.packb({**fields, "version": 2})))


@pytest.mark.parametrize(
    "group",
    [
        StoredGroup(2**31, "consumer", "range", "m", is_assigned=True, members=()),
        StoredGroup(3, "c" * 2**15, "range", "m", is_assigned=True, members=()),
        StoredConsumerGroup(3, -(2**40), (), ()),
        StoredConsumerGroup(3, 3, (StoredTopic("\u00e9" * 2**14, bytes(16), 1),), ()),
    ],
)
def test_a_group_that_fits_into_no_answer_is_refused(group: StoredContent) -> None:
    """In `_reader`, take any number and text: a list of all groups could not be written, as it has this one."""
    with pytest.raises(StoredGroupError, match="fits into no answer"):
        stored.from_bytes(stored.to_bytes(group))


def test_members_with_alike_subscriptions_take_little_room() -> None:
    protocols = (JoinGroupProtocol("range", bytes(range(100))),)
    members = tuple(StoredMember(f"m{n}", None, "c", "h", 45_000, 300_000, protocols, b"") for n in range(1_000))
    content = stored.to_bytes(StoredGroup(1, "consumer", "range", "m0", is_assigned=False, members=members))
    assert len(content) < 30 * len(members)


# ---- expressions that select topics


def test_an_expression_is_checked_as_it_is_used() -> None:
    """In `check_expression`, check it only by itself: its first use would end the group of the client that sent it."""
    check_expression("x" * (MAX_PATTERN_LENGTH - len("^(?:)$")))
    with pytest.raises(PatternError, match="at most"):
        check_expression("x" * MAX_PATTERN_LENGTH)
    with pytest.raises(PatternError, match="compile"):
        check_expression("t)|(t")


def test_clients_that_send_ever_new_expressions_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Topics._remember`, clear nothing, or count no expressions."""
    monkeypatch.setattr("zkrebalancer.group_protocol.topics.MAX_SELECTED_BYTES", 3 * (EXPRESSION_BYTES + 100))
    known = Topics()
    known.replace({"t0": Topic(UUID(int=1), 1)})
    assert [len(known.matching(f"t{number}")) for number in (0, 1, 2, 3, 0)] == [1, 0, 0, 0, 1]
    assert len(known._matching) <= 3
    for letter in "xy":
        assert not known.matching(letter * 500)
    assert len(known._matching) == 1


def test_expressions_that_select_very_many_topics_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Topics._remember`, do not count what they select: a thousand with ten thousand topics each use 600 MB."""
    monkeypatch.setattr("zkrebalancer.group_protocol.topics.MAX_SELECTED_BYTES", 2 * EXPRESSION_BYTES + 100 * 64)
    known = Topics()
    for count in (60, 120):
        known.replace({f"t{number}": Topic(UUID(int=number + 1), 1) for number in range(count)})
        for number in range(3):
            assert len(known.matching(f".*|{number}")) == count
            assert len(known._matching) == 1


def test_a_topic_more_or_less_costs_a_look_at_that_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Topics.replace`, forget what expressions select: with very many, a new topic would cost a gateway seconds."""
    looks = list[str]()
    matches = TopicFilter.matches_internal

    def look(self: TopicFilter, topic: str) -> bool:
        looks.append(topic)
        return matches(self, topic)

    monkeypatch.setattr(TopicFilter, "matches_internal", look)
    known, expressions = Topics(), ("t.*", "t1.*", "x")
    topics = {f"t{number}": Topic(UUID(int=number + 1), 1) for number in range(100)}
    known.replace(topics)
    assert [len(known.matching(one)) for one in expressions] == [100, 11, 0]
    looks.clear()
    known.replace({**topics, "t1000": Topic(UUID(int=1_001), 1)})
    assert [len(known.matching(one)) for one in expressions] == [101, 12, 0]
    known.replace({name: Topic(one.topic_id, 2) for name, one in topics.items() if name != "t10"})
    assert [len(known.matching(one)) for one in expressions] == [99, 10, 0]
    assert looks == ["t1000"] * 3


def test_expressions_that_no_member_has_are_forgotten_when_topics_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Topics.replace`, keep all: with very many, a new topic would cost a gateway seconds; or do not uncount them.

    In `_match_again`, compile the expressions if no topic is new.
    """
    known = Topics()
    topics = {f"t{number}": Topic(UUID(int=number + 1), 1) for number in range(3)}
    known.replace(topics)
    for expression in ("t.*", "t1", "x"):
        known.matching(expression)
    monkeypatch.delattr("zkrebalancer.group_protocol.topics.TopicFilter")
    known.replace({"t0": topics["t0"]}, {"t.*", "y"})
    assert known._matching == {"t.*": {"t0"}}
    assert known._matching_bytes == EXPRESSION_BYTES + len("t.*") + SELECTED_BYTES


# ---- subscriptions

TOPICS = b"\0\0\0\2" + b"\0\1t" + "\0\2ü".encode() + b"\xff\xff\xff\xff"
OWNED = b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\7"


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (0, TOPICS, Subscription(0, ("t", "ü"), {}, None)),
        (1, TOPICS + OWNED, Subscription(1, ("t", "ü"), {"t": (0, 7)}, None)),
        (2, TOPICS + OWNED + b"\0\0\0\5", Subscription(2, ("t", "ü"), {"t": (0, 7)}, None)),
        (3, TOPICS + OWNED + b"\0\0\0\5\0\2r1", Subscription(3, ("t", "ü"), {"t": (0, 7)}, "r1")),
        (3, TOPICS + OWNED + b"\0\0\0\5\xff\xff", Subscription(3, ("t", "ü"), {"t": (0, 7)}, None)),
        (9, TOPICS + OWNED + b"\0\0\0\5\0\2r1 later", Subscription(9, ("t", "ü"), {"t": (0, 7)}, "r1")),
    ],
)
def test_a_subscription_of_each_version_is_read(version: int, fields: bytes, expected: Subscription) -> None:
    assert read_subscription(bytes([0, version]) + fields) == expected


@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 2**31 - 1)).map(tuple)), st.integers(0, 3))
def test_an_assignment_is_read_as_it_was_written(assignment: dict[str, tuple[int, ...]], version: int) -> None:
    assert read_assignment(write_assignment(version, assignment)) == assignment


def test_a_client_of_a_later_version_gets_an_assignment_of_the_latest_form_known_here() -> None:
    """In `write_assignment`, take the version of its subscription: it would look for fields that are not there."""
    assert write_assignment(4, {"t": (0,)}) == write_assignment(3, {"t": (0,)})


@given(st.binary(max_size=30))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """In `read_subscription` or `read_assignment`, let an error of `struct` through."""
    for read in (read_subscription, read_assignment):
        with contextlib.suppress(SubscriptionError):
            read(content)
