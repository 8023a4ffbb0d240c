"""The lines that a coordinator logs for operators, and how many of them."""

from __future__ import annotations

import pytest

from zkrebalancer.coordinator.operator_log import (
    LINES_PER_S,
    MAX_BURST,
    RESERVED,
    SUMMARY_INTERVAL_US,
    OperatorLog,
)
from zkrebalancer.rebalance.effects import Emit, EventField

ENDED: dict[str, EventField] = {
    "outcome": "finished",
    "moved_count": 4,
    "late_members": [],
    "settled_us": 31_250,
    "pause_us_max": 12_000,
}


def emit(kind: str, **fields: EventField) -> Emit:
    return Emit(kind, "g", 7, "id", fields)


def joined(number: int) -> Emit:
    return Emit("member_joined", f"g{number}", 7, None, {"member": "a"})


PLANNED: dict[str, EventField] = {
    "mode": "eager",
    "member_count": 5,
    "partition_count": 24,
    "moved_count": 4,
    "plan_us": 1,
}


@pytest.mark.parametrize(
    ("effect", "line"),
    [
        (emit("leader_elected", epoch=3, brokerid=1), "coordinator 1 leads, epoch 3"),
        (
            emit("leader_resigned", epoch=3, brokerid=1, reason="asked to stop"),
            "coordinator 1 no longer leads, epoch 3: asked to stop",
        ),
        (emit("operator_changed", by="eve@ops1", at_ms=5, what="changed mode"), "group g: eve@ops1 changed mode"),
        (emit("member_joined", member="a"), "group g: a joined"),
        (emit("member_left", member="a", reason="expired"), "group g: a left: its session ended"),
        (
            emit("rebalance_planned", **PLANNED),
            "group g: generation 7 planned because of member-joined: 4 of 24 partitions move, 5 members, eager",
        ),
        (
            emit("rebalance_finished", **ENDED),
            "group g: generation 7 finished after 31.2 ms: 4 partitions moved, longest pause 12.0 ms",
        ),
        (
            emit("rebalance_finished", **{**ENDED, "outcome": "failed", "late_members": list("abcdefg")}),
            (
                "group g: generation 7 failed after 31.2 ms: 4 partitions moved, longest pause 12.0 ms,"
                " late: a, b, c, d, e, 2 more"
            ),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Emit) else "",
)
def test_each_line_says_what_an_operator_asks_for(effect: Emit, line: str) -> None:
    assert OperatorLog().lines(effect, "member-joined", 0) == [line]


def test_what_no_operator_asks_for_is_not_logged() -> None:
    assert OperatorLog().lines(emit("command_sent", member="a"), "", 0) == []


def test_ten_thousand_groups_write_a_burst_and_then_a_count() -> None:
    log = OperatorLog()
    lines = [line for number in range(10_000) for line in log.lines(joined(number), "", 0)]
    assert len(lines) == MAX_BURST - RESERVED
    assert log.summary(SUMMARY_INTERVAL_US - 1) == []
    (text,) = log.summary(SUMMARY_INTERVAL_US)
    assert text.startswith("too many lines, left out: 9850 joined; ")
    assert log.summary(SUMMARY_INTERVAL_US) == []


def test_failures_and_leadership_are_logged_when_the_rest_is_left_out() -> None:
    log = OperatorLog()
    for number in range(MAX_BURST):
        log.lines(joined(number), "", 0)
    failed = emit("rebalance_finished", **{**ENDED, "outcome": "failed"})
    changed = emit("operator_changed", by="eve@ops1", at_ms=5, what="changed mode")
    assert log.lines(changed, "", 0)
    told = [line for _ in range(2 * RESERVED) for line in log.lines(failed, "", 0)]
    assert len(told) == RESERVED - 1


def test_lines_are_allowed_again_after_a_while() -> None:
    log = OperatorLog()
    for number in range(10_000):
        log.lines(joined(number), "", 0)
    lines = [line for number in range(10_000) for line in log.lines(joined(number), "", 2_000_000)]
    assert len(lines) == 2 * LINES_PER_S
