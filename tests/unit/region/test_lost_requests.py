"""A member asks again for a reset if its request is deleted by another program: it would wait for ever."""

from __future__ import annotations

from tests.unit.region.test_source_lines import Stage, flowing, resetting
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete, Multi
from zkrebalancer.region.documents import CHECKPOINT, Round
from zkrebalancer.region.roles import Phase

GROUP = "g"


def opening(stage: Stage, number: int) -> Phase:
    """Open a checkpoint, which this member does not answer, and let it become void."""
    found = stage.advance(stage.order(number, open=Round(number, CHECKPOINT, (stage.member.name,))))
    assert stage.answers(number) == {}
    assert stage.advance(stage.order(number)) is Phase.WAIT
    return found


def test_a_request_for_a_reset_that_another_program_deletes_is_made_again() -> None:
    """In `Member._want_reset`, count on the first one: every checkpoint waits in vain for this member, for ever."""
    stage = flowing(Stage().joined())
    stage.member.lost("partitions were lost")
    assert stage.advance(stage.order()) is Phase.WAIT
    folder = paths.region(GROUP, "requests")
    stage.zk.perform(Multi(tuple(Delete(f"{folder}/{name}") for name in stage.zk.children(folder))))
    assert opening(stage, 2) is Phase.WAIT
    assert stage.requests() == []  # the leader may have opened this one before it has seen the request
    assert opening(stage, 3) is Phase.WAIT
    assert stage.requests() == ["reset"]
    assert stage.advance(stage.order(**resetting(4))) is Phase.WAIT
    assert stage.advance(stage.order(4, reset=4)) is Phase.FLOW
    for number in (5, 6, 7):
        stage.advance(stage.order(number, reset=4))
    assert stage.requests() == ["reset"]
