"""What an application may commit, and in which order it hears of it, without any thread."""

from __future__ import annotations

import pytest

from consumer_agent.buffer import BufferSettings, Finished, RecordBuffer
from consumer_agent.errors import CommitFailedError, ConsumerStateError
from consumer_agent.handover import MAX_ANNOUNCED_COMMITS, Handover, Tell
from zkrebalancer.protocol.fields import TopicPartition

T0: TopicPartition = ("t", 0)
T1: TopicPartition = ("t", 1)


@pytest.fixture
def handover() -> Handover:
    """Hold T0, returned up to 20 under generation 4, and T1, returned up to 30."""
    made = Handover(RecordBuffer(BufferSettings(100, 100, 10_000)), lambda: 0)
    made.admit(T0, 4, 20)
    made.admit(T1, 4, 30)
    return made


def finished(handover: Handover) -> dict[TopicPartition, int]:
    return {partition: position.finished for partition, position in handover.positions().items()}


def begin(
    handover: Handover, token: int, what: dict[TopicPartition, Finished] | None = None, *, by_notice: bool = True
) -> None:
    handover.begin_commit(token, what, by_notice=by_notice)


def heard(handover: Handover) -> list[tuple[int, bool]]:
    """Return the tokens of the commits that the application is told of, and whether they are stored."""
    notices = []
    while (notice := handover.next_notice()) is not None:
        assert notice.tell is Tell.COMMITTED
        notices.append((notice.token, notice.error is None))
    return notices


def test_what_is_said_is_finished_also_backwards(handover: Handover) -> None:
    begin(handover, 1, {T0: Finished(15, 4)})
    assert finished(handover) == {T0: 15, T1: 30}
    begin(handover, 2, {T0: Finished(12)})
    assert finished(handover) == {T0: 12, T1: 30}
    begin(handover, 3)
    assert finished(handover) == {T0: 20, T1: 30}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({("t", 7): Finished(5)}, CommitFailedError),
        ({T0: Finished(15, 3)}, CommitFailedError),
        ({T0: Finished(21)}, ConsumerStateError),
    ],
    ids=["is lost", "belongs to an earlier start", "was not returned"],
)
def test_all_of_it_or_nothing(handover: Handover, said: dict[TopicPartition, Finished], error: type[Exception]) -> None:
    before = finished(handover)
    with pytest.raises(error):
        begin(handover, 1, {T1: Finished(25), **said})
    assert finished(handover) == before


def test_ends_are_heard_in_the_order_of_the_commits(handover: Handover) -> None:
    for token in (1, 2, 3):
        begin(handover, token)
    handover.commit_finished((1,), None)
    handover.commit_finished((2, 3), "lost")
    assert heard(handover) == [(1, True), (2, False), (3, False)]


def test_an_end_is_heard_although_everything_is_lost(handover: Handover) -> None:
    begin(handover, 1)
    handover.commit_finished((1,), "lost")
    handover.tell(Tell.LOST)
    assert heard(handover) == [(1, False)]


def test_who_waits_for_a_commit_is_not_told_of_another(handover: Handover) -> None:
    begin(handover, 1)
    begin(handover, 2, by_notice=False)
    handover.commit_finished((1, 2), None)
    assert handover.has_commit(2)
    begin(handover, 3)
    handover.commit_finished((3,), None)
    assert handover.take_commit(2) is None
    assert heard(handover) == [(1, True), (3, True)]


def test_after_the_end_every_commit_has_failed(handover: Handover) -> None:
    begin(handover, 1)
    begin(handover, 2, by_notice=False)
    handover.become_closed()
    assert handover.has_commit(2)
    assert isinstance(handover.take_commit(2), CommitFailedError)
    assert heard(handover) == [(1, False)]
    with pytest.raises(CommitFailedError):
        begin(handover, 3)


def test_commits_that_nobody_hears_of_are_limited(handover: Handover) -> None:
    for token in range(MAX_ANNOUNCED_COMMITS):
        begin(handover, token + 1)
    with pytest.raises(CommitFailedError, match="wait already"):
        begin(handover, MAX_ANNOUNCED_COMMITS + 1)
