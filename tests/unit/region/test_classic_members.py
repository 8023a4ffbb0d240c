"""A member with a classic client: what its other thread has given up, and where it begins again."""

from __future__ import annotations

from tests.unit.region.test_source_lines import Stage, flowing, stage
from zkrebalancer.protocol import paths
from zkrebalancer.region import documents
from zkrebalancer.region.documents import CHECKPOINT, Merge, Round, Settings
from zkrebalancer.region.roles import Phase

GROUP = "g"
__all__ = ["stage"]  # the fixture


def test_a_classic_client_begins_where_the_merge_says_when_it_is_admitted_again(stage: Stage) -> None:
    """As it was: after its session was lost, it kept its position, with a state that had fewer records."""
    forced = Stage("b", Settings("billing", "forced", 1_000)).joined()
    flowing(forced)
    forced.merge(Merge(4, {("t", 0): 3}, {}, {"b": 4}))
    forced.source.positions |= {("t", 1): documents.UNKNOWN}  # assigned, and not placed yet
    forced.zk.end(forced.session)
    forced.session = forced.zk.open()
    forced.member.session_lost()
    forced.joined()
    assert forced.advance(forced.order(5, reset=5, complete=4, pieces=2)) is Phase.FLOW
    assert forced.application.calls[-1] == ("reset", 4)
    assert forced.source.sought == [{("t", 0): 3}]


def test_no_checkpoint_before_a_revocation_is_noted(stage: Stage) -> None:
    """A classic client gives partitions up in another thread, also while a batch of them is processed.

    As it was: the answer lacked them, so the merge had their former offsets, while the member's copy had more records.
    """
    flowing(stage)
    stage.source.positions, stage.source.has_given_up = {}, True
    order = stage.order(2, open=Round(2, CHECKPOINT, ("a",)))
    assert stage.advance(order) is Phase.WAIT
    assert (stage.answers(2), stage.zk.children(paths.region(GROUP, "contributions", "2"))) == ({}, [])
    assert ("checkpoint", 2) not in stage.application.calls
    stage.source.has_given_up = False
    assert stage.member.revoked()
    assert stage.advance(order) is Phase.WAIT
    assert stage.requests() == ["reset"]


def test_no_record_before_a_reset_that_a_revocation_has_asked_for(stage: Stage) -> None:
    """As it was: it raised InvalidTransitionError, if Kafka had given the partitions back meanwhile."""
    flowing(stage)
    assert stage.member.revoked()
    assert not stage.run(stage.member.begin_records({("t", 0): 5}))
