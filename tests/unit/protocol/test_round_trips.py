"""Every value survives encoding and decoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocol import shapes
from zkrebalancer.protocol import cluster_nodes, command, ownership, registration, settings
from zkrebalancer.protocol.cluster_nodes import CoordinatorAddress
from zkrebalancer.protocol.command import Command, StartFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import EvictionRecord, OwnersRecord, StaticMember
from zkrebalancer.protocol.registration import Registration
from zkrebalancer.protocol.settings import GroupSettings


@given(shapes.COMMANDS)
def test_command(sent: Command) -> None:
    assert command.decode(command.encode(sent)) == sent


@given(shapes.OWNERS_RECORDS)
def test_owners(record: OwnersRecord) -> None:
    assert ownership.decode_owners(ownership.encode_owners(record)) == record


@given(shapes.EVICTION_RECORDS)
def test_eviction_record(record: EvictionRecord) -> None:
    assert ownership.decode_eviction(ownership.encode_eviction(record)) == record


@given(shapes.STATIC_MEMBERS)
def test_static_member(member: StaticMember) -> None:
    assert ownership.decode_static(ownership.encode_static(member)) == member


def test_a_static_member_of_an_earlier_version_may_have_a_former_life_that_still_reads_anything() -> None:
    """In `decode_static`, take a missing `former` for none."""
    content = b'{"version":1,"consumer":"c","partitions":{"t":[[0,1]]},"deadline_ms":null,"grace_ms":9}'
    assert ownership.decode_static(content).former is None


@given(shapes.registrations())
def test_registration(described: Registration) -> None:
    assert registration.decode(registration.encode(described)) == described


@given(shapes.SETTINGS)
def test_settings(group: GroupSettings) -> None:
    assert settings.decode(settings.encode(group)) == group


@given(shapes.ADDRESSES)
def test_coordinator(address: CoordinatorAddress) -> None:
    assert cluster_nodes.decode_coordinator(cluster_nodes.encode_coordinator(address)) == address


@given(st.integers(0, 10**18 - 1))
def test_counter(value: int) -> None:
    assert cluster_nodes.decode_counter("epoch", cluster_nodes.encode_counter(value)) == value


@given(shapes.OWNED, shapes.COMMANDS)
def test_a_start_adds_and_a_stop_removes(owned: dict[TopicPartition, int], applying: Command) -> None:
    after = command.applied(owned, applying)
    named = set(owned) if applying.partitions is None else set(applying.partitions)
    untouched = {partition: thread for partition, thread in owned.items() if partition not in named}
    started = dict(applying.partitions) if isinstance(applying, StartFetcher) else {}
    assert after == untouched | started


def test_empty_settings_are_all_defaults() -> None:
    assert settings.decode(b"") == GroupSettings()
    assert settings.decode(b'{"version":1,"a key of later":[1]}') == GroupSettings()


@pytest.mark.parametrize(
    ("now", "before", "merged"),
    [
        ("id-1 czxid-2", "czxid-2 id-1", "czxid-2 id-1"),  # it has them all: nothing is written
        ("czxid-2", "id-1 czxid-2", "id-1 czxid-2"),
        ("id-1 czxid-2", "czxid-1", "id-1 czxid-2 czxid-1"),
        ("czxid-3", "", "czxid-3"),
    ],
)
def test_names_of_a_topic_are_kept_together(now: str, before: str, merged: str) -> None:
    assert cluster_nodes.merged_names(now, before) == merged


@pytest.mark.parametrize(("until_ms", "thaws"), [(0, False), (1, True)])
def test_a_freeze_that_ends(until_ms: int, *, thaws: bool) -> None:
    assert GroupSettings(frozen=True, frozen_until_ms=until_ms).thaws is thaws
    assert not GroupSettings(frozen_until_ms=until_ms).thaws


@given(shapes.OWNERS_RECORDS, st.booleans())
def test_owners_beside_what_was_given(record: OwnersRecord, is_same: bool) -> None:
    """What is not decoded again is what it would be. In `end_if_as_given`, leave out the thread."""
    given_ = dict.fromkeys(record.partitions if is_same else [*record.partitions][1:], 0)
    end = ownership.end_if_as_given(ownership.encode_given(given_.keys()))
    found = ownership.decode_owners(ownership.encode_owners(record), None, given_, end)
    assert found == record
    assert (found.partitions is given_) is (bool(given_) and record.partitions == given_)


@pytest.mark.parametrize(
    "rest",
    [
        '"x\\"threads":{"0":{"t":[[1,1]]}}}',
        '"x":{"threads":{"0":{"t":[[1,1]]}}}}',
        '"x":{},"threads":{"1":{"t":[[1,1]]}}}',
        '"x":{},"threads":{"0":{"t":[[1,1],[3,3]]}}}',
    ],
)
def test_only_a_record_that_ends_as_what_was_given_is_taken_for_it(rest: str) -> None:
    """In `decode_owners`, look for no backslash."""
    content = b'{"version":1,"generation":1,"command_id":null,"threads":{"0":{"u":[[0,0]]}},' + rest.encode()
    end = ownership.end_if_as_given(b'{"version":1,"partitions":{"t":[[1,1]]}}')
    given_ = {("t", 1): 0}
    assert ownership.decode_owners(content, None, given_, end) == ownership.decode_owners(content)


def test_a_record_of_what_was_given_that_is_written_otherwise_says_nothing_of_how_others_end() -> None:
    assert ownership.end_if_as_given(b'{"partitions":{},"version":1}') is None
