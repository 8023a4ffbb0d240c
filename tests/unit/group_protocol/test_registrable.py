"""A member of a central group whose registration could not be read is refused: it would get nothing, and no error."""

from __future__ import annotations

import struct

import pytest

from tests.support.group_coordinator import GROUP, Coordinator
from tests.support.kip848_group import Client, coordinator_with, described
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer
from zkrebalancer.group_protocol.central import registered_as
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest, JoinGroupProtocol
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.protocol.patterns import MAX_PATTERN_LENGTH
from zkrebalancer.protocol.registration import MAX_TOPICS, Registration, decode, encode

SHORT = [f"x{number}" for number in range(MAX_TOPICS + 1)]
LONG = [f"{number:0>180}" for number in range(7_000)]
MANY = [f"topic-{number:05}" for number in range(900)]  # each may be named, but not all beside an expression


@pytest.fixture
def coordinator() -> Coordinator:
    return coordinator_with({"t": 4}, GroupProtocolSettings(assigns_centrally=True))


def heartbeat(coordinator: Coordinator, client: Client, regex: str) -> E:
    request = ConsumerGroupHeartbeatRequest(GROUP, client.name, client.epoch, subscribed_topic_regex=regex)
    return coordinator.answer(coordinator.send(request, 1), ConsumerGroupHeartbeatAnswer).error_code


@pytest.mark.parametrize(
    ("names", "regex", "expected"),
    [
        (SHORT[:-1], "", E.NONE),
        (SHORT, "", E.GROUP_MAX_SIZE_REACHED),
        (LONG[:5_000], "", E.NONE),
        (LONG, "", E.GROUP_MAX_SIZE_REACHED),
        (MANY[:500], "a.*", E.NONE),
        (MANY, "a.*", E.INVALID_REGULAR_EXPRESSION),
        ((), "a" * (MAX_PATTERN_LENGTH - 10), E.NONE),
        ((), "a" * (MAX_PATTERN_LENGTH - 7), E.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_member_is_admitted_only_with_a_registration_that_can_be_read(
    coordinator: Coordinator, names: list[str], regex: str, expected: E
) -> None:
    """In `check_registration`, leave out a limit, or check the expression without the names."""
    assert Client(coordinator, "a", ("t",)).beat() is E.NONE
    assert Client(coordinator, "b", names, regex=regex).beat() is expected
    assert len(described(coordinator).members) == (1 if expected else 2)
    if not expected:
        pattern, subscription = registered_as(names, regex)
        decode(encode(Registration(pattern, subscription, "", "c", "h", 10_000)))


def test_a_member_keeps_its_subscription_if_the_later_one_is_too_large(coordinator: Coordinator) -> None:
    """In `check_heartbeat`, forget what the member has named before."""
    client = Client(coordinator, "a", MANY)
    assert client.beat() is E.NONE
    assert heartbeat(coordinator, client, "a.*") is E.INVALID_REGULAR_EXPRESSION
    assert described(coordinator).members[0].subscribed_topic_regex is None
    assert client.beat() is E.NONE


def test_a_static_member_that_returns_is_measured_with_what_it_had(coordinator: Coordinator) -> None:
    """In `check_heartbeat`, do not look for its former self."""
    client = Client(coordinator, "a", MANY, instance_id="i")
    assert client.beat() is E.NONE
    client.beat(-2)
    request = ConsumerGroupHeartbeatRequest(
        GROUP, "b", 0, "i", rebalance_timeout_ms=1_000, subscribed_topic_regex="a.*", topic_partitions=()
    )
    answer = coordinator.answer(coordinator.send(request, 1), ConsumerGroupHeartbeatAnswer)
    assert answer.error_code is E.INVALID_REGULAR_EXPRESSION


def test_classic_members_have_the_same_limit(coordinator: Coordinator) -> None:
    """In `consumer_classic.join`, check nothing."""
    names = b"".join(struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in SHORT)
    metadata = struct.pack(">hi", 0, len(SHORT)) + names + struct.pack(">i", -1)
    ticket = coordinator.join(protocols=(JoinGroupProtocol("range", metadata),))
    assert coordinator.join_error(ticket) is E.GROUP_MAX_SIZE_REACHED


def test_groups_whose_clients_assign_have_no_such_limit() -> None:
    """In `Machine._receive_for_one`, check all groups."""
    assert Client(coordinator_with({"t": 4}), "a", SHORT).beat() is E.NONE
