"""The sentences on a fleet's page, above all about figures that were not recorded."""

from __future__ import annotations

import pandas as pd
import pytest

from zkrebalancer.pipeline.fleet.history import SESSION_OF_THE_DEAD
from zkrebalancer.pipeline.fleet.questions import Tables, questions
from zkrebalancer.pipeline.fleet.replay import AS_RECORDED, SETTINGS

NAN = float("nan")
CLIENT = {"group": "g", "client": "a", "host": "h", "commands": 0, "answer_ms": NAN, "answer_ms_max": NAN, "late": 2}


def group(name: str = "g", unowned_s: float = 1.0, per_day: float = 3.0, **fields: object) -> dict[str, object]:
    counts = {"members": 4, "unheard": 0, "crashed": 0, "sessions_unknown": 0, "unowned_now": 0}
    times = {"days": 9.0, "rebalances": 27, "per_day": per_day, "moved": 1, "unowned_partition_s": unowned_s}
    return {"group": name, **times, "cause": "member-joined", **counts, **fields}


def cause(unowned_s: float = 1.0, name: str = "member-joined", group: str = "g") -> dict[str, object]:
    figures = {"rebalances": 3, "moved": 1, "settled_ms": 1.0, "settled_ms_max": 1.0}
    return {"group": group, "cause": name, "unowned_partition_s": unowned_s, **figures}


def setting(name: str, **fields: object) -> dict[str, object]:
    sums = {"rebalances": 3, "moved": 1, "unowned_partition_s": 1.0, "steps": 5, "left_out": 0}
    unknown = {"crashes_unknown": 0, "clients_unknown": 0, "recorded_rebalances": 7, "recorded_partition_s": 2.0}
    return {"group": "g", "setting": name, **sums, **unknown, **fields}


def answers(
    groups: list[dict[str, object]],
    causes: list[dict[str, object]],
    clients: list[dict[str, object]] | None = None,
    **fields: object,
) -> dict[str, str]:
    settings = [setting(each.name, **fields) for each in SETTINGS]
    frames = (pd.DataFrame(rows) for rows in (groups, causes, clients or [CLIENT], settings))
    return {one.question: one.answer for one in questions(Tables(*frames))}


COSTS, GROUPS, CRASHES = (
    "What does each cause cost?",
    "Which groups lose most time?",
    "What do crashes cost while sessions last?",
)


def test_what_no_agent_recorded_is_unknown_and_not_zero() -> None:
    """In `_is_unknown`, return False."""
    said = answers([group(unowned_s=NAN, crashed=3)], [cause(NAN)])
    assert said[COSTS] == said[GROUPS] == "Unknown: no agent wrote events."
    assert said[CRASHES] == "Unknown: 3 sessions expired, and no agent wrote events."


def test_what_was_recorded_of_some_says_of_how_many_it_was_not() -> None:
    """In `_missing`, return nothing."""
    said = answers([group(unowned_s=0.0, unheard=1), group("h", NAN)], [cause(0.0), cause(NAN, group="h")])
    rest = "Of 1 of 2 groups it is unknown: no agent wrote events. Of 1 of 4 members of the others, no events are there"
    assert said[COSTS].startswith(f"No partition was without an owner. {rest}")
    assert f". {rest}" in said[GROUPS]


def test_partitions_without_an_owner_at_the_end_are_told() -> None:
    said = answers([group(unowned_s=0.0, unowned_now=2)], [cause(0.0)])
    assert " 2 partitions have no owner at the end" in said[GROUPS]


@pytest.mark.parametrize(
    ("waited_s", "unknown", "expected"),
    [
        (0.0, 0, "0 partition-seconds. A shorter"),
        (3.0, 0, "3 partition-seconds, 75% of all. A shorter"),
        (3.0, 1, "3 partition-seconds, 75% of all, at most: the last record"),
    ],
)
def test_crashes_cost_at_most_what_was_silent(waited_s: float, unknown: int, expected: str) -> None:
    """In `_sessions`, divide by the sum whatever it is."""
    causes = [cause(1.0 if waited_s else 0.0), cause(waited_s, SESSION_OF_THE_DEAD)]
    assert answers([group(crashed=2, sessions_unknown=unknown)], causes)[CRASHES].startswith(expected)


def test_crashes_of_members_without_partitions_cost_nothing() -> None:
    assert answers([group(crashed=2)], [cause()])[CRASHES] == "Nothing: whose session expired owned nothing."


def test_a_client_that_never_answered_is_late() -> None:
    """In `_late`, show its median."""
    said = answers([group()], [cause()])["Who is late?"]
    assert said == "1 of 1 clients. a on h was late in 2 plans and never answered."
    quick = CLIENT | {"client": "b", "commands": 9, "answer_ms": 2.0, "late": 0}
    said = answers([group()], [cause()], [CLIENT, quick])["Who is late?"]
    assert said == "1 of 2 clients. a on h was late in 2 plans and never answered; that of all takes 2 ms."


def test_the_most_frequent_cause_need_not_be_that_of_most() -> None:
    said = answers([group(per_day=30.0, days=0.5)], [cause()])["Which groups rebalance too often, and why?"]
    assert said.endswith("g has 30, most often because of member-joined. Less than a day counts as one.")


def test_a_replay_has_what_was_recorded_beside_it_and_says_what_it_does_not_know() -> None:
    """In `_would_have_changed`, leave it out."""
    question = "What would `static members, static_grace_ms=30000` have changed?"
    unstatic = " Events do not tell which members were static: all are replayed as if none had been."
    asked = answers([group()], [cause()])
    assert asked[question].endswith(f"in the replay. Recorded are 2 partition-seconds and 7 rebalances.{unstatic}")
    assert unstatic not in asked["What would `session timeout halved` have changed?"]
    said = answers([group()], [cause()], left_out=9)[question]
    assert f" rebalances. The replay leaves out 9 older changes, of groups with very many.{unstatic}" in said
    said = answers([group()], [cause()], recorded_partition_s=NAN, crashes_unknown=1, clients_unknown=5)[question]
    assert "Recorded are an unknown number of partition-seconds" in said
    assert " 1 crashes cost nothing here: nobody knows since when." in said
    assert f"{unstatic} 5 of 5 changes are of members without events of their own, whose" in said


def test_a_setting_saves_what_the_replay_as_recorded_costs_more_and_may_lose() -> None:
    """In `_compared`, subtract the other way round; in `_would_have_changed`, show only what is saved."""
    costs = {"g": (5.0, 2.0), "h": (1.0, 4.0), "i": (1.0, 1.0)}  # as recorded, and otherwise
    settings = [
        setting(each.name, group=name, unowned_partition_s=now if each.name == AS_RECORDED else then)
        for each in SETTINGS
        for name, (now, then) in costs.items()
    ]
    tables = Tables(*(pd.DataFrame(rows) for rows in ([group()], [cause()], [CLIENT], settings)))
    (asked,) = (one for one in questions(tables) if one.question == "What would `mode=eager` have changed?")
    assert [(row["group"], row["saved_partition_s"]) for row in asked.figures] == [("g", 3.0), ("h", -3.0)]
    assert asked.answer.startswith("7 partition-seconds without an owner instead of 7, ")
