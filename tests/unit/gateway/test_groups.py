"""What stands between the pure machine and ZooKeeper: claims, writes, leases and timers of one gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from unittest import mock
from uuid import UUID

import gevent
import pytest
from gevent.event import AsyncResult, Event

from tests.support.deadlines import WITHIN_S
from tests.unit.gateway.model_session import ModelSession
from zkrebalancer.gateway.buckets import Buckets, Claim
from zkrebalancer.gateway.groups import Groups
from zkrebalancer.gateway.layout import BUCKETS, OWNERS
from zkrebalancer.gateway.membership import Membership
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.nodes import node_name
from zkrebalancer.gateway.pauses import FIRST_S, REST_S, Pauses
from zkrebalancer.group_protocol import stored
from zkrebalancer.group_protocol.answers import Answer, JoinGroupAnswer
from zkrebalancer.group_protocol.effects import GroupLoaded, Received, Reported, Store
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.placement import BUCKETS as BUCKET_COUNT
from zkrebalancer.group_protocol.placement import bucket_of
from zkrebalancer.group_protocol.requests import (
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from zkrebalancer.group_protocol.settings import GroupProtocolSettings
from zkrebalancer.group_protocol.stored import StoredGroup
from zkrebalancer.group_protocol.topics import Topic
from zkrebalancer.protocol.calls import Create, Delete, Refusal, Refused, SetContent
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError
from zkrebalancer.runtime import clock

WAIT_S = WITHIN_S
GROUP = StoredGroup(3, "consumer", "range", "m", is_assigned=True, members=())
BUCKET = bucket_of("g")


@pytest.fixture
def session() -> ModelSession:
    found = ModelSession()
    Membership(found, "gw", 1).refresh()
    return found


def claimed(session: ModelSession) -> tuple[Buckets, Claim]:
    buckets = Buckets(session)
    claim = buckets.claim(BUCKET, 0)
    assert claim is not None
    return buckets, claim


def store(buckets: Buckets, claim: Claim) -> ErrorCode | None:
    result: AsyncResult[ErrorCode] = AsyncResult()
    buckets.store(claim, "g", GROUP, lambda error, _refusal: result.set(error))
    return result.get(timeout=WAIT_S)


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (Refusal.CONNECTION_LOST, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Refusal.NO_AUTH, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (Refusal.BAD_VERSION, ErrorCode.NOT_COORDINATOR),
        (Refusal.TOO_LARGE, ErrorCode.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_a_group_whose_first_write_fails_can_be_stored_later(
    session: ModelSession, refusal: Refusal, expected: ErrorCode
) -> None:
    buckets, claim = claimed(session)
    session.refusals = [Refused(refusal)]
    assert store(buckets, claim) is expected
    assert store(buckets, claim) is ErrorCode.NONE


def test_a_group_that_is_too_large_to_be_read_again_is_refused_as_by_zookeeper(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Buckets.store`, let TooLargeGroupError through: the group would fail, and all its members with it."""
    buckets, claim = claimed(session)
    monkeypatch.setattr(stored, "MAX_WRITTEN_BYTES", 1)
    assert store(buckets, claim) is ErrorCode.GROUP_MAX_SIZE_REACHED
    monkeypatch.undo()
    assert store(buckets, claim) is ErrorCode.NONE


def test_pauses_grow_and_begin_anew_after_a_rest() -> None:
    pauses = Pauses()
    assert [pauses.after_failure("g", now_s) for now_s in (0.0, 1.0, 2.0)] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses.after_failure("g", 2.0 + REST_S) == 8 * FIRST_S
    assert pauses.after_failure("g", 3.0 + 2 * REST_S) == FIRST_S


def served(session: ModelSession, settings: GroupProtocolSettings | None = None) -> Groups:
    groups = Groups(session, settings or GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    groups.serve(0, [0])
    gevent.sleep(0)
    assert groups.is_settled
    assert groups.served_buckets == BUCKET_COUNT
    return groups


def test_whoever_reads_topics_learns_of_those_of_groups_that_are_read(session: ModelSession) -> None:
    """In `Groups._begin` or `_load_again`, do not tell: brokers may not list them.

    In `of_groups`, let the error of a damaged group through: no group of its bucket is served.
    """
    found: list[Mapping[str, Topic]] = []
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None, None, found.append)
    groups.serve(0, [0])
    gevent.sleep(0)
    for name, topic_id in (("g", UUID(int=7).bytes), ("damaged", b"?")):
        kept = stored.StoredConsumerGroup(1, 1, (stored.StoredTopic("t", topic_id, 3),), ())
        groups._buckets.store(groups._claims[bucket_of(name)], name, kept, lambda *_: None)
    groups._load_again("g")
    groups.lose_all()
    groups.serve(0, [0])
    gevent.sleep(0)
    assert [one for one in found if one] == [{"t": Topic(UUID(int=7), 3)}] * 2


