from __future__ import annotations

import pytest

from zkrebalancer.pipeline.report.folders import Setting
from zkrebalancer.pipeline.report.sentences import Verdict, in_order, loss_lines, losses, shown, verdicts

SETTING = Setting("crash", "default", 3, 6)
FAST, SLOW = [10.0, 11.0, 12.0], [3_000.0, 3_100.0, 3_300.0]


def compared(ours: list[float], other: list[float]) -> Verdict:
    (verdict,) = verdicts(SETTING, {"central-incremental": {"settled_ms": ours}, "kip848": {"settled_ms": other}})
    return verdict


def test_a_loss_as_a_sentence() -> None:
    verdict = compared(SLOW, FAST)
    assert losses([verdict]) == [verdict]
    assert str(verdict) == (
        "central-incremental loses in time to settled: 3,100 ms against 11 ms, 282 times more "
        "(95% of resamples: 2,988 ms to 3,290 ms; 3 and 3 runs; chance alone separates them in 10% of comparisons)"
    )


def test_losses_of_one_measure_form_one_line() -> None:
    values = {"central-incremental": SLOW, "kip848": FAST, "classic-range": [100.0, 100.0, 100.0], "classic": [9e3] * 3}
    found = verdicts(SETTING, {name: {"settled_ms": of_one} for name, of_one in values.items()})
    others = "classic-range 100 ms (ours 31 times worse), kip848 11 ms (ours 282 times worse)"
    assert loss_lines(found) == {SETTING: [f"time to settled: 3,100 ms against {others}"]}


def test_notes_beside_values() -> None:
    assert compared(FAST, SLOW).beside == "ours 282 times better"
    assert compared([0.0, 0.0, 0.0], SLOW).beside == "ours better"
    assert compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0]).beside == "no difference shown"
    assert compared([5.0], FAST).beside == "too few runs"


def test_a_win_as_a_sentence() -> None:
    verdict = compared(FAST, SLOW)
    assert str(verdict).startswith(
        "central-incremental wins in time to settled: 11 ms against 3,100 ms, 282 times less"
    )
    assert losses([verdict]) == []


def test_an_open_comparison_as_a_sentence() -> None:
    verdict = compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0])
    assert str(verdict) == "time to settled: 5 ms against 4 ms; 3 and 3 runs show no clear difference"
    assert str(compared([5.0], FAST)) == "time to settled: 5 ms against 11 ms; 1 and 3 runs are too few to tell"


def test_a_small_difference_is_ignored() -> None:
    verdict = compared([100.0, 100.1, 100.2], [104.0, 104.1, 104.2])
    assert (verdict.outcome, losses([verdict])) == ("open", [])


def test_the_projects_own_modes_do_not_compete() -> None:
    values = {"central-eager": {"settled_ms": FAST}, "central-incremental": {"settled_ms": SLOW}}
    assert losses(verdicts(SETTING, values)) == []


def test_measures_that_are_always_zero_are_left_out() -> None:
    values = {name: {"lost": [0.0, 0.0, 0.0]} for name in ("central-incremental", "kip848")}
    assert verdicts(SETTING, values) == []


def test_without_this_project_there_are_no_verdicts() -> None:
    assert verdicts(SETTING, {"kip848": {"settled_ms": FAST}, "classic-range": {"settled_ms": SLOW}}) == []


def test_this_project_comes_first() -> None:
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
def test_values_are_shown_with_three_digits(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text
