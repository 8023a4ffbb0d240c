"""Offsets in ZooKeeper: where agents find them, and only while the gateway serves the group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import gevent
import pytest
from gevent.event import AsyncResult

from consumer_agent.membership.offset_books import MAX_OPERATIONS, OffsetBook
from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.dialing import LinkError
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.zookeeper_offsets import ASK_AT_ONCE, READ_AT_ONCE, ZooKeeperOffsets
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import (
    Call,
    Check,
    Create,
    Delete,
    Get,
    Multi,
    ReadEach,
    Refusal,
    Refused,
    Reply,
    SetContent,
)
from zkrebalancer.protocol.registration import STATIC, WHITE_LIST, Registration, encode
from zkrebalancer.protocol.requests import MIN_REQUEST_BYTES, RequestLimit

WAIT_S = 10.0
GROUP, BUCKET = "billing", "/bucket"
COUNTS = {"orders": 1_000, "logs": 2}


class SlowSession(ModelSession):
    """A session whose replies come later; `under_way` has the calls without a reply at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.under_way: list[int] = []
        self._unanswered = 0

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        self.calls.append(call)
        self._unanswered += 1
        self.under_way.append(self._unanswered)
        gevent.spawn(super().request, call, partial(self._reply, when_replied))

    def _reply(self, when_replied: Callable[[Reply], None], reply: Reply) -> None:
        self._unanswered -= 1
        when_replied(reply)


class Store:
    """Offsets of one gateway on a model of ZooKeeper; `asked` has the topics that brokers were asked for."""

    def __init__(self, session: ModelSession | None = None) -> None:
        self.session = session or ModelSession()
        self.session.do(Create(BUCKET, b"1"))
        self.fence: Check | None = Check(BUCKET, 0)
        self.asked: list[set[str]] = []
        self.are_brokers_away = False
        self.counts: Callable[[Iterable[str]], Mapping[str, int | None]] = self._counts
        self.offsets = ZooKeeperOffsets(self.session, Metrics(), lambda _group: self.fence, self._ask_counts)

    def _ask_counts(self, topics: Iterable[str]) -> Mapping[str, int | None]:
        return self.counts(topics)

    def _counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        if self.are_brokers_away:
            raise LinkError("away")
        self.asked.append(set(topics))
        return {topic: COUNTS[topic] for topic in topics if topic in COUNTS}

    def ask(self, name: str, fields: dict[str, Any], group: str = GROUP) -> Any:
        answered: AsyncResult[Any] = AsyncResult()
        self.offsets.send(group, name, fields, answered.set)
        return answered.get(timeout=WAIT_S)

    def commit(self, offsets: Mapping[tuple[str, int], int], group: str = GROUP, epoch: int = -1) -> Any:
        """Return the whole request's error, or the errors of partitions that have one."""
        topics = [
            {"name": name, "partitions": [{"partition_index": number, "committed_offset": offset}]}
            for (name, number), offset in offsets.items()
        ]
        found = self.ask("OffsetCommit", {"topics": topics, "generation_id_or_member_epoch": epoch}, group)
        return found if isinstance(found, ErrorCode) else errors_of(found)

    def fetch(self, *partitions: tuple[str, int]) -> dict[tuple[str, int], int]:
        """Return what is committed, of these partitions, or of all."""
        topics = [{"name": name, "partition_indexes": [number]} for name, number in partitions]
        (found,) = self.ask("OffsetFetch", {"topics": topics or None})["groups"]
        assert found["error_code"] == ErrorCode.NONE
        return {
            (topic["name"], one["partition_index"]): one["committed_offset"]
            for topic in found["topics"]
            for one in topic["partitions"]
        }

    def delete(self, *partitions: tuple[str, int]) -> Any:
        topics = [{"name": name, "partitions": [{"partition_index": number}]} for name, number in partitions]
        found = self.ask("OffsetDelete", {"topics": topics})
        return found if isinstance(found, ErrorCode) else errors_of(found)

    def delete_group(self) -> int:
        (found,) = self.ask("DeleteGroups", {"groups_names": [GROUP]})["results"]
        return int(found["error_code"])

    def register(self, subscription: dict[str, int], pattern: str = STATIC) -> None:
        consumer = Registration(pattern, subscription, "", "c", "h", 10_000)
        self.session.do(Create(paths.ids(GROUP, "agent"), encode(consumer)))


