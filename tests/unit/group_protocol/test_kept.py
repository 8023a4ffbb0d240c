"""Members of all groups share a limit: beyond it newcomers are refused, and working groups go on."""

from __future__ import annotations

import struct

import pytest

from tests.support.classic_consumer import NEWCOMER
from tests.support.group_coordinator import DELAY_MS, GROUP, Coordinator
from tests.support.kip848_group import Client, coordinator_with, settle
from zkrebalancer.group_protocol import kept
from zkrebalancer.group_protocol.answers import ConsumerGroupHeartbeatAnswer, LeaveGroupAnswer
from zkrebalancer.group_protocol.consumer_group import ConsumerGroup
from zkrebalancer.group_protocol.error_codes import ErrorCode as E
from zkrebalancer.group_protocol.kept import MEASURE_INTERVAL_MS
from zkrebalancer.group_protocol.requests import (
    ConsumerGroupHeartbeatRequest,
    JoinGroupProtocol,
    LeaveGroupRequest,
    MemberIdentity,
)
from zkrebalancer.group_protocol.settings import GroupProtocolSettings

ROOM, LITTLE = 20_000, 1_000


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_KEPT_BYTES", ROOM)
    monkeypatch.setattr(kept, "LITTLE_BYTES", LITTLE)
    monkeypatch.setattr(kept, "MEMBER_BYTES", 0)


def protocols(size: int) -> tuple[JoinGroupProtocol, ...]:
    return (JoinGroupProtocol("range", bytes(size)),)


def with_two_groups() -> tuple[Coordinator, list[str]]:
    """Return a coordinator that is full with groups `a` and `b`, and the ids of their members."""
    coordinator = coordinator_with({"t": 4})
    joins = [coordinator.join(group=name, protocols=protocols(9_000)) for name in "ab"]
    coordinator.pass_time(DELAY_MS)
    answers = [coordinator.joined(ticket) for ticket in joins]
    for name, answer in zip("ab", answers, strict=True):
        coordinator.sync(answer.member_id, answer.generation_id, {answer.member_id: b"x"}, group=name)
    coordinator.reports.clear()
    return coordinator, [answer.member_id for answer in answers]


@pytest.mark.parametrize("has_crashed", [False, True])
def test_newcomers_are_refused_until_others_keep_less(*, has_crashed: bool) -> None:
    """In `Kept`, let each group have a limit only, or never measure again."""
    coordinator, ids = with_two_groups()
    if has_crashed:
        coordinator.crash()
    coordinator.pass_time(MEASURE_INTERVAL_MS)
    refused = coordinator.join(group="d", protocols=protocols(5_000))
    assert coordinator.join_error(refused) is E.GROUP_MAX_SIZE_REACHED
    assert coordinator.reports[-1] == (
        f"a request is refused: no room for its 5265 bytes, as members keep {ROOM}, the most"
    )
    little = coordinator.join(group="a", member_id=ids[0], protocols=protocols(LITTLE - 100))
    assert coordinator.join_error(little) is E.NONE
    coordinator.ask(LeaveGroupRequest("b", (MemberIdentity(ids[1]),)), LeaveGroupAnswer, 5)
    coordinator.pass_time(MEASURE_INTERVAL_MS)
    assert coordinator.is_waiting(coordinator.join(group="d", protocols=protocols(5_000)))


def test_a_member_keeps_what_it_had_and_no_more() -> None:
    """In `Kept.check`, refuse members as newcomers: groups that work would end."""
    coordinator, ids = with_two_groups()
    again = coordinator.join(group="a", member_id=ids[0], protocols=protocols(9_000))
    assert coordinator.joined(again).generation_id == 2
    more = coordinator.join(group="a", member_id=ids[0], protocols=protocols(12_000))
    assert coordinator.join_error(more) is E.GROUP_MAX_SIZE_REACHED
    assert "a" in coordinator.machine._groups


def test_a_static_member_that_returns_is_no_newcomer() -> None:
    coordinator = Coordinator()
    coordinator.stable("a", instances={"a": "i"})
    coordinator.join(group="b", protocols=protocols(ROOM - 700))
    other = coordinator.join(group="c")
    assert coordinator.join_error(other) is E.GROUP_MAX_SIZE_REACHED
    returned = coordinator.join(instance="i", client_id="a")
    assert coordinator.joined(returned).error_code is E.NONE


