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
    """In `Member._create`, keep the numbers of its last answers: it would wait for orders above these, for ever.

    Or keep that of the last complete checkpoint: it would delete none of its copies until it gets there again.
    """
    stage = flowing(Stage().joined())
    stage.advance(stage.order(8, open=Round(8, CHECKPOINT, ("a",))))
    stage.advance(stage.order(9, complete=8, pieces=1, open=Round(9, CHECKPOINT, ("a",))))
    assert (stage.member.last_checkpoint, stage.member.completed) == (9, 8)
    stage.zk.end(stage.session)
    stage.session = stage.zk.open()
    stage.member.session_lost()
    assert stage.register()
    assert stage.advance(stage.order(1)) is Phase.FLOW
    stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",))))
    assert stage.application.calls[-1] == ("checkpoint", 2)
    stage.advance(stage.order(2, complete=2, pieces=1))
    assert stage.application.calls[-1] == ("retire", 2)


def test_a_reset_does_not_go_back_to_where_a_former_topic_of_that_name_began() -> None:
    """In `Member._targets`, take any initial offset: records of the new topic would be skipped, or read twice."""
    stage = Stage().joined()
    stage.source.marks = {"t": "id-1"}
    flowing(stage)
    for mark, expected in (("id-2", {}), ("id-1", {("t", 0): 0})):
        stage.source.marks = {"t": mark}
        targets = stage.run(stage.member._targets({("t", 0)}, None))
        assert targets == expected
