"""Shards of groups: which group belongs to which, and the contents of their nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrebalancer.group_protocol.placement import BUCKETS, bucket_of
from zkrebalancer.protocol import shards
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.places import java_hash, place_of
from zkrebalancer.protocol.shards import MAX_SHARDS, WHOLE, Number, Shard, ShardHost


@given(st.text(max_size=20), st.integers(1, MAX_SHARDS))
def test_each_group_belongs_to_one_shard(group: str, count: int) -> None:
    """In `Shard.has`, compare with another number."""
    (mine,) = [shard for shard in Number(count).all(0) if shard.has(group)]
    assert all(shards.concerns(shard.event_fields, group) == (shard == mine) for shard in Number(count).all(0))


@given(st.text(max_size=20))
def test_the_shard_is_the_partition_that_kafka_would_give_the_group(group: str) -> None:
    assert shards.shard_of(group, BUCKETS) == bucket_of(group)


def test_the_only_shard_has_the_nodes_of_former_releases() -> None:
    assert (WHOLE.coordinator, WHOLE.epoch) == ("/consumers/coordinator", "/consumers/coordinator_epoch")
    assert Shard(3, 8).obstacles == "/consumers/shards/3/coordinator_obstacles"


def test_contents_are_read_as_they_were_written() -> None:
    assert shards.decode_number(shards.encode_number(Number(8, 17))) == Number(8, 17)
    host = ShardHost(1, "b1", 2)
    assert shards.decode_host(shards.encode_host(host)) == host
    assert shards.decode_number(b"") == Number(), "a group of this name of Kafka's oldest consumers"


@pytest.mark.parametrize("content", [b"{", b'{"version":1,"shards":0,"first_epoch":0}', b'{"version":2,"shards":1}'])
def test_an_invalid_number_is_refused(content: bytes) -> None:
    with pytest.raises(NodeContentError):
        shards.decode_number(content)


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(NodeContentError, match="capacity"):
        shards.decode_host(b'{"version":1,"brokerid":1,"host":"h","capacity":0}')


@pytest.mark.parametrize(
    ("group", "java", "place"),
    [
        ("", 0, 0),
        ("a", 97, 47),
        ("hello", 99_162_322, 22),
        ("polygenelubricants", -(1 << 31), 0),  # whose absolute value Java does not have
        ("\U0001f600", 1_772_899, 49),  # two units of UTF-16
    ],
)
def test_a_place_is_javas_hash_of_the_name(group: str, java: int, place: int) -> None:
    assert (java_hash(group), place_of(group, BUCKETS)) == (java, place)


def test_the_largest_number_of_shards_is_one() -> None:
    assert shards.decode_number(shards.encode_number(Number(MAX_SHARDS))) == Number(MAX_SHARDS)
    with pytest.raises(NodeContentError, match=f"^shards: shards must be 1 to {MAX_SHARDS}, not {MAX_SHARDS + 1}$"):
        shards.decode_number(shards.encode_number(Number(MAX_SHARDS + 1)))