def errors_of(answer: Mapping[str, Any]) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic["name"], one["partition_index"]): one["error_code"]
        for topic in answer["topics"]
        for one in topic["partitions"]
        if one["error_code"]
    }


@pytest.fixture
def store() -> Store:
    return Store()


def test_the_first_commit_makes_the_group_as_an_agent_does(store: Store) -> None:
    assert store.commit({("orders", 3): 7, ("logs", 0): 0, ("orders", 4): 8}) == {}
    nodes = store.session.model.nodes
    assert nodes[paths.offsets(GROUP, "orders", 3)].content == b"7"
    assert nodes[paths.offsets(GROUP, "logs", 0)].content == b"0"
    assert set(paths.GROUP_CHILDREN) <= set(store.session.model.children(paths.group(GROUP)))
    assert store.fetch(("orders", 3), ("orders", 5)) == {("orders", 3): 7, ("orders", 5): -1}
    assert store.fetch() == {("orders", 3): 7, ("orders", 4): 8, ("logs", 0): 0}


def test_brokers_are_asked_for_partitions_without_a_node_only(store: Store) -> None:
    assert store.commit({("orders", 0): 1}) == {}
    assert store.commit({("orders", 0): 2}) == {}
    assert store.asked == [{"orders"}]
    store.are_brokers_away = True
    assert store.commit({("orders", 0): 3}) == {}
    assert store.commit({("orders", 1): 3}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert store.fetch() == {("orders", 0): 3}


def test_what_cannot_be_kept_is_refused_and_the_rest_is_kept(store: Store) -> None:
    wanted = {("none", 0): 1, ("orders", 1_000): 1, ("a/b", 0): 1, ("orders", 0): -1, ("logs", 1): 5}
    assert store.commit(wanted) == {
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", 1_000): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("a/b", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", 0): ErrorCode.INVALID_REQUEST,
    }
    assert store.fetch() == {("logs", 1): 5}
    assert store.commit({("logs", 0): 1}, "a/group") is ErrorCode.INVALID_GROUP_ID
    assert store.offsets.coordinator_error("a/group") is ErrorCode.INVALID_GROUP_ID


