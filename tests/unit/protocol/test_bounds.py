"""Partitions that cannot exist are not expanded, and a node that is longer than any true one is not parsed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import msgpack
import pytest

from zkrebalancer.protocol import cluster_nodes, command, ownership, paths, registration
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import MAX_ABSENT_PARTITIONS, Bound, TopicPartition, topics_from_ranges
from zkrebalancer.protocol.registration import Registration

MILLION = [[0, 999_999]]
MAX_COST_BYTES = 100_000
OWNERS = {"version": 1, "generation": 1, "command_id": None, "threads": {"0": {"t": MILLION}}}
EVICTED = {**OWNERS, "evicted_at_ms": 1, "lease_ms": 1}
STATIC = {"version": 1, "consumer": "c-1", "partitions": {"t": MILLION}, "deadline_ms": None}
COMMAND = {
    "version": 1,
    "command_id": "id",
    "coordinator_epoch": 1,
    "generation": 1,
    "cause": {"id": "id", "kind": "member-joined"},
}
START = {**COMMAND, "option": "start-fetcher", "ownership_map": {"0": {"t": MILLION}}}
STOP = {**COMMAND, "option": "stop-fetcher", "ownership_map": {"t": MILLION}}
MEMBER = Registration(registration.STATIC, {"t": 1}, "", "c", "h", 10_000)


def existing(topic: str) -> int:
    return {"t": 10, "u": 20_000}.get(topic, 0)


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("decode", "content"),
    [
        pytest.param(ownership.decode_owners, as_json(OWNERS), id="owners"),
        pytest.param(ownership.decode_eviction, as_json(EVICTED), id="evicted"),
        pytest.param(ownership.decode_static, as_json(STATIC), id="static"),
        pytest.param(command.decode, msgpack.packb(START), id="start-fetcher"),
        pytest.param(command.decode, msgpack.packb(STOP), id="stop-fetcher"),
    ],
)
def test_a_million_partitions_in_a_few_bytes_are_not_expanded(
    decode: Callable[[bytes, Bound], object], content: bytes
) -> None:
    tracemalloc.start()
    with pytest.raises(NodeContentError, match=r"t: names partition 999999 of 10; at most \d+ partitions that do not"):
        decode(content, Bound(existing))
    assert tracemalloc.get_traced_memory()[1] < MAX_COST_BYTES
    tracemalloc.stop()


def test_a_static_members_consumer_is_decoded_without_its_partitions() -> None:
    tracemalloc.start()
    assert ownership.decode_static_consumer(as_json(STATIC)) == "c-1"
    assert tracemalloc.get_traced_memory()[1] < MAX_COST_BYTES
    tracemalloc.stop()


def named(topics: dict[str, list[list[int]]]) -> int:
    return len(topics_from_ranges("test", topics, Bound(existing)))


def test_all_existing_partitions_and_some_of_deleted_topics_are_allowed() -> None:
    absent = MAX_ABSENT_PARTITIONS
    assert named({"u": [[0, 19_999]], "gone": [[0, absent - 1]]}) == 20_000 + absent
    assert named({"u": [[0, 19_999 + absent]]}) == 20_000 + absent


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param({"u": [[0, 19_999 + MAX_ABSENT_PARTITIONS + 1]]}, id="one too many of an existing topic"),
        pytest.param({"gone": [[7, 7 + MAX_ABSENT_PARTITIONS]]}, id="one too many of a deleted topic"),
        pytest.param({f"gone-{n}": [[0, 999]] for n in range(11)}, id="too many over several topics"),
        pytest.param({"gone": [[n, n] for n in range(0, 30_000, 2)]}, id="too many single partitions"),
    ],
)
def test_missing_partitions_are_counted_over_all_topics(topics: dict[str, list[list[int]]]) -> None:
    with pytest.raises(NodeContentError, match="that do not exist"):
        named(topics)


def test_missing_partitions_are_counted_over_all_threads() -> None:
    threads = {str(thread): {f"gone-{thread}": [[0, 999]]} for thread in range(11)}
    with pytest.raises(NodeContentError, match="that do not exist"):
        ownership.decode_owners(as_json({**OWNERS, "threads": threads}), Bound(existing))


def test_a_topic_with_a_single_huge_partition_number_is_rejected() -> None:
    with pytest.raises(NodeContentError, match="partition 999999 of only 1"):
        cluster_nodes.decode_topic(b'{"partitions":{"999999":[1]}}', 1)
    assert cluster_nodes.decode_topic(b'{"partitions":{"0":[1],"7":[1]}}', 1).count == 8


def singles(topics: int) -> dict[TopicPartition, int]:
    return {(f"{number:0249}", 2_147_483_647): number for number in range(topics)}


@pytest.mark.parametrize("count", [0, 1, 3_000])
def test_the_longest_record_of_what_was_given_is_read(count: int) -> None:
    """In `max_owners_bytes`, count a tenth."""
    record = ownership.OwnersRecord(2**63 - 1, "i" * 36, singles(count))
    content = ownership.encode_owners(record)
    assert ownership.decode_owners(content, Bound(lambda _topic: 2**31), singles(count)) == record


def test_more_bytes_than_what_was_given_can_have_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    content = ownership.encode_owners(ownership.OwnersRecord(0, None, singles(1_000)))
    monkeypatch.delattr(json, "loads")
    with pytest.raises(NodeContentError, match=r"owners: \d+ bytes, at most 64068 are allowed"):
        ownership.decode_owners(content, Bound(existing), singles(100))


def test_a_registration_names_no_more_topics_than_one_member_can_own() -> None:
    """In `registration.decode`, count nothing: 1 MB can name 85,000, and all groups wait while they are decoded."""
    most = MEMBER._replace(subscription=dict.fromkeys(map(str, range(40_000)), 1))
    assert registration.decode(registration.encode(most)) == most
    more = most._replace(subscription={**most.subscription, "one-more": 1})
    with pytest.raises(NodeContentError, match="registration: names 40001 topics, at most 40000 are allowed"):
        registration.decode(registration.encode(more))


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a" * 249, "a" * 250, "a/b", "a b", "ä", "a\n", "A-z_0.9"])
def test_all_names_together_are_as_legal_as_each_alone(name: str) -> None:
    """In `paths.are_legal_topics`, leave out one of the conditions."""
    assert paths.are_legal_topics({"t": 1, name: 1, "u": 1}) == paths.is_legal_topic(name)


@pytest.mark.parametrize("threads", [0, 1_001, -1, True, 1.0, "1", None, [1], {}])
def test_numbers_of_threads_together_are_as_legal_as_each_alone(threads: object) -> None:
    """In `registration._are_thread_counts`, leave out one of the conditions."""
    counts = {"a": 1, "b": threads, "c": 1_000}
    content = as_json({**json.loads(registration.encode(MEMBER)), "subscription": counts})
    with pytest.raises(NodeContentError, match="'b': threads "):
        registration.decode(content)
