"""Groups share a limit of the partitions that their topics have: two characters may select all of the cluster."""

from __future__ import annotations

import pytest

from tests.support.group_coordinator import DELAY_MS, Coordinator
from tests.support.kip848_group import Client, coordinator_with, topics
from tests.unit.group_protocol.test_kept import naming
from zkrebalancer.group_protocol import kept
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.kept import MEASURE_INTERVAL_MS
from zkrebalancer.group_protocol.requests import ConsumerGroupHeartbeatRequest

COUNTS = {"t": 4, "u": 4, "0000": 4, "0001": 4, "0002": 4}
FULL = 10


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(kept, "MAX_PARTITIONS", FULL)
    return coordinator_with(COUNTS)


def beat(coordinator: Coordinator, group: str, *names: str, **other: object) -> E:
    """Let a member join, or send the heartbeat of another epoch."""
    fields: dict[str, object] = {"member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 60_000, **other}
    if fields["member_epoch"] != -1:
        fields |= {"subscribed_topic_names": names, "topic_partitions": ()}
    request = ConsumerGroupHeartbeatRequest(group, **fields)  # type: ignore[arg-type]
    return coordinator.ask(request, ConsumerGroupHeartbeatAnswer, 1).error_code


def test_who_would_add_too_many_partitions_is_refused_and_the_others_go_on(coordinator: Coordinator) -> None:
    """In `Kept.check`, leave the topics out, or those of an expression; or count them though the group has them."""
    assert [beat(coordinator, name, "t") for name in "ab"] == [E.NONE, E.NONE]
    assert beat(coordinator, "c", subscribed_topic_regex="t|u") is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.reports[-1] == f"a request is refused: no room for 8 partitions more, as groups may have {FULL}"
    assert beat(coordinator, "a", "t", "u", member_id="b") is E.GROUP_MAX_SIZE_REACHED
    assert [beat(coordinator, "a", "t", "nothing", member_id=name) for name in "bcd"] == [E.NONE] * 3
    assert beat(coordinator, "b", member_epoch=-1) is E.NONE
    coordinator.pass_time(MEASURE_INTERVAL_MS)
    assert beat(coordinator, "c", "u") is E.NONE


def test_a_stranger_takes_no_room(coordinator: Coordinator) -> None:
    """In `Kept.check`, count the topics before it is known whether the request is of a member."""
    assert beat(coordinator, "a", "t") is E.NONE
    assert beat(coordinator, "a", "u", member_id="stranger", member_epoch=5) is E.UNKNOWN_MEMBER_ID
    assert coordinator.machine._kept._partitions == COUNTS["t"]


@pytest.mark.parametrize("is_read_again", [False, True])
def test_topics_that_grow_count(coordinator: Coordinator, *, is_read_again: bool) -> None:
    """In `ConsumerGroup.topics_changed`, note nothing; in `Kept.add`, count no partitions."""
    assert beat(coordinator, "a", "t") is E.NONE
    coordinator.topics_read = topics({**COUNTS, "t": FULL - 3})
    if is_read_again:
        coordinator.crash()
    else:
        coordinator.step(coordinator.topics_read)
    assert beat(coordinator, "b", "u") is E.GROUP_MAX_SIZE_REACHED


def test_classic_clients_of_a_kip_848_group_count_too(coordinator: Coordinator) -> None:
    """In `Kept.check_subscription`, leave the topics out."""
    assert Client(coordinator, "a").beat() is E.NONE
    assert coordinator.join_error(coordinator.join(protocols=naming(2))) is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.join_error(coordinator.join(protocols=naming(1))) is E.NONE


def test_a_classic_group_stays_one_if_its_topics_have_too_many_partitions(coordinator: Coordinator) -> None:
    """In `Kept.check_upgrade`, leave the topics out."""
    join = coordinator.join(protocols=naming(3))
    coordinator.pass_time(DELAY_MS)
    member_id = coordinator.joined(join).member_id
    coordinator.sync(member_id, 1, {member_id: b""})
    assert Client(coordinator, "b").beat() is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.heartbeat(member_id, 1) is E.NONE