def test_agents_learn_which_groups_are_served_and_which_exist(session: ModelSession) -> None:
    """In `serve`, `_begin` or `_load_again`, do not tell them: clients would have registrations at two gateways."""
    agents = mock.Mock()
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None, agents)
    groups.serve(0, [0])
    gevent.sleep(0)
    assert agents.keep.call_args.args == (set(range(BUCKET_COUNT)),)
    assert sorted(call.args for call in agents.loaded.call_args_list) == [(one, {}) for one in range(BUCKET_COUNT)]
    groups.serve(0, [0, 1])
    (kept,) = agents.keep.call_args.args
    assert 0 < len(kept) < BUCKET_COUNT
    served = next(name for name in map(str, range(100)) if bucket_of(name) in kept)
    groups._load_again(served)
    assert agents.reported.call_args.args == (Reported(served, ()),)


def test_buckets_of_other_gateways_are_given_up(session: ModelSession) -> None:
    groups = served(session)
    groups.serve(0, [0, 1])
    gevent.sleep(0)
    assert 0 < groups.served_buckets < BUCKET_COUNT
    assert groups.served_buckets == len(session.model.children(OWNERS))


def test_a_claim_that_was_made_in_a_former_session_serves_nobody(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Groups._claim`, serve a bucket though the session has changed while its groups were read."""
    is_read, read_all = Event(), Buckets.read_all

    def read_slowly(self: Buckets, claim: Claim) -> object:
        is_read.wait(WAIT_S)
        return read_all(self, claim)

    monkeypatch.setattr(Buckets, "read_all", read_slowly)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    groups.serve(0, [0])
    gevent.sleep(0)
    session.renew()
    is_read.set()
    gevent.sleep(0)
    gevent.sleep(0)
    assert groups.served_buckets == 0


def test_a_deadline_that_is_sooner_than_what_is_waited_for_wakes_the_timers(session: ModelSession) -> None:
    """In `Groups.step`, wake nobody: the first join would wait until something else happens, or for a minute."""
    groups = served(session, GroupProtocolSettings(group_initial_rebalance_delay_ms=1))
    timers = gevent.spawn(groups.wake_timers)
    gevent.sleep(0)
    answered: AsyncResult[Answer] = AsyncResult()
    join = JoinGroupRequest("g", "", 30_000, "consumer", (JoinGroupProtocol("range", b""),))
    groups.receive(join, 3, ("c", "h"), answered.set)
    answer = answered.get(timeout=WAIT_S)
    timers.kill()
    assert isinstance(answer, JoinGroupAnswer)
    assert answer.error_code is ErrorCode.NONE


def asked(groups: Groups) -> AsyncResult[Answer]:
    answered: AsyncResult[Answer] = AsyncResult()
    join = JoinGroupRequest("g", "", 30_000, "consumer", (JoinGroupProtocol("range", b""),))
    groups.receive(join, 4, ("c", "h"), answered.set)
    return answered


def error_of(answered: AsyncResult[Answer]) -> ErrorCode:
    answer = answered.get(timeout=WAIT_S)
    assert isinstance(answer, JoinGroupAnswer)
    return answer.error_code


def test_requests_wait_until_their_group_is_served(session: ModelSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Groups.receive`, refuse them at once: clients would repeat them without a rest. In `_begin`, release none."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.HOLD_S", 1_000)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    early = asked(groups)
    groups.serve(0, [0])
    late = asked(groups)
    assert not early.ready()
    assert not late.ready()
    assert [error_of(early), error_of(late)] == [ErrorCode.MEMBER_ID_REQUIRED] * 2


