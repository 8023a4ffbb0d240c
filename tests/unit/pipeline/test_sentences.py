from __future__ import annotations

from dataclasses import replace

import pytest

from zkrebalancer.pipeline.report.folders import Setting
from zkrebalancer.pipeline.report.sentences import (
    RunKey,
    Verdict,
    first_sentence,
    headline,
    in_order,
    loss_lines,
    losses,
    measures_of,
    shown,
    verdicts,
)

SETTING = Setting("crash", "default", 3, 6, "kafka-3.9")
FAST = [10.0, 11.0, 12.0, 10.5, 11.5, 11.0, 10.8]
SLOW = [3_000.0, 3_100.0, 3_300.0, 3_050.0, 3_150.0, 3_100.0, 3_120.0]


def by_seed(values: list[float]) -> dict[RunKey, float]:
    return {(seed, 0): value for seed, value in enumerate(values)}


def compared(ours: list[float], other: list[float], measure: str = "settled_ms", setting: Setting = SETTING) -> Verdict:
    values = {"central-incremental": {measure: by_seed(ours)}, "kip848": {measure: by_seed(other)}}
    (verdict,) = verdicts({setting: values})
    return verdict


def test_a_loss_as_a_sentence() -> None:
    verdict = compared(SLOW, FAST)
    assert losses([verdict]) == [verdict]
    assert str(verdict) == (
        "central-incremental loses in time to settled: 3,100 ms against 11 ms, 282 times more "
        "(the other minus ours, 95%: -3,199 ms to -3,040 ms; 7 pairs, p 0.016)"
    )


def test_losses_of_one_measure_form_one_line() -> None:
    values = {"central-incremental": SLOW, "kip848": FAST, "classic-range": [100.0] * 7, "classic": [9e3] * 7}
    found = verdicts({SETTING: {name: {"settled_ms": by_seed(of_one)} for name, of_one in values.items()}})
    others = "classic-range 100 ms (ours 31 times worse), kip848 11 ms (ours 282 times worse)"
    assert loss_lines(found) == {SETTING: [f"time to settled: 3,100 ms against {others}"]}
    assert headline(SETTING, "settled_ms", found) == (
        "crash, default settings, 3 members, 6 partitions, kafka-3.9: "
        "time to settled 3,100 ms for central-incremental; "
        "kip848 11 ms (ours 282 times worse; 7 pairs, p 0.047), "
        "classic-range 100 ms (ours 31 times worse; 7 pairs, p 0.047), "
        "classic 9,000 ms (ours 2.9 times better; 7 pairs, p 0.047)."
    )


def test_each_kind_of_change_has_its_own_verdict() -> None:
    verdict = compared(FAST, SLOW, "settled_ms after kill-member")
    assert verdict.is_primary
    assert str(verdict).startswith("central-incremental wins in time to settled after kill-member: 11 ms against")


def test_measures_have_one_order() -> None:
    names = {"rss_mb", "settled_ms after restart-member", "settled_ms after kill-member"}
    assert measures_of(names) == ["settled_ms after kill-member", "settled_ms after restart-member", "rss_mb"]


def test_a_scenario_may_have_another_primary_measure() -> None:
    backlog = replace(SETTING, scenario="backlog")
    assert compared(FAST, SLOW, "lag_back_ms after kill-member", backlog).is_primary
    assert not compared(FAST, SLOW, "settled_ms after kill-member", backlog).is_primary
    assert not compared(FAST, SLOW, "lag_back_ms after kill-member").is_primary
    assert compared(FAST, SLOW, "settled_ms after add-member", backlog).is_primary, "it reads the backlog meanwhile"
    assert not compared(FAST, SLOW, "lag_back_ms after add-member", backlog).is_primary


def test_who_delivers_more_wins() -> None:
    verdict = compared(SLOW, FAST, "delivered_per_s_min")
    assert (verdict.outcome, verdict.beside, verdict.behind) == ("wins", "ours 282 times better", -3_089.0)
    assert losses([compared(FAST, SLOW, "delivered_per_s_min")])
    assert compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0], "delivered_per_s_min").beside == "ours better"