def test_an_assignment_waits_for_room() -> None:
    """In `kept._wanted`, leave assignments out: a leader may give each member megabytes."""
    coordinator = Coordinator()
    joined = coordinator.join()
    coordinator.pass_time(DELAY_MS)
    leader = coordinator.joined(joined)
    for size, error in ((ROOM, E.COORDINATOR_NOT_AVAILABLE), (LITTLE, E.NONE)):
        given = {leader.member_id: bytes(size), "nobody": bytes(ROOM)}
        assert coordinator.synced(coordinator.sync(leader.member_id, 1, given)).error_code is error


@pytest.mark.parametrize("of_metadata", [0, 500])
def test_metadata_and_assignments_do_not_grow_by_each_other(of_metadata: int) -> None:
    """In `Kept.check`, let members that keep no more in all have no limit: each generation may be given more."""
    coordinator = Coordinator()
    member_id, sizes = "", list[int]()
    for number in range(1, 60):
        joined = coordinator.join(member_id=member_id, protocols=protocols(900 + of_metadata * number))
        coordinator.pass_time(DELAY_MS)
        if joined in coordinator.answers and coordinator.join_error(joined):
            break
        answer = coordinator.joined(joined)
        member_id = answer.member_id
        given = {member_id: bytes(900 * number)}
        if coordinator.synced(coordinator.sync(member_id, answer.generation_id, given)).error_code:
            break
        (member,) = coordinator.machine._groups[GROUP].roster.members.values()
        sizes.append(kept._of_member(member))
    assert ROOM / 2 < sizes[-1] <= 2 * ROOM
    assert len(sizes) < 50


def test_names_beside_an_expression_do_not_grow_uncounted() -> None:
    """In `_replaced`, count all that a KIP-848 member has."""
    coordinator = coordinator_with({"t": 4})
    client = Client(coordinator, "a", topic_names=["t"], regex="x" * 700)
    settle(coordinator, client)
    sizes, error = list[int](), E.NONE
    while not error and len(sizes) < 100:
        names = ("y" * 500 * len(sizes),)
        beat = ConsumerGroupHeartbeatRequest(GROUP, "a", client.epoch, subscribed_topic_names=names)
        answer = coordinator.ask(beat, ConsumerGroupHeartbeatAnswer, 1)
        error, client.epoch = answer.error_code, answer.member_epoch or client.epoch
        sizes.append(kept._of_member(coordinator.machine._groups[GROUP].roster.members["a"]))
    assert error is E.GROUP_MAX_SIZE_REACHED
    assert ROOM < sizes[-1] <= 2 * ROOM


