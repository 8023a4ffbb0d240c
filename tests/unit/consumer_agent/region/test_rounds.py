"""A member of a region whose calls are refused pauses, and tells why; it never waits without a word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest

from consumer_agent.errors import ConsumerError, ConsumerStateError
from consumer_agent.region import rounds as module
from consumer_agent.region.central_source import CentralSource
from consumer_agent.region.own_state import Handlers
from consumer_agent.region.rounds import COMPLAIN_S, Rounds
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Content, Done, Get, Refusal, Refused, Reply, Stat
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order, Settings
from zkrebalancer.region.limits import BRAKE_S
from zkrebalancer.region.roles import Phase
from zkrebalancer.region.states import RegionState

SETTINGS = Settings("counts", "group", 1_000, 60_000)
OWN, OTHER = 1, 2  # sessions


class Session:
    """Answers each call as the test says."""

    def __init__(self, answer: Callable[[Call], Reply]) -> None:
        self.answer = answer
        self.order: Any = mock.Mock()
        self.failure, self.ends, self.is_fresh, self.session_id = None, 0, True, OWN
        self.count = 0
        self.told: list[str] = []

    def drop(self) -> bool:
        return False

    def start(self) -> None: ...

    def wait(self, _timeout_s: float) -> None: ...

    def perform(self, calls: Sequence[Call]) -> list[Reply]:
        self.count += len(calls)
        return [self.answer(call) for call in calls]

    def complain(self, text: str) -> None:
        if text not in self.told:
            self.told.append(text)


class Playing:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Call], Reply]) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(module, "time", mock.Mock(monotonic=lambda: self.now_s))
        self.source = mock.Mock(arrived=set(), has_lost=False, was_revoked=False, has_given_up=False, rebalances=0)
        self.source.first_offsets.return_value = {("orders", 0): 5}
        self.source.identity.return_value = ""
        self.session = Session(answer)
        session: Any = self.session
        self.rounds = Rounds("g", "m", SETTINGS, self.source, Handlers(print, print), session, 10_000)

    def play(self, seconds: float) -> None:
        for _ in range(round(seconds / BRAKE_S)):
            self.rounds._next()
            self.now_s += BRAKE_S


def test_a_registration_that_is_refused_is_told_and_repeated_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    playing = Playing(monkeypatch, lambda _call: Refused(Refusal.QUOTA_EXCEEDED, 0))
    playing.play(60)
    assert playing.session.count < 70  # each try has two calls
    (told,) = playing.session.told
    assert told == "ZooKeeper refuses /consumers: quota exceeded; region counts waits, and tries again"


def test_a_member_whose_name_is_taken_waits_with_pauses_and_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(call: Call) -> Reply:
        if call == Get(paths.region("g")):
            return Content(documents.encode_settings(SETTINGS), Stat(0, 1, 1, 0))
        if call == Get(paths.RESTORE):
            return Refused(Refusal.NO_NODE)
        return Content(b"", Stat(0, 1, 1, OTHER)) if isinstance(call, Get) else Refused(Refusal.NODE_EXISTS, 0)

    playing = Playing(monkeypatch, answer)
    playing.play(COMPLAIN_S - 1)
    assert playing.session.told == []
    playing.play(60)
    assert playing.session.count < 600  # each try has at most 13 calls
    (told,) = playing.session.told
    assert told.startswith("m still waits to become a member of region counts")


def test_a_member_that_waits_for_a_restore_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rounds._register`, go on: it would blame another member of its name."""
    asked: list[Call] = []

    def answer(call: Call) -> Reply:
        asked.append(call)
        return Content(b"", Stat(0, 1, 1, 0))

    playing = Playing(monkeypatch, answer)
    playing.play(2 * COMPLAIN_S)
    assert 1 < len(asked) < 40
    assert set(asked) == {Get(paths.RESTORE)}
    assert playing.session.told == ["m: waits with joining counts, because a restore runs, or was interrupted"]