def test_a_topic_that_the_brokers_do_not_describe_is_not_called_unknown(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """In `partition_counts`, leave it out: its consumers get the error that it does not exist, without a log line."""
    store.counts = lambda _topics: {"orders": 1_000, "hidden": None}
    hidden, unknown = ("hidden", 0), ("made-up", 0)
    refused = store.commit({("orders", 1): 5, hidden: 7, unknown: 1})
    assert refused == {hidden: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert store.fetch() == {("orders", 1): 5}
    (line,) = caplog.messages
    assert "brokers do not describe hidden: the right to DESCRIBE it may be missing" in line


def test_more_partitions_than_one_transaction_takes_are_committed(store: Store) -> None:
    wanted = {("orders", number): number for number in range(1_000)}
    assert store.commit(wanted) == {}
    assert store.commit({partition: offset + 1 for partition, offset in wanted.items()}) == {}
    assert store.fetch() == {partition: offset + 1 for partition, offset in wanted.items()}


def test_nodes_that_others_make_or_delete_are_no_obstacle(store: Store) -> None:
    assert store.commit({("logs", 0): 1, ("logs", 1): 1}) == {}
    store.session.do(Delete(paths.offsets(GROUP, "logs", 0)))  # the coordinator, of a topic that was made anew
    store.session.do(Create(paths.offsets(GROUP, "orders")), Create(paths.offsets(GROUP, "orders", 0), b"9"))
    assert store.commit({("logs", 0): 2, ("logs", 1): 2, ("orders", 0): 10, ("orders", 1): 2}) == {}
    assert store.fetch() == {("logs", 0): 2, ("logs", 1): 2, ("orders", 0): 10, ("orders", 1): 2}


def test_a_gateway_that_serves_the_group_no_more_writes_nothing(store: Store) -> None:
    assert store.commit({("logs", 0): 1}) == {}
    store.session.do(SetContent(BUCKET, b"2"))  # another gateway has claimed it
    assert store.commit({("logs", 0): 2}) is ErrorCode.NOT_COORDINATOR
    assert store.delete(("logs", 0)) is ErrorCode.NOT_COORDINATOR
    store.fence = None
    assert store.commit({("logs", 0): 2}) is ErrorCode.NOT_COORDINATOR
    assert store.fetch() == {("logs", 0): 1}


def test_a_commit_that_was_allowed_before_another_gateway_served_the_group_is_refused(store: Store) -> None:
    """In `ZooKeeperOffsets._perform`, use the fence of the moment: the other one may have stored a later commit."""

    def claimed_by_another(_topics: object) -> Mapping[str, int]:
        store.session.do(SetContent(BUCKET, b"2"), SetContent(BUCKET, b"3"))  # and by this one again
        store.fence = Check(BUCKET, 2)
        return COUNTS

    store.counts = claimed_by_another
    assert store.commit({("logs", 0): 1}) is ErrorCode.NOT_COORDINATOR
    store.counts = store._counts
    assert store.commit({("logs", 0): 2}) == {}


def test_a_commit_whose_outcome_is_unknown_is_asked_for_again(store: Store) -> None:
    assert store.commit({("logs", 0): 1}) == {}
    store.session.refusals = [Refused(Refusal.CONNECTION_LOST)]
    assert store.commit({("logs", 0): 2}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert store.commit({("logs", 0): 2}) == {}


def test_an_offset_that_cannot_be_read_is_an_error_and_not_none(store: Store) -> None:
    assert store.commit({("logs", 0): 1, ("logs", 1): 4}) == {}
    store.session.do(SetContent(paths.offsets(GROUP, "logs", 0), b"many"))
    asked = {"topics": [{"name": "logs", "partition_indexes": [0, 1]}]}
    (group,) = store.ask("OffsetFetch", asked)["groups"]
    first, second = group["topics"][0]["partitions"]
    assert (first["committed_offset"], first["error_code"]) == (-1, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert (second["committed_offset"], second["error_code"]) == (4, ErrorCode.NONE)


@pytest.mark.parametrize("name", ["03", "2147483648", "9" * 5_000, "\u0663", "-1", "x"])
def test_a_node_that_is_no_partition_is_left_out(store: Store, name: str) -> None:
    """In `_all_partitions`, take any digits for a number: all offsets of the group could not be read."""
    store.commit({("logs", 0): 3})
    store.session.do(Create(f"{paths.offsets(GROUP, 'logs')}/{name}", b"5"))
    assert store.fetch() == {("logs", 0): 3}


def test_offsets_in_transactions_are_refused(store: Store) -> None:
    assert store.ask("TxnOffsetCommit", {"topics": []}) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_offsets_are_deleted_unless_an_agent_wants_them(store: Store) -> None:
    assert store.delete(("logs", 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    store.commit({("logs", 0): 1, ("logs", 1): 1, ("orders", 0): 1})
    store.register({"orders": 1})
    assert store.delete(("logs", 0), ("orders", 0), ("logs", 1)) == {("orders", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert store.fetch() == {("orders", 0): 1}
    store.session.do(Delete(paths.ids(GROUP, "agent")))
    store.register({"or.*": 1}, WHITE_LIST)
    assert store.delete(("orders", 0)) == {("orders", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_nobody_but_a_member_commits_while_agents_are_registered(store: Store) -> None:
    """In `_commit`, do not look for agents: a tool reports offsets as set that the agents' next commits replace."""
    store.commit({("logs", 0): 7})
    store.register({"logs": 1})
    assert store.commit({("logs", 0): 1}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert store.fetch() == {("logs", 0): 7}
    assert store.commit({("logs", 0): 8}, epoch=3) == {}
    store.session.do(Delete(paths.ids(GROUP, "agent")))
    assert store.commit({("logs", 0): 1}) == {}
    assert store.fetch() == {("logs", 0): 1}


def test_brokers_are_asked_again_for_a_partition_whose_offset_was_deleted(store: Store) -> None:
    """In `_delete`, go on to take its node for present: an offset of a topic that is gone would be stored."""
    store.commit({("logs", 0): 1})
    assert store.delete(("logs", 0)) == {}
    store.counts = lambda _topics: {}
    assert store.commit({("logs", 0): 2}) == {("logs", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert store.fetch() == {}


def test_a_group_is_deleted_when_nobody_is_registered(store: Store) -> None:
    assert store.delete_group() == ErrorCode.GROUP_ID_NOT_FOUND
    store.commit({("orders", number): 1 for number in range(600)} | {("logs", 0): 1})
    store.register({"orders": 1})
    assert store.delete_group() == ErrorCode.NON_EMPTY_GROUP
    store.session.do(Delete(paths.ids(GROUP, "agent")))
    assert store.delete_group() == ErrorCode.NONE
    assert store.fetch() == {}
    assert store.session.model.children(paths.offsets(GROUP)) == []
    assert store.commit({("logs", 0): 3}) == {}
    assert store.fetch() == {("logs", 0): 3}


def test_groups_that_have_offsets_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `without_members`, take one slice only, or groups without offsets."""
    monkeypatch.setattr("zkrebalancer.gateway.zookeeper_offsets.READ_AT_ONCE", 2)
    store = Store()
    assert not store.offsets.without_members(lambda _group: True)
    for group in ("a", "b", "c", "d", "elsewhere"):
        store.commit({("orders", 1): 5}, group)
    assert store.ask("DeleteGroups", {}, "b")["results"][0]["error_code"] == ErrorCode.NONE
    assert sorted(store.offsets.without_members(lambda group: group != "elsewhere")) == ["a", "c", "d"]


def test_partitions_without_an_offset_cost_no_transaction_when_offsets_are_deleted() -> None:
    """In `_existing`, take all nodes: each one that does not exist fails a transaction; or take duplicates."""
    session = SlowSession()
    store = Store(session)
    wanted = [("logs", number) for number in range(50)]
    assert store.commit({("logs", 1): 1, ("logs", 0): 1}) == {}
    session.calls.clear()
    assert store.delete(*wanted, ("logs", 1)) == {}
    (deletion,) = [call for call in session.calls if isinstance(call, Multi)]
    assert len(deletion.operations) == 1 + 2 + 2
    assert store.fetch() == {}


@pytest.mark.parametrize("name", ["OffsetDelete", "DeleteGroups"])
def test_deletions_fit_into_transactions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In `_remove`, count operations only: with long names, no offset can be deleted."""
    session = SlowSession()
    store = Store(session)
    topic, numbers = "t" * 200, range(600)
    store.counts = lambda asked: dict.fromkeys(asked, 1_000)
    assert store.commit({(topic, number): 1 for number in numbers}) == {}
    limit = RequestLimit(MIN_REQUEST_BYTES)
    monkeypatch.setattr(ModelSession, "request_limit", limit)
    session.calls.clear()
    partitions = [{"partition_index": number} for number in numbers]
    store.ask(name, {"topics": [{"name": topic, "partitions": partitions}], "groups_names": [GROUP]})
    assert store.fetch() == {}
    transactions = [call.operations for call in session.calls if isinstance(call, Multi)]
    assert all(limit.fits(operations) for operations in transactions)
    assert len(transactions) <= 4


@pytest.mark.parametrize("max_bytes", range(2_000, 2_060))
def test_commits_fit_into_transactions_beside_the_fence(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """In `_commit`, leave out the fence: a first commit of many partitions is refused as too large."""
    limit = RequestLimit(max_bytes)
    monkeypatch.setattr(ModelSession, "request_limit", limit)
    session = SlowSession()
    assert Store(session).commit({("orders", number): 1 for number in range(40)}) == {}
    assert all(limit.fits(call.operations) for call in session.calls if isinstance(call, Multi))


def test_topics_that_the_brokers_do_not_know_are_not_remembered(store: Store) -> None:
    """In `_look_for_topics`, take all topics: made-up ones fill the memory, as they never get a node."""
    wanted = {(f"made-up-{number}", 0): 1 for number in range(5)} | {("logs", 0): 1}
    assert len(store.commit(wanted)) == 5
    book = store.offsets._nodes.of(GROUP)
    assert (book.nodes, book.missing_topics, book.stored) == ({("logs", 0)}, set(), {})


def test_new_partitions_of_topics_with_offsets_need_one_transaction() -> None:
    """In `_look_for_topics`, take all topics for missing: each that is not costs a transaction that fails."""
    session = SlowSession()
    store = Store(session)
    topics = [f"topic-{number}" for number in range(20)]
    store.counts = lambda asked: dict.fromkeys(asked, 2)
    assert store.commit({(topic, 0): 1 for topic in topics}) == {}
    session.calls.clear()
    assert store.commit({(topic, 1): 1 for topic in topics}) == {}
    assert sum(isinstance(call, Multi) for call in session.calls) == 1


@pytest.mark.parametrize("name", ["OffsetFetch", "OffsetDelete", "DeleteGroups"])
def test_many_groups_at_once_leave_room_for_others(name: str) -> None:
    """In `ZooKeeperOffsets._ask`, take no turns: the lease is renewed after one look at each of all these groups."""
    session = SlowSession()
    store = Store(session)
    answered: list[Any] = []
    for number in range(3 * ASK_AT_ONCE):
        store.offsets.send(f"g{number}", name, {"topics": [] if name == "OffsetDelete" else None}, answered.append)
    with gevent.Timeout(WAIT_S):
        while len(answered) < 3 * ASK_AT_ONCE:
            gevent.sleep(0)
    assert max(session.under_way) == ASK_AT_ONCE


@pytest.mark.parametrize("request_name", ["OffsetFetch", "OffsetCommit"])
def test_a_large_request_leaves_room_for_others(request_name: str) -> None:
    """In `_read_each`, ask for all nodes at once: the lease is not renewed; or do not pause: no group has its turn."""
    session = SlowSession()
    store = Store(session)
    fetched: list[Any] = []
    numbers = range(10 * READ_AT_ONCE)
    topic = {
        "name": "none",
        "partition_indexes": list(numbers),
        "partitions": [{"partition_index": number, "committed_offset": 1} for number in numbers],
    }
    small = {"topics": [{"name": "orders", "partition_indexes": [0]}]}
    large_answered: AsyncResult[Any] = AsyncResult()
    fields = {"topics": [topic], "generation_id_or_member_epoch": 1}
    store.offsets.send("large", request_name, fields, large_answered.set)
    for group in ("small", "smaller"):
        store.offsets.send(group, "OffsetFetch", small, lambda _answer: fetched.append(len(session.calls)))
    large_answered.get(timeout=WAIT_S)
    assert session.calls.count(Get(paths.offsets("large", "none", numbers[-1]))) == 1
    assert max(session.under_way) <= READ_AT_ONCE
    assert len(fetched) == 2
    assert max(fetched) < 3 * READ_AT_ONCE


def test_nodes_are_read_by_few_requests() -> None:
    """In `_read_each`, read each node for itself: 100,000 take ten seconds of the gateway's time."""
    store, asked = Store(), list[int]()
    read_each = store.session.read_each

    def noted(reads: ReadEach) -> list[Reply]:
        asked.append(len(reads.names))
        return read_each(reads)

    store.session.read_each = noted  # type: ignore[method-assign]
    partitions = [("orders", number) for number in range(2 * READ_AT_ONCE)]
    assert store.commit(dict.fromkeys(partitions, 7)) == {}
    assert asked == [READ_AT_ONCE, READ_AT_ONCE, 1], "the nodes, and that of their topic"
    assert store.fetch(*partitions) == dict.fromkeys(partitions, 7)
    assert asked[3:] == [READ_AT_ONCE, READ_AT_ONCE]


def test_a_large_commit_is_not_sorted_for_each_of_its_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_commit`, give all that is left to `first_chunk`: 100,000 partitions are then sorted 200 times."""
    store, given = Store(), list[int]()
    first_chunk = OffsetBook.first_chunk

    def noted(self: OffsetBook, offsets: Mapping[tuple[str, int], int], *rest: Any) -> dict[tuple[str, int], int]:
        given.append(len(offsets))
        return first_chunk(self, offsets, *rest)

    monkeypatch.setattr(OffsetBook, "first_chunk", noted)
    wanted = {("orders", number): number for number in reversed(range(1_000))}
    assert store.commit(wanted) == {}
    assert store.fetch() == wanted
    assert len(given) > 2
    assert max(given) <= MAX_OPERATIONS


def test_offsets_that_are_refused_again_and_again_are_one_line(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """In `_handle`, log each time: each client asks again ten times a second."""
    assert store.commit({("orders", 0): 1}) == {}
    store.session.forbidden.add(paths.offsets(GROUP, "orders", 0))
    for _ in range(3):
        assert store.commit({("orders", 0): 2}) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert caplog.messages == [f"group {GROUP}: offsets are not available: ZooKeeper refuses to write: no permission"]