def test_subscriptions_of_kip_848_clients_count_too() -> None:
    coordinator = coordinator_with({"t": 4})
    first = Client(coordinator, "a", topic_names=["t", "x" * (ROOM // 2 - 300)])
    settle(coordinator, first)
    assert Client(coordinator, "b").beat() is E.NONE
    refused = Client(coordinator, "c", topic_names=["y" * LITTLE])
    assert refused.beat() is E.GROUP_MAX_SIZE_REACHED
    first.beat(0)
    assert first.beat() is E.NONE
    assert set(coordinator.machine._groups[GROUP].roster.members) == {"a", "b"}


def naming(count: int) -> tuple[JoinGroupProtocol, ...]:
    """Return the protocols of a consumer of so many topics, whose names are short."""
    names = b"".join(struct.pack(">h4s", 4, f"{number:04}".encode()) for number in range(count))
    return (JoinGroupProtocol("range", struct.pack(">hi", 0, count) + names + struct.pack(">i", -1)),)


MANY = naming(250)  # 1.5 KB, and 18 KB when the names are kept


def test_topics_of_a_classic_member_of_a_kip_848_group_count() -> None:
    """In `consumer_classic.join`, do not check the subscription: each name needs far more than its bytes."""
    coordinator = coordinator_with({"t": 4})
    client = Client(coordinator, "a")
    settle(coordinator, client)
    refused = coordinator.join(protocols=MANY)
    assert coordinator.join_error(refused) is E.GROUP_MAX_SIZE_REACHED
    assert set(coordinator.machine._groups[GROUP].roster.members) == {"a"}
    coordinator.pass_time(MEASURE_INTERVAL_MS)
    few = coordinator.join(protocols=naming(100))
    assert coordinator.join_error(few) is E.NONE
    member_id = coordinator.joined(few).member_id
    before = coordinator.machine._kept._at_most
    for _ in range(3):
        assert coordinator.join_error(coordinator.join(member_id, naming(100))) is E.NONE
    assert coordinator.machine._kept._at_most == before  # it keeps no more


def test_a_classic_group_becomes_one_of_kip_848_if_there_is_room() -> None:
    """In `Machine._upgrade`, check nothing: the names of all members need room at once."""
    coordinator = coordinator_with({"t": 4})
    join = coordinator.join(protocols=MANY)
    coordinator.pass_time(DELAY_MS)
    member_id = coordinator.joined(join).member_id
    assert Client(coordinator, "c").beat() is E.GROUP_MAX_SIZE_REACHED
    coordinator.sync(member_id, 1, {member_id: b"x"})
    assert coordinator.heartbeat(member_id, 1) is E.NONE


def test_what_else_a_client_sends_counts() -> None:
    """In `kept`, leave out a rack, an id or a group's name: each may have 32 KiB."""
    coordinator = coordinator_with({"t": 4})
    long = "x" * ROOM
    beat = ConsumerGroupHeartbeatRequest(GROUP, "a", 0, None, long, 60_000, (), topic_partitions=())
    assert coordinator.ask(beat, ConsumerGroupHeartbeatAnswer, 1).error_code is E.GROUP_MAX_SIZE_REACHED
    for refused in (coordinator.join(client_id=long), coordinator.join(instance=long), coordinator.join(group=long)):
        assert coordinator.join_error(refused) is E.GROUP_MAX_SIZE_REACHED


def test_ids_that_are_given_out_count() -> None:
    """In `kept._of_group`, leave them out: a group has 10,000 of them, each as long as its client's name."""
    coordinator = Coordinator()
    errors = list[E]()
    for _ in range(5):
        errors.append(coordinator.join_error(coordinator.join(version=5, client_id="c" * 4_000)))
        coordinator.pass_time(MEASURE_INTERVAL_MS)
    assert errors == [E.MEMBER_ID_REQUIRED] * 3 + [E.GROUP_MAX_SIZE_REACHED] * 2


def test_each_member_uses_memory_however_little_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `kept._wanted`, leave MEMBER_BYTES out: a million members without a topic would need gigabytes."""
    monkeypatch.setattr(kept, "MEMBER_BYTES", ROOM // 2 - 500)
    coordinator = coordinator_with({"t": 4})
    found = [Client(coordinator, name, topic_names=()).beat() for name in "abc"]
    assert found == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]
    assert Client(coordinator, "stranger").beat(5) is E.UNKNOWN_MEMBER_ID
    assert Client(coordinator, "a").beat(-1) is E.NONE


@pytest.mark.parametrize("is_classic", [False, True])
def test_the_agent_of_each_member_of_a_central_group_uses_memory(
    monkeypatch: pytest.MonkeyPatch, *, is_classic: bool
) -> None:
    """In `Kept.check`, `check_subscription` or `_of_group`, leave it out: it is most of what a member uses."""
    monkeypatch.setattr(kept, "AGENT_BYTES", ROOM // 2 - 2_000)
    coordinator = coordinator_with({"t": 4}, GroupProtocolSettings(assigns_centrally=True))

    def join(name: str) -> E:
        if not is_classic:
            return Client(coordinator, name).beat()
        ticket = coordinator.join(name, NEWCOMER, version=5)
        return E.NONE if coordinator.is_waiting(ticket) else coordinator.join_error(ticket)

    assert [join(name) for name in "abc"] == [E.NONE, E.NONE, E.GROUP_MAX_SIZE_REACHED]
    coordinator.crash()
    coordinator.pass_time(MEASURE_INTERVAL_MS)
    assert [join(name) for name in "ac"] == [E.NONE, E.GROUP_MAX_SIZE_REACHED]


def test_the_syncs_of_followers_look_at_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Kept.check`, look at all members first: a thousand followers would look at a thousand members each."""
    coordinator = Coordinator()
    ids = coordinator.stable("a", "b")
    monkeypatch.delattr(kept, "_known")
    assert coordinator.synced(coordinator.sync(ids["b"], 1)).error_code is E.NONE


def test_names_of_protocols_are_forgotten_with_their_member() -> None:
    """In `ConsumerRoster._count_classic`, keep names that no member has: one that joins again has others each time."""
    coordinator = coordinator_with({"t": 4})
    client = Client(coordinator, "k")
    settle(coordinator, client)
    member_id = ""
    for number in range(5):
        names = (*NEWCOMER, JoinGroupProtocol(f"other-{number}", b""))
        joined = coordinator.joined(coordinator.join(member_id, names))
        assert not joined.error_code
        member_id = joined.member_id
        client.beat()
    group = coordinator.machine._groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    assert set(group.roster._support) == {NEWCOMER[0].name, "other-4"}