def test_a_member_whose_times_are_not_those_of_its_region_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rounds._register`, do not compare: who lowers `every_s` believes in it, and checkpoints stay as rare."""

    def answer(call: Call) -> Reply:
        if call == Get(paths.region("g")):
            return Content(documents.encode_settings(Settings("counts", "group", 3_600_000, 60_000)), Stat(0, 1, 1, 0))
        if call == Get(paths.RESTORE):
            return Refused(Refusal.NO_NODE)
        return Content(b"", Stat(0, 1, 1, OWN)) if isinstance(call, Get) else Done()

    playing = Playing(monkeypatch, answer)
    playing.session.order = None
    playing.play(1)
    playing.session.ends += 1  # it registers again
    playing.play(1)
    text = "region counts: every_s is 3600 and reset_s 60, as its first member has set them, not 1 and 60"
    assert playing.session.told == [text]


def test_records_whose_first_offsets_cannot_be_stored_are_not_fetched_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    playing = Playing(monkeypatch, lambda _call: Refused(Refusal.QUOTA_EXCEEDED, 0))
    playing.rounds._phase, playing.rounds._registered_in = Phase.FLOW, 0
    playing.rounds.member.zxid, playing.rounds._seen = 5, playing.session.order
    for _ in range(10):
        playing.rounds._next()
    assert playing.source.poll.call_count == 1
    playing.source.seek.assert_called_once_with({("orders", 0): 5})
    (told,) = playing.session.told
    assert "/initial/orders" in told


def test_without_a_connection_first_records_are_fetched_again_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: as fast as Kafka answers, for the rest of the lease."""
    playing = Playing(monkeypatch, lambda _call: Refused(Refusal.CONNECTION_LOST))
    playing.rounds._phase, playing.rounds._registered_in = Phase.FLOW, 0
    playing.rounds.member.zxid, playing.rounds._seen = 5, playing.session.order
    with mock.patch.object(playing.session, "wait") as wait:
        for _ in range(3):
            playing.rounds._next()
    assert playing.source.seek.mock_calls == [mock.call({("orders", 0): 5})] * 3
    assert wait.mock_calls == [mock.call(BRAKE_S)] * 3
    assert playing.session.told == []


@pytest.mark.parametrize("goes_wrong", ["", "partitions are lost", "the session is in doubt"])
def test_records_are_returned_only_if_nothing_was_lost_while_their_offsets_were_stored(
    monkeypatch: pytest.MonkeyPatch, goes_wrong: str
) -> None:
    def answer(_call: Call) -> Reply:
        playing.source.has_lost = playing.source.has_given_up = goes_wrong == "partitions are lost"
        playing.session.is_fresh = goes_wrong != "the session is in doubt"
        return Done((None,))

    playing = Playing(monkeypatch, answer)
    playing.rounds._phase, playing.rounds._registered_in = Phase.FLOW, 0
    playing.rounds.member.zxid, playing.rounds._seen = 5, playing.session.order
    playing.rounds.member.state = RegionState.SUBSCRIBED
    batch = playing.rounds._next()
    assert (batch is None) == bool(goes_wrong)
    assert playing.source.seek.call_count == bool(goes_wrong)


def test_a_checkpoint_that_was_complete_before_it_was_asked_for_is_not_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rounds.checkpoint`, take it: what was processed since is in no copy."""
    playing = Playing(monkeypatch, lambda _call: Done((None,)))
    rounds = playing.rounds
    rounds._phase, rounds.member.completed = Phase.FLOW, 3
    playing.session.order = Order(id=3, complete=3)
    asked: list[float] = []

    def idle() -> None:
        playing.now_s += 1
        rounds.member.completed = 4 if playing.now_s > 103 else 3

    def run(_step: object) -> bool:
        asked.append(playing.now_s)
        return True

    monkeypatch.setattr(rounds, "_follow", lambda: None)
    monkeypatch.setattr(rounds, "_idle", idle)
    monkeypatch.setattr(rounds, "_run", run)
    assert b'"checkpoint":4' in rounds.checkpoint(30.0).replace(b" ", b"")
    assert asked == [100.0], "while its round is not over, it is asked for once"


@pytest.mark.parametrize("failure", [ConsumerError("a callback has failed"), KeyboardInterrupt()])
def test_a_close_that_fails_leaves_the_group_without_marking_records_as_processed(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    playing = Playing(monkeypatch, lambda _call: Done((None,)))
    rounds, closed = playing.rounds, mock.Mock()
    rounds._is_started = rounds._has_flowed = True
    playing.session.close = closed  # type: ignore[attr-defined]
    playing.source.finish.side_effect = failure
    with pytest.raises(type(failure)):
        rounds.close(is_clean=True)
    playing.source.close.assert_called_once_with(is_clean=False)
    closed.assert_called_once_with()
    playing.source.finish.side_effect = None
    rounds.close(is_clean=True)  # again
    assert playing.source.close.call_args_list == [mock.call(is_clean=False)] * 2


def test_a_batch_that_an_interrupt_keeps_from_the_application_is_returned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was marked as processed when the next one was requested."""

    def answer(_call: Call) -> Reply:
        raise KeyboardInterrupt

    playing = Playing(monkeypatch, answer)
    playing.rounds._phase, playing.rounds._registered_in = Phase.FLOW, 0
    playing.rounds.member.zxid, playing.rounds._seen = 5, playing.session.order
    with pytest.raises(KeyboardInterrupt):
        playing.rounds._next()
    playing.source.give_back.assert_not_called()
    with pytest.raises(KeyboardInterrupt):
        playing.rounds._next()
    playing.source.give_back.assert_called_once_with()


@pytest.mark.parametrize("is_clean", [True, False])
def test_only_a_clean_end_marks_the_last_batch_as_processed(*, is_clean: bool) -> None:
    """In `CentralSource.close`, mark it in any case: the next owner begins behind records that are in no state."""
    consumer = mock.Mock()
    consumer.poll.return_value.by_partition.return_value = {("t", 0): [mock.Mock(offset=5)]}
    source = CentralSource(consumer)
    source.poll(0.0)
    source.close(is_clean=is_clean)
    assert consumer.finish.call_args_list == [mock.call({("t", 0): 6})] * is_clean
    consumer.close.assert_called_once_with()


def test_a_batch_before_a_seek_is_not_marked_as_processed() -> None:
    """In `CentralSource.seek`, keep it: after a reset, records count as processed that are in no state."""
    consumer = mock.Mock()
    consumer.poll.return_value.by_partition.return_value = {("t", 0): [mock.Mock(offset=5)]}
    source = CentralSource(consumer)
    source._held = {("t", 0): 1}
    source.poll(0.0)
    source.seek({("t", 0): 3})
    source.finish()
    consumer.finish.assert_not_called()


def test_a_reset_to_the_beginning_that_was_not_done_in_time_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Rounds.reset`, keep the wish: the next reset that is asked for would skip the checkpoint as well."""
    rounds = Playing(monkeypatch, lambda _call: Done((None,))).rounds
    with pytest.raises(ConsumerStateError, match="was not reset within 0 s"):
        rounds.reset(None, 0.0)
    rounds.member.zxid = 5
    assert not rounds._skips(Order(4, complete=3, pieces=1))