def test_the_more_is_compared_the_less_is_shown() -> None:
    """In `verdicts`, leave the correction out: 7 pairs of one sign are 0.016, which four tests make 0.06."""
    rivals = {f"rival-{number}": {"settled_ms": by_seed(SLOW)} for number in range(4)}
    found = verdicts({SETTING: {"central-incremental": {"settled_ms": by_seed(FAST)}, **rivals}})
    assert {verdict.outcome for verdict in found} == {"open"}
    assert found[0].beside == "ours better"
    of_others = {name: {"cpu_ms": of["settled_ms"]} for name, of in rivals.items()}
    others = verdicts({SETTING: {"central-incremental": {"cpu_ms": by_seed(FAST)}, **of_others}})
    assert {verdict.outcome for verdict in others} == {"wins"}, "a share of false discoveries is another promise"


def test_comparisons_of_too_few_pairs_do_not_count_in_the_correction() -> None:
    """In `verdicts`, correct for all: a scenario that was run twice would hide what ten runs of another one show."""
    few = {f"rival-{number}": {"settled_ms": by_seed(SLOW[:5])} for number in range(4)}
    enough = {"kip848": {"settled_ms": by_seed(SLOW)}}
    ours = {"central-incremental": {"settled_ms": by_seed(FAST)}}
    found = {verdict.other: verdict for verdict in verdicts({SETTING: {**ours, **enough, **few}})}
    assert found["kip848"].p == 2 / 2**7
    assert found["kip848"].test == "7 pairs, p 0.016"
    assert {found[name].p for name in few} == {1.0}
    assert found["rival-0"].test == "5 pairs, too few to test"
    assert found["rival-0"].outcome == "open"


def test_medians_that_the_pairs_contradict_show_nothing() -> None:
    """In `outcome`, ask the median pair only: a report would say that 500 ms are better than 150."""
    ours = by_seed([100.0 + n for n in range(7)]) | {(seed, 0): 500.0 for seed in range(20, 30)}
    other = by_seed([150.0 + n for n in range(7)])
    values = {"central-incremental": {"settled_ms": ours}, "kip848": {"settled_ms": other}}
    (verdict,) = verdicts({SETTING: values})
    assert verdict.medians == (500.0, 153.0)
    assert (verdict.pairs, verdict.outcome, verdict.beside) == (7, "open", "ours worse, but not in the median pair")


def test_a_median_pair_without_a_difference_shows_nothing_either() -> None:
    """In `Verdict._is_ambiguous`, take 0 for an answer."""
    ours = [100.0] * 15
    verdict = compared(ours, [*ours[:8], *(500.0 + number for number in range(7))])
    assert verdict.difference is not None
    assert (verdict.difference.median, verdict.difference.p < 0.05) == (0.0, True)
    unpaired = {(seed, 1): 700.0 for seed in range(3)}  # runs of one side only, which change its median
    rivals = {"kip848": {"settled_ms": by_seed(list(verdict.other_values)) | unpaired}}
    (verdict,) = verdicts({SETTING: {"central-incremental": {"settled_ms": by_seed(ours)}, **rivals}})
    assert (verdict.medians[0] < verdict.medians[1], verdict.outcome) == (True, "open")


def test_other_heartbeats_are_part_of_a_rivals_name() -> None:
    verdict = compared(SLOW, FAST, setting=replace(SETTING, settings="heartbeat-50"))
    assert verdict.rival == "kip848, 50 ms"
    assert loss_lines([verdict])[verdict.setting] == [
        "time to settled: 3,100 ms against kip848, 50 ms 11 ms (ours 282 times worse)"
    ]
    assert headline(verdict.setting, "settled_ms", [verdict]) == (
        "crash, heartbeat-50 settings, 3 members, 6 partitions, kafka-3.9: "
        "time to settled 3,100 ms for central-incremental, tuned; "
        "kip848, 50 ms 11 ms (ours 282 times worse; 7 pairs, p 0.016)."
    )
    assert compared(SLOW, FAST, setting=replace(SETTING, settings="tuned")).rival == "kip848"
    assert in_order(["kip848, 200 ms", "kip848, 50 ms", "kip848"]) == ["kip848", "kip848, 50 ms", "kip848, 200 ms"]


def test_runs_without_a_partner_do_not_count() -> None:
    values = {"central-incremental": {"settled_ms": by_seed(FAST)}, "kip848": {"settled_ms": {(99, 0): 3.0}}}
    (verdict,) = verdicts({SETTING: values})
    assert (verdict.pairs, verdict.outcome) == (0, "open")
    assert "no pair of runs with the same seed" in str(verdict)