def test_requests_wait_for_a_limited_time(session: ModelSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Groups._hold`, start no timer: clients would wait for ever while there is no session."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.HOLD_S", 0.01)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    assert error_of(asked(groups)) is ErrorCode.NOT_COORDINATOR
    assert error_of(asked(groups)) is ErrorCode.NOT_COORDINATOR


def test_a_commit_does_not_wait_until_its_group_is_served(session: ModelSession) -> None:
    """In `groups.MAY_WAIT`, add it: it would overwrite what the member has committed at another gateway meanwhile."""
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    groups.serve(0, [0])
    answered: AsyncResult[Answer] = AsyncResult()
    groups.receive(OffsetCommitRequest("g", 1, "m"), 8, ("c", "h"), answered.set)
    assert answered.ready()


def test_a_group_is_taken_over_when_its_bucket_is_served(session: ModelSession) -> None:
    """In `Groups._begin`, do not note the time; in `has_taken_over_since`, compare the other way round."""
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    before_us = clock.steady_us()
    assert not groups.has_taken_over_since(before_us, "g")  # nor is it served
    groups.serve(0, [0])
    gevent.sleep(0)
    assert groups.has_taken_over_since(before_us, "g")
    assert not groups.has_taken_over_since(clock.steady_us(), "g")


def test_requests_of_a_later_wait_are_not_released_with_the_former(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Groups._release`, release whatever waits for the bucket when a former timer ends."""
    timers: list[tuple[int, list[Received]]] = []
    monkeypatch.setattr(gevent, "spawn_later", lambda _seconds, _release, bucket, held: timers.append((bucket, held)))
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    asked(groups)
    groups.serve(0, [0])
    gevent.sleep(0)
    groups.lose_all()
    later = asked(groups)
    former, own = timers
    groups._release(*former)
    gevent.sleep(0)
    assert not later.ready()
    groups._release(*own)
    groups._release(*own)
    assert error_of(later) is ErrorCode.NOT_COORDINATOR


def test_without_a_lease_nobody_is_answered_as_a_member(session: ModelSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Groups.receive`, do not look at the lease; in `fence`, return the claim all the same."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.HOLD_S", 0.01)
    groups = served(session)
    assert groups.fence("g") is not None
    session.is_leased = False
    assert groups.fence("g") is None
    assert error_of(asked(groups)) is ErrorCode.NOT_COORDINATOR
    assert groups.served_buckets == 0


def test_requests_that_wait_are_not_served_if_the_lease_ends_meanwhile(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Groups._claim`, do not look at the lease: what was read may be the past, and another gateway's turn."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.HOLD_S", 0.01)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    waiting = asked(groups)
    groups.serve(0, [0])
    session.is_leased = False
    assert error_of(waiting) is ErrorCode.NOT_COORDINATOR
    assert groups.served_buckets == 0


def test_a_bucket_that_another_gateway_has_claimed_is_no_longer_served(session: ModelSession) -> None:
    """In `Buckets.store`, do not check the claim; in `Groups._store`, go on serving the bucket."""
    lost: list[bool] = []
    settings = GroupProtocolSettings(group_initial_rebalance_delay_ms=1)
    groups = Groups(session, settings, Metrics(), lambda: lost.append(True), lambda: None)
    groups.serve(0, [0])
    gevent.sleep(0)
    session.do(SetContent(f"{BUCKETS}/{BUCKET}", b"9"))
    timers = gevent.spawn(groups.wake_timers)
    answered: AsyncResult[Answer] = AsyncResult()
    join = JoinGroupRequest("g", "", 30_000, "consumer", (JoinGroupProtocol("range", b""),))
    groups.receive(join, 3, ("c", "h"), answered.set)
    joined = answered.get(timeout=WAIT_S)
    timers.kill()
    assert isinstance(joined, JoinGroupAnswer)
    synced: AsyncResult[Answer] = AsyncResult()
    given = (SyncGroupAssignment(joined.member_id, b""),)
    groups.receive(
        SyncGroupRequest("g", joined.generation_id, joined.member_id, assignments=given), 3, ("c", "h"), synced.set
    )
    synced.get(timeout=WAIT_S)
    assert groups.served_buckets == BUCKET_COUNT - 1
    assert lost == [True]


def test_a_late_refusal_of_an_earlier_claim_does_not_end_the_later_one(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Groups._store`, do not look whose write was refused: the bucket would be lost, and its members join again."""
    lost, late = list[bool](), list[Callable[[ErrorCode], None]]()
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: lost.append(True), lambda: None)
    groups.serve(0, [0])
    gevent.sleep(0)
    monkeypatch.setattr(Buckets, "store", lambda *arguments: late.append(arguments[-1]))
    groups._store(Store(1, "g", GROUP))
    for alive in ([1], [0]):
        groups.serve(0, alive)
        gevent.sleep(0)
    assert groups.served_buckets == BUCKET_COUNT
    for stored_with in late:
        stored_with(ErrorCode.NOT_COORDINATOR)
    assert (groups.served_buckets, lost) == (BUCKET_COUNT, [])
    groups._store(Store(2, "g", GROUP))
    late[-1](ErrorCode.NOT_COORDINATOR)
    assert (groups.served_buckets, lost) == (BUCKET_COUNT - 1, [True])


