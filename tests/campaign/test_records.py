"""The results of a campaign: summaries, the document, and broken promises."""

from __future__ import annotations

import itertools
from collections import Counter

from tests.campaign.records import CampaignRecord, FaultRecord, Outcome, RoundRecord
from tests.campaign.verdict import FIRST_CHECK_S, CheckTimes
from zkrebalancer.observe.checker import judge


def fault(kind: str) -> FaultRecord:
    return FaultRecord(kind, "agent", "", 1.0, 2.0)


RECORD = CampaignRecord(
    rounds=[
        RoundRecord((fault("join"), fault("suspend-agent")), without_owner_s=3.0, settled_s=0.5),
        RoundRecord((fault("join"),), without_owner_s=1.0, settled_s=0.1),
        RoundRecord((fault("kill-agent"),), without_owner_s=4.0, settled_s=1.5),
    ],
    not_reached=Counter({"kill-agent": 1}),
)


def outcome(record: CampaignRecord) -> Outcome:
    return Outcome(record, judge([]), 7, {"kafka": "3.9.1"}, {}, 60.0, 0.1)


def test_a_kind_is_summed_up_over_the_rounds_in_which_it_took_part() -> None:
    rows = {row.title: row for row in RECORD.summaries()}
    assert list(rows) == ["agent killed (kill -9)", "agent suspended past its session", "agent joins"]
    joins = rows["agent joins"]
    assert (joins.count, joins.without_owner_s_median, joins.without_owner_s_max) == (2, 2.0, 3.0)
    assert (joins.settled_s_median, joins.settled_s_max) == (0.3, 0.5)
    assert rows["agent killed (kill -9)"].not_reached == 1


def test_the_document_lists_each_fault_with_its_round() -> None:
    document = outcome(RECORD).document()
    assert document["ok"]
    faults = document["faults"]
    assert isinstance(faults, list)
    assert [(each["round"], each["kind"]) for each in faults] == [
        (1, "join"),
        (1, "suspend-agent"),
        (2, "join"),
        (3, "kill-agent"),
    ]


def test_a_problem_found_by_the_campaign_or_the_checker_is_a_broken_promise() -> None:
    assert outcome(CampaignRecord(problems=["not settled"])).problems == ["not settled"]
    assert outcome(CampaignRecord(problems=["the same", "the same"])).problems == ["the same"]
    nothing_to_judge = Outcome(CampaignRecord(), None, 7, {}, {}, 1.0, 0.0)
    assert not nothing_to_judge.document()["ok"]


def test_checks_become_rarer_as_the_run_grows_older() -> None:
    times = CheckTimes()
    ages = [age for age in range(0, 4_000, 5) if times.is_due(age)]
    assert ages[0] == FIRST_CHECK_S
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(ages))
    assert len(ages) == 7
