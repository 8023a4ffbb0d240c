"""What follows from a member's last answer: older copies may be deleted, and a member that leaves is done."""

from __future__ import annotations

from tests.unit.region.test_source_lines import Stage, flowing
from zkrebalancer.region.documents import CHECKPOINT, Round
from zkrebalancer.region.roles import Phase


def test_a_member_that_is_slower_than_its_checkpoints_deletes_its_copies_too() -> None:
    """In `Member.advance`, answer first: it sees each checkpoint complete when the next one is open already."""
    stage = flowing(Stage().joined())
    stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",))))
    for number in (3, 4):
        opened = Round(number, CHECKPOINT, ("a",))
        stage.advance(stage.order(number, complete=number - 1, pieces=1, open=opened))
    kept = [("checkpoint", 2), ("retire", 2), ("checkpoint", 3), ("retire", 3), ("checkpoint", 4)]
    assert stage.application.calls[-5:] == kept


def test_a_member_leaves_only_when_the_groups_offsets_are_stored() -> None:
    """In `Member._checkpoint`, answer at once: if it dies before it has stored them, nobody is reset."""
    stage = flowing(Stage().joined())
    stage.member.leave()
    assert stage.advance(stage.order()) is Phase.WAIT
    assert stage.requests() == ["leave"]
    stage.source.is_stored = False
    assert stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",)))) is Phase.WAIT
    assert stage.answers(2) == {("t", 0): 5}  # with this one, nobody leaves
    last = stage.order(3, leaving=("a",), open=Round(3, CHECKPOINT, ("a",), ("a",)))
    assert stage.advance(last) is Phase.WAIT
    assert (stage.answers(3), stage.application.calls[-1]) == ({}, ("checkpoint", 2))
    stage.source.is_stored = True
    assert stage.advance(last) is Phase.WAIT
    assert (stage.answers(3), stage.application.calls[-1]) == ({("t", 0): 5}, ("checkpoint", 3))


def test_a_member_follows_the_first_orders_of_a_region_that_was_made_anew() -> None:
    """In `Member._create`, keep the numbers of its last answers: it would wait for orders above these, for ever."""
    stage = flowing(Stage().joined())
    stage.advance(stage.order(9, open=Round(9, CHECKPOINT, ("a",))))
    assert stage.member.last_checkpoint == 9
    stage.zk.end(stage.session)
    stage.session = stage.zk.open()
    stage.member.session_lost()
    assert stage.register()
    assert stage.advance(stage.order(1)) is Phase.FLOW
    stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",))))
    assert stage.application.calls[-1] == ("checkpoint", 2)