def test_notes_beside_values() -> None:
    assert compared(FAST, SLOW).beside == "ours 282 times better"
    assert compared([0.0] * 7, SLOW).beside == "ours better"
    assert compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0]).beside == "ours worse"
    assert compared([5.0], [5.0]).beside == "equal"


def test_what_is_not_significant_has_no_note_in_a_table() -> None:
    """In `note`, return `beside`: hundreds of cells say that nothing is shown, which one line can."""
    assert compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0]).note == ""
    for one in (compared(FAST, SLOW), compared([5.0], [5.0]), compared([100.0] * 7, [104.0] * 7)):
        assert one.note == one.beside


def test_the_first_sentences_call_nothing_better_that_is_not_shown() -> None:
    """In `compared_in`, return `beside`: "ours better; 8 pairs, p 0.078" is read as a gain."""
    verdict = compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.5])
    assert "kip848 4.5 ms (no difference is shown; 3 pairs, too few to test)." in headline(
        SETTING, "settled_ms", [verdict]
    )
    assert "(ours better, but by less than 5%;" in headline(SETTING, "settled_ms", [compared([100.0] * 7, [104.0] * 7)])


def test_bytes_that_rivals_do_not_send_have_no_ratio() -> None:
    """In `_apart`, divide them, too: the ratio to what the run itself asks for is no loss of anybody."""
    bytes_per_s = [9_300.0 + n for n in range(7)]
    verdict = compared(bytes_per_s, [9.0] * 7, "rest_zookeeper_bytes_per_s")
    assert (verdict.outcome, verdict.beside) == ("loses", "ours 9,294/s more")
    assert "9,303/s against 9/s, 9,294/s more (" in str(verdict)
    assert compared([9.0] * 7, [9_999.5 + n for n in range(7)]).beside == "ours 1,111 times better", "as a number"


def test_the_first_sentence_says_what_came_out() -> None:
    far = replace(SETTING, scenario="far", settings="heartbeat-50")
    after = "settled_ms after kill-member"
    found = [compared(FAST, SLOW), compared(FAST, SLOW[::-1]), compared(SLOW, FAST, after, far), compared(FAST, FAST)]
    assert first_sentence([*found, compared(SLOW, FAST, "requests"), compared(FAST[:5], SLOW[:5])]) == (
        "In the time to settled, this project is better in 2 of 4 comparisons, worse in 1 (far after kill-member "
        "against kip848, 50 ms), and in 1 no difference is shown."
    )
    assert first_sentence([compared(FAST[:5], SLOW[:5])]) == (
        "Nothing can be shown: no comparison of the primary measure has 6 pairs of runs."
    )


def test_a_win_as_a_sentence() -> None:
    verdict = compared(FAST, SLOW)
    assert str(verdict).startswith(
        "central-incremental wins in time to settled: 11 ms against 3,100 ms, 282 times less"
    )
    assert losses([verdict]) == []


def test_an_open_comparison_as_a_sentence() -> None:
    assert str(compared([1.0, 9.0, 5.0], [2.0, 8.0, 4.0])) == (
        "time to settled: 5 ms against 4 ms; ours worse, but no difference is shown (the other minus ours, 95%: "
        "-1 ms to 1 ms; 3 pairs, p 1; with fewer than 6 nothing can be shown)"
    )


def test_a_small_difference_is_ignored() -> None:
    verdict = compared([100.0 + n / 10 for n in range(7)], [104.0 + n / 10 for n in range(7)])
    assert (verdict.outcome, losses([verdict])) == ("open", [])
    assert verdict.beside == "ours better, but by less than 5%"


def test_the_projects_own_modes_do_not_compete() -> None:
    values = {
        name: {"settled_ms": by_seed(of)} for name, of in (("central-eager", FAST), ("central-incremental", SLOW))
    }
    assert losses(verdicts({SETTING: values})) == []


def test_measures_that_are_always_zero_are_left_out() -> None:
    values = {name: {"lost": by_seed([0.0, 0.0, 0.0])} for name in ("central-incremental", "kip848")}
    assert verdicts({SETTING: values}) == []


def test_without_this_project_there_are_no_verdicts() -> None:
    values = {name: {"settled_ms": by_seed(FAST)} for name in ("kip848", "classic-range")}
    assert verdicts({SETTING: values}) == []


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