@pytest.mark.parametrize("is_claimed_again", [False, True])
def test_a_failed_group_that_is_read_while_its_bucket_goes_to_another_gateway_is_not_served(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch, *, is_claimed_again: bool
) -> None:
    """In `Groups._load_again`, do not look at the claim again: what was read may be the past."""
    groups, read, loaded = served(session), Buckets.read, list[GroupLoaded]()
    monkeypatch.setattr(groups, "step", lambda event: loaded.append(event) if isinstance(event, GroupLoaded) else None)

    def read_slowly(self: Buckets, claim: Claim, names: Sequence[str]) -> object:
        monkeypatch.setattr(Buckets, "read", read)  # a bucket that is claimed again is read too
        groups.serve(0, [1])
        if is_claimed_again:
            groups.serve(0, [0])
            gevent.sleep(0)
            assert groups.served_buckets == BUCKET_COUNT
        return read(self, claim, names)

    groups._load_again("g")
    assert [event.group_id for event in loaded] == ["g"]
    monkeypatch.setattr(Buckets, "read", read_slowly)
    groups._load_again("g")
    assert len(loaded) == 1


def test_a_failed_group_that_cannot_be_read_is_read_later(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Groups._load_again`, give up after the first try: the group would not be served until a restart."""
    groups, read, errors = served(session), Buckets.read, [ZooKeeperUnavailableError("broken")]
    loaded: AsyncResult[object] = AsyncResult()

    def read_at_times(self: Buckets, claim: Claim, names: Sequence[str]) -> object:
        if errors:
            raise errors.pop()
        return read(self, claim, names)

    monkeypatch.setattr("zkrebalancer.gateway.groups.CLAIM_RETRY_S", 0)
    monkeypatch.setattr(groups, "step", loaded.set)
    monkeypatch.setattr(Buckets, "read", read_at_times)
    groups._load_again("g")
    assert loaded.get(timeout=WAIT_S) == GroupLoaded("g", None)


def test_a_claim_that_is_no_longer_wanted_ends(session: ModelSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Groups._claim`, leave the bucket as one that is being read: its clients would wait for ever."""
    monkeypatch.setattr("zkrebalancer.gateway.groups.CLAIM_RETRY_S", 0)
    monkeypatch.setattr(Buckets, "claim", lambda *_: None)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    groups.serve(0, [0])
    gevent.sleep(0)
    groups.serve(0, [1])
    while not groups.is_settled:
        gevent.sleep(0)
    assert error_of(asked(groups)) is ErrorCode.NOT_COORDINATOR


def test_a_bucket_is_claimed_once_at_a_time(session: ModelSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Groups.serve`, claim those that are being claimed: the second claim would end the first."""
    claims, claim = list[int](), Buckets.claim

    def counted(self: Buckets, bucket: int, number: int) -> Claim | None:
        claims.append(bucket)
        return claim(self, bucket, number)

    monkeypatch.setattr(Buckets, "claim", counted)
    groups = Groups(session, GroupProtocolSettings(), Metrics(), lambda: None, lambda: None)
    for _ in range(2):
        groups.serve(0, [0])
    gevent.sleep(0)
    groups.serve(0, [0])
    gevent.sleep(0)
    assert claims == list(range(BUCKET_COUNT))


def test_all_groups_of_a_bucket_are_read_however_few_at_once(
    session: ModelSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `Buckets.read`, read the first slice only."""
    monkeypatch.setattr("zkrebalancer.gateway.buckets.SLICE", 2)
    buckets, claim = claimed(session)
    names = [name for name in map(str, range(20 * BUCKET_COUNT)) if bucket_of(name) == BUCKET][:5]
    for name in names:
        session.do(Create(f"{BUCKETS}/{BUCKET}/{node_name(name)}", stored.to_bytes(GROUP)))
    assert buckets.read_all(claim) == dict.fromkeys(names, GROUP)
    assert claim.names == set(names)


def test_a_group_that_may_not_be_shown_is_written_over_and_not_created(session: ModelSession) -> None:
    """In `Buckets.read`, forget that it has a node: every write would say that another gateway has the bucket."""
    buckets, claim = claimed(session)
    assert store(buckets, claim) is ErrorCode.NONE
    claim.names.clear()
    session.refusals = [Refused(Refusal.NO_AUTH)]
    assert buckets.read(claim, [node_name("g")]) == {}
    assert store(buckets, claim) is ErrorCode.NONE


def test_a_group_whose_node_is_gone_is_created(session: ModelSession) -> None:
    """In `Buckets.read`, keep it among those that have a node."""
    buckets, claim = claimed(session)
    assert store(buckets, claim) is ErrorCode.NONE
    session.do(Delete(f"{BUCKETS}/{BUCKET}/{node_name('g')}"))
    assert buckets.read(claim, [node_name("g")]) == {}
    assert store(buckets, claim) is ErrorCode.NONE


def test_only_own_claims_are_given_up(session: ModelSession) -> None:
    """In `Buckets.give_up`, do not look at whose they are."""
    buckets, _claim = claimed(session)
    session.renew()
    buckets.give_up([BUCKET])
    assert session.model.children(OWNERS) == [str(BUCKET)]
