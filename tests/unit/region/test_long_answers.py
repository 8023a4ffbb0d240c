"""An answer to a reset grows while partitions come to its member, and has a limit."""

from __future__ import annotations

from tests.unit.region.test_source_lines import Stage, flowing, resetting
from zkrebalancer.region.limits import MAX_PIECES
from zkrebalancer.region.roles import Phase


def test_partitions_that_come_one_by_one_during_a_reset_begin_another_one() -> None:
    """In `Member._extend`, extend the answer without a limit: the next piece ended the application with an error."""
    stage = flowing(Stage().joined())
    order = stage.order(**resetting(2))
    stage.advance(order)
    for number in range(1, MAX_PIECES):
        stage.source.positions["t", number] = 7
        assert stage.advance(order) is Phase.WAIT
    assert (len(stage.answers(2)), stage.requests()) == (MAX_PIECES, [])
    stage.source.positions["t", MAX_PIECES] = 7
    for _ in range(3):
        assert stage.advance(order) is Phase.WAIT
    assert (len(stage.answers(2)), stage.requests()) == (MAX_PIECES, ["reset"])
    assert stage.advance(stage.order(**resetting(3))) is Phase.WAIT
    assert stage.answers(3) == stage.source.positions
