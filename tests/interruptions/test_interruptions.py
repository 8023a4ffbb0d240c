"""Plans over the smallest groups, interrupted everywhere; `make interruptions` covers larger ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from consumer_agent.membership.fenced_writes import Write, WriteLane
from tests.interruptions.campaign import BrokenPromiseError, Plan, interrupt_everywhere, plans
from tests.interruptions.shapes import Shape, shapes
from tests.interruptions.world import Schedule
from zkrebalancer.protocol.calls import Reply
from zkrebalancer.protocol.settings import INCREMENTAL
from zkrebalancer.rebalance.view import GroupView

SWAP = Shape(2, ((0, 1), (1, 0)))


def test_shapes_are_unique_up_to_renaming() -> None:
    assert [str(shape) for shape in shapes(1, 2)] == [
        "1 members, ->0",
        "1 members, 0>0",
        "1 members, ->0 ->0",
        "1 members, ->0 0>0",
        "1 members, 0>0 0>0",
    ]
    assert [shape.moves for shape in shapes(2, 1) if shape.members == 2] == [((None, 0),), ((0, 0),), ((0, 1),)]
    assert len(list(shapes(3, 4))) == 457


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.long) for turn in (1, 2))])
def test_small_plans_reach_their_goal_after_any_interruption(turn: int) -> None:
    """Take one schedule for each shape and mode, another one at each turn."""
    of_schedules = zip(*[plans(shape for shape in [*shapes(2, 1), SWAP])] * len(Schedule), strict=True)
    for number, alternatives in enumerate(of_schedules):
        run_counts = interrupt_everywhere(alternatives[(number + turn) % len(Schedule)])
        assert run_counts.runs.total() >= 6 * run_counts.steps > 0


def test_treating_an_ack_of_unknown_outcome_as_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = WriteLane.handle_reply

    def handle_reply(lane: WriteLane, reply: Reply, handle: Callable[[Write, Reply], None]) -> None:
        if lane.write is not None and lane.write.ack is not None and getattr(reply, "outcome_unknown", False):
            lane._acked(lane.write, lane.write.ack, lane.version + 1)
        else:
            honest(lane, reply, handle)

    monkeypatch.setattr(WriteLane, "handle_reply", handle_reply)
    with pytest.raises(BrokenPromiseError, match="CALL_LOST"):
        interrupt_everywhere(Plan(SWAP, INCREMENTAL, Schedule.IN_TURN))


def test_a_start_before_the_stop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupView, "is_free_for", lambda _view, _consumer, _partition: True)
    with pytest.raises(AssertionError, match=r"is held by|is read by"):
        interrupt_everywhere(Plan(SWAP, INCREMENTAL, Schedule.IN_TURN))


def test_the_command_line_counts_what_was_tried() -> None:
    smallest = ("--members", "1", "--partitions", "1", "--processes", "1", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "tests.interruptions", *smallest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["plans"] > 0
    assert document["interrupted_runs_in_all"] >= 6 * document["steps"] > 0
