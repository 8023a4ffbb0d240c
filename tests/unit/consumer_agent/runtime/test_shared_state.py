"""What passes between the threads: the lease at the moment of returning, and the callbacks in their order."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from consumer_agent import Consumer
from consumer_agent.errors import CommitFailedError, NoOffsetError
from consumer_agent.membership.offset_books import NO_OFFSET
from consumer_agent.records import Batch
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import Finished, RecordBuffer
from consumer_agent.runtime.shared_state import SharedState
from tests.unit.consumer_agent.messages import ROOMY, messages

P0, P1 = ("t", 0), ("t", 1)


class Clock:
    now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def with_records(clock: Clock) -> SharedState:
    shared = SharedState(RecordBuffer(ROOMY), clock)
    shared.admit(P0, 3, 10)
    shared.buffer.put(P0, messages(P0, range(10, 15)), 5)
    return shared


def take(shared: SharedState, delivered: list[int] | None = None) -> list[int]:
    counts = [] if delivered is None else delivered
    with shared.lock:
        taken = shared.take(100, lambda runs, _mono_us: counts.append(len(runs)))
    return [record.offset for record in Batch(taken)]


def notices(shared: SharedState) -> list[tuple[Tell, list[tuple[str, int]]]]:
    found = []
    with shared.lock:
        while (notice := shared.next_notice()) is not None:
            found.append((notice.tell, sorted(notice.partitions)))
    return found


def test_records_are_returned_only_while_the_lease_is_valid() -> None:
    clock = Clock()
    shared = with_records(clock)
    assert take(shared) == []  # no lease yet
    shared.emit_until(1_001)
    clock.now_ms = 1_001
    assert take(shared) == []  # over, though nobody has said so
    shared.emit_until(2_000)
    assert take(shared) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("begins_paused", [False, True])
def test_an_error_of_a_paused_partition_keeps_no_other_waiting(begins_paused: bool) -> None:
    """In `SharedState.take_failure`, take any: who could not skip one bad record read nothing of any partition.

    Where all are paused from the beginning, as Spark's are, none is left out.
    """
    shared = SharedState(RecordBuffer(replace(ROOMY, begins_paused=begins_paused)), Clock())
    errors = [NoOffsetError("no offset", partition) for partition in (P0, P1)]
    for error in errors:
        shared.admit(error.partition, 3, NO_OFFSET)
        with shared.lock:
            shared.need_position(error.partition, error)
    with shared.lock:
        shared.buffer.pause([P0])
        assert shared.take_failure() is errors[0 if begins_paused else 1]
        shared.buffer.pause([P1])
        assert shared.take_failure() is (errors[0] if begins_paused else None)
        shared.buffer.unpause([P0])
        assert shared.take_failure() is errors[0]


@pytest.mark.parametrize("how", ["resumed", "started again", "stopped"])
def test_what_was_kept_or_came_back_while_on_revoke_ran_may_be_committed(how: str) -> None:
    """In `RecordBuffer.let_go`, let go of it: commits would fail until it moves the next time."""
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P0])
    notices(shared)
    shared.stop([P0])
    shared.tell(Tell.REVOKE, [P0], 7)
    with shared.lock:
        revoke = shared.next_notice()
    assert revoke is not None
    if how == "resumed":
        shared.resume([P0])
    elif how == "started again":
        shared.forget([P0])
        shared.admit(P0, 4, 10)
    shared.called_back(revoke)
    if how == "stopped":
        with pytest.raises(CommitFailedError, match="t/0 no longer belongs to this consumer"):
            shared.begin_commit(1, {P0: Finished(10)}, by_notice=False)
    else:
        shared.begin_commit(1, {P0: Finished(10)}, by_notice=False)


def test_a_stop_that_is_sent_again_while_on_revoke_runs_may_be_committed_until_its_own_on_revoke_is_over() -> None:
    """In `called_back`, let go of all that is stopped: a commit in the second `on_revoke` would fail."""
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P0])
    assert len(notices(shared)) == 1

    def stop(token: int) -> None:
        shared.stop([P0])
        shared.tell(Tell.REVOKE, [P0], token)

    def cancel() -> None:
        shared.tell(Tell.ASSIGNED, [P0])
        shared.resume([P0])

    def run() -> Tell:
        """Commit in the next callback, before and after other threads change something."""
        with shared.lock:
            notice = shared.next_notice()
        assert notice is not None
        shared.begin_commit(1, {P0: Finished(10)}, by_notice=False)
        if changes:
            changes.pop(0)()
        shared.begin_commit(2, {P0: Finished(10)}, by_notice=False)
        shared.called_back(notice)
        return notice.tell

    def send_again() -> None:
        cancel()
        stop(8)
        cancel()
        stop(9)

    changes = [send_again]
    stop(7)
    assert [run() for _ in range(5)] == [Tell.REVOKE, Tell.ASSIGNED, Tell.REVOKE, Tell.ASSIGNED, Tell.REVOKE]
    with pytest.raises(CommitFailedError, match="t/0 no longer belongs to this consumer"):
        shared.begin_commit(3, {P0: Finished(10)}, by_notice=False)
    cancel()
    shared.begin_commit(4, {P0: Finished(10)}, by_notice=False)
    assert notices(shared) == [(Tell.ASSIGNED, [P0])]


def test_only_a_lease_that_had_lapsed_or_becomes_shorter_wakes_the_application() -> None:
    """In `emit_until`, notify always: a renewal would wake each idle application; or never."""
    clock = Clock()
    shared = SharedState(RecordBuffer(ROOMY), clock)
    woken: list[int] = []
    shared.changed.listeners = [lambda: woken.append(clock.now_ms)]
    for now_ms, until_ms in ((1_000, 1_500), (1_400, 2_000), (2_000, 2_500), (2_100, 0)):
        clock.now_ms = now_ms
        shared.emit_until(until_ms)
    assert woken == [1_000, 2_000, 2_100]


def test_a_delivery_is_recorded_when_there_is_one() -> None:
    shared = with_records(Clock())
    shared.emit_until(2_000)
    delivered: list[int] = []
    take(shared, delivered)
    take(shared, delivered)
    assert delivered == [1]


def test_a_delivery_bears_the_moment_at_which_the_lease_was_looked_at() -> None:
    """A process that is frozen in between writes it down much later, when another consumer holds the partition."""

    class LookedAt(Clock):
        moment_us = 0

        def __call__(self) -> int:
            self.moment_us = time.monotonic_ns() // 1_000
            return self.now_ms

    clock = LookedAt()
    shared = with_records(clock)
    shared.emit_until(2_000)
    moments: list[int] = []
    with shared.lock:
        shared.take(100, lambda _runs, mono_us: moments.append(mono_us))
    assert 0 < moments[0] <= clock.moment_us


def test_callbacks_come_in_order_and_assignments_are_merged() -> None:
    shared = with_records(Clock())
    shared.admit(P1, 3, 0)
    shared.tell(Tell.ASSIGNED, [P0])
    shared.tell(Tell.ASSIGNED, [P1])
    shared.tell(Tell.REVOKE, [P0], 7)
    shared.tell(Tell.ASSIGNED, [P0])
    assert notices(shared) == [(Tell.ASSIGNED, [P0, P1]), (Tell.REVOKE, [P0]), (Tell.ASSIGNED, [P0])]


def test_an_assignment_is_told_once_its_partitions_are_admitted() -> None:
    """`on_assign` may seek, which needs a place to seek from."""
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P1])
    assert notices(shared) == []
    shared.admit(P1, 3, 0)
    assert notices(shared) == [(Tell.ASSIGNED, [P1])]


def test_no_record_comes_before_its_on_assign_while_more_partitions_are_assigned() -> None:
    """In `SharedState.take`, ask only for the lease: one notice is for both, and waits until the latter is admitted."""
    shared = with_records(Clock())
    shared.emit_until(2_000)
    shared.tell(Tell.ASSIGNED, [P0])
    shared.tell(Tell.ASSIGNED, [P1])
    assert notices(shared) == []
    assert take(shared) == []
    shared.admit(P1, 3, 0)
    assert notices(shared) == [(Tell.ASSIGNED, [P0, P1])]
    assert take(shared) == list(range(10, 15))


def test_only_what_the_application_knows_as_its_own_may_be_moved() -> None:
    shared = with_records(Clock())
    assert not shared.is_known(P0)
    shared.tell(Tell.ASSIGNED, [P0])
    notices(shared)
    assert shared.is_known(P0)
    shared.tell(Tell.REVOKE, [P0], 7)
    notices(shared)
    assert not shared.is_known(P0)


def test_what_is_lost_while_the_application_is_busy_with_it_is_no_mistake_of_its() -> None:
    shared = with_records(Clock())
    shared.come()
    shared.tell(Tell.ASSIGNED, [P0])
    notices(shared)
    shared.tell(Tell.LOST)
    shared.forget([P0])
    assert not shared.is_known(P0)
    assert shared.was_known(P0)
    shared.come()
    assert not shared.was_known(P0)


def test_the_metrics_count_what_was_returned_and_told() -> None:
    shared = with_records(Clock())
    shared.emit_until(2_000)
    shared.tell(Tell.ASSIGNED, [P0])
    notices(shared)
    take(shared)
    assert shared.metrics() == {
        "polled_records_total": 5,
        "polled_batches_total": 1,
        "offsets_out_of_range_total": 0,
        "undecodable_records_total": 0,
        "zookeeper_refusals_total": 0,
        "assign_partitions_total": 1,
        "revoke_partitions_total": 0,
        "lost_partitions_total": 0,
        "assigned_partitions": 1,
        "paused_partitions": 0,
        "unpositioned_partitions": 0,
        "unreadable_partitions": 0,
        "retained_records": 0,
        "lag_records": 0,
        "lag_records_max": 0,
        "unmeasured_partitions": 1,
        "lease_ms": 1_000,
        "since_poll_ms": 0,
        "longest_since_poll_ms": 0,
        "loop_idle_ms": 0,
    }


def test_the_metrics_tell_how_long_the_application_is_away_and_was() -> None:
    clock = Clock()
    shared = with_records(clock)
    shared.go()
    clock.now_ms += 70
    assert (shared.metrics()["since_poll_ms"], shared.metrics()["longest_since_poll_ms"]) == (70, 70)
    shared.come()
    clock.now_ms += 1_000
    shared.go()
    clock.now_ms += 20
    assert (shared.metrics()["since_poll_ms"], shared.metrics()["longest_since_poll_ms"]) == (20, 70)


def test_a_handler_that_works_is_as_good_as_away_and_the_one_that_works_for_longest_counts() -> None:
    clock = Clock()
    shared = with_records(clock)
    shared.presence.begin_work(0)
    clock.now_ms += 50
    shared.presence.begin_work(1)
    clock.now_ms += 20
    assert shared.metrics()["since_poll_ms"] == 70
    shared.presence.end_work(0)
    assert (shared.metrics()["since_poll_ms"], shared.metrics()["longest_since_poll_ms"]) == (20, 70)
    assert shared.presence.is_working
    shared.presence.end_work(1)
    assert (shared.presence.away_since_ms, shared.presence.is_working) == (None, False)


def test_a_loss_replaces_what_was_not_told_yet() -> None:
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P0])
    assert len(notices(shared)) == 1
    shared.tell(Tell.ASSIGNED, [P1])
    shared.tell(Tell.REVOKE, [P0], 7)
    shared.tell(Tell.LOST)
    shared.forget([P0, P1])
    assert notices(shared) == [(Tell.LOST, [P0])]  # of P1 the application has never heard


def test_what_was_revoked_is_not_lost_later() -> None:
    shared = with_records(Clock())
    shared.admit(P1, 3, 0)
    shared.tell(Tell.ASSIGNED, [P0, P1])
    shared.tell(Tell.REVOKE, [P0], 7)
    assert len(notices(shared)) == 2
    shared.tell(Tell.LOST)
    assert notices(shared) == [(Tell.LOST, [P1])]


def test_what_went_without_asking_is_not_lost_later() -> None:
    shared = with_records(Clock())
    shared.admit(P1, 3, 0)
    shared.tell(Tell.ASSIGNED, [P0, P1])
    assert len(notices(shared)) == 1
    shared.forget([P0])
    shared.tell(Tell.LOST)
    assert notices(shared) == [(Tell.LOST, [P1])]


def test_a_loss_of_nothing_is_not_told() -> None:
    shared = with_records(Clock())
    shared.tell(Tell.LOST)
    assert notices(shared) == []


def test_partitions_that_went_before_the_application_looked_are_not_told() -> None:
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P0])
    shared.forget([P0])
    assert notices(shared) == []


def test_a_partition_is_revoked_once_and_every_revoke_is_answered() -> None:
    """The application leaves while it is still to be asked for one of its partitions."""
    shared = with_records(Clock())
    shared.admit(P1, 3, 0)
    shared.tell(Tell.ASSIGNED, [P0, P1])
    assert len(notices(shared)) == 1
    shared.tell(Tell.REVOKE, [P0], 7)
    shared.tell(Tell.REVOKE, [P0, P1], 8)
    shared.tell(Tell.REVOKE, [P0], 9)
    assert notices(shared) == [(Tell.REVOKE, [P0]), (Tell.REVOKE, [P1]), (Tell.REVOKE, [])]
    assert shared.metrics()["revoke_partitions_total"] == 2


def test_what_a_handler_may_have_waits_for_the_end_of_on_assign() -> None:
    shared = with_records(Clock())
    shared.admit(P1, 3, 0)
    shared.tell(Tell.ASSIGNED, [P0])
    assert shared.unannounced == {P0}
    with shared.lock:
        notice = shared.next_notice()
    shared.tell(Tell.ASSIGNED, [P1])
    assert shared.unannounced == {P0, P1}
    assert notice is not None
    shared.called_back(notice)
    assert shared.unannounced == {P1}
    shared.forget([P1])
    assert shared.unannounced == set()


def test_once_on_revoke_is_over_a_commit_of_the_partition_is_refused_unless_it_is_given_back() -> None:
    """How far it is finished has gone into the ack by then, or will: what comes later would be lost without a word."""
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P0])
    assert len(notices(shared)) == 1
    shared.emit_until(2_000)
    assert take(shared) == [10, 11, 12, 13, 14]
    shared.stop([P0])
    shared.tell(Tell.REVOKE, [P0], 7)
    assert shared.revoking == {P0}
    with shared.lock:
        notice = shared.next_notice()
    assert notice is not None
    shared.begin_commit(1, {P0: Finished(12)}, by_notice=False)
    shared.called_back(notice)
    with pytest.raises(CommitFailedError, match="t/0 no longer belongs to this consumer"):
        shared.begin_commit(2, {P0: Finished(15)}, by_notice=False)
    assert shared.positions()[P0].finished == 12
    shared.resume([P0])
    shared.begin_commit(3, {P0: Finished(15)}, by_notice=False)
    assert shared.positions()[P0].finished == 15


def test_a_commit_fails_as_long_as_on_lost_runs() -> None:
    shared = with_records(Clock())
    shared.tell(Tell.ASSIGNED, [P0])
    assert len(notices(shared)) == 1
    shared.tell(Tell.LOST)
    with shared.lock:
        notice = shared.next_notice()
    assert notice is not None
    with pytest.raises(CommitFailedError, match="the partitions are lost"):
        shared.begin_commit(1, None, by_notice=False)
    shared.called_back(notice)
    shared.begin_commit(2, None, by_notice=False)


def test_what_is_lost_is_known_no_more() -> None:
    """Not even until the buffer forgets it: a seek in another callback would be believed."""
    shared = SharedState(RecordBuffer(ROOMY), lambda: 0)
    shared.admit(P0, 1, 5)
    shared.tell(Tell.ASSIGNED, [P0])
    with shared.lock:
        notice = shared.next_notice()
    assert notice is not None
    shared.called_back(notice)
    assert shared.is_known(P0)
    shared.tell(Tell.LOST)
    assert not shared.is_known(P0)


def test_a_handler_gets_no_record_before_on_assign_is_over() -> None:
    """It may seek."""
    frontend = Consumer(zookeeper="z:1", bootstrap="b:1", group="g")._frontend
    shared, partition = frontend.shared, P0
    shared.emit_until(2**62)
    shared.admit(partition, 1, 5)
    shared.tell(Tell.ASSIGNED, [partition])
    with shared.lock:
        shared.buffer.put(partition, messages(partition, [5]), 1)
        assert frontend.take_of(0, 1) == []
        notice = shared.next_notice()
        assert notice is not None
        assert frontend.take_of(0, 1) == []
    shared.called_back(notice)
    with shared.lock:
        assert [run.messages[0].offset() for run in frontend.take_of(0, 1)] == [5]
