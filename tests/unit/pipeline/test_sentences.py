from __future__ import annotations

import pytest

from zkrebalancer.pipeline.report.folders import Setting
from zkrebalancer.pipeline.report.sentences import Verdict, in_order, losses, shown, told_losses, verdicts

SETTING = Setting("crash", "default", 3, 6)
FAST, SLOW = [10.0, 11.0, 12.0], [3_000.0, 3_100.0, 3_300.0]


def compared(ours: list[float], other: list[float]) -> Verdict:
    (verdict,) = verdicts(SETTING, {"central-incremental": {"settled_ms": ours}, "kip848": {"settled_ms": other}})
    return verdict


def test_a_loss_of_this_project_is_said() -> None:
    verdict = compared(SLOW, FAST)
    assert losses([verdict]) == [verdict]
    assert str(verdict) == (
        "central-incremental loses in time to settled: 3,100 ms against 11 ms, 282 times more "
        "(95% of resamples: 2,988 ms to 3,290 ms; 3 and 3 runs, which chance alone parts in 10% of comparisons)"
    )


def test_losses_of_one_measure_are_one_line() -> None:
    values = {"central-incremental": SLOW, "kip848": FAST, "classic-range": [100.0, 100.0, 100.0], "classic": [9e3] * 3}
    found = verdicts(SETTING, {name: {"settled_ms": of_one} for name, of_one in values.items()})
    others = "classic-range 100 ms (ours 31 times worse), kip848 11 ms (ours 282 times worse)"
    assert told_losses(found) == {SETTING: [f"time to settled: 3,100 ms against {others}"]}


def test_what_a_table_says_beside_a_value() -> None:
    assert compared(FAST, SLOW).beside == "ours 282 times better"
    assert compared([0.0, 0.0, 0.0], SLOW).beside == "ours better"
    assert compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0]).beside == "no difference shown"
    assert compared([5.0], FAST).beside == "too few runs"


def test_a_win_is_said_and_is_no_loss() -> None:
    verdict = compared(FAST, SLOW)
    assert str(verdict).startswith(
        "central-incremental wins in time to settled: 11 ms against 3,100 ms, 282 times less"
    )
    assert losses([verdict]) == []


def test_what_the_runs_do_not_show_is_neither() -> None:
    verdict = compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0])
    assert str(verdict) == "time to settled: 5 ms against 4 ms; 3 and 3 runs show no difference that counts"
    assert str(compared([5.0], FAST)) == "time to settled: 5 ms against 11 ms; 1 and 3 runs are too few to tell"


def test_a_small_difference_is_none_to_speak_of() -> None:
    verdict = compared([100.0, 100.1, 100.2], [104.0, 104.1, 104.2])
    assert (verdict.outcome, losses([verdict])) == ("open", [])


def test_the_other_mode_of_this_project_is_no_rival() -> None:
    values = {"central-eager": {"settled_ms": FAST}, "central-incremental": {"settled_ms": SLOW}}
    assert losses(verdicts(SETTING, values)) == []


def test_what_is_zero_everywhere_is_not_spoken_of() -> None:
    values = {name: {"lost": [0.0, 0.0, 0.0]} for name in ("central-incremental", "kip848")}
    assert verdicts(SETTING, values) == []


def test_without_this_project_there_is_nothing_to_say() -> None:
    assert verdicts(SETTING, {"kip848": {"settled_ms": FAST}, "classic-range": {"settled_ms": SLOW}}) == []


def test_this_project_stands_first() -> None:
    assert in_order(["kip848", "central-eager", "classic-range", "central-incremental"]) == [
        "central-incremental", "central-eager", "classic-range", "kip848",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "", "0"),
        (3.14159, "ms", "3.14 ms"),
        (12_345.0, "ms", "12.3 s"),
        (2_500_000.0, "", "2.5 M"),
        (7.5, "/s", "7.5/s"),
    ],
)
def test_values_are_short(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
