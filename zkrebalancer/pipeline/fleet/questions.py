"""The questions that a fleet's history answers, each with a short answer and the figures that it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from zkrebalancer.pipeline.fleet.history import SESSION_OF_THE_DEAD
from zkrebalancer.pipeline.fleet.replay import AS_RECORDED, SETTINGS

SHOWN = 5  # rows below an answer
OFTEN_PER_DAY = 24.0  # more rebalances than this are too often, unless the members really come and go so often
SLOW_ANSWER_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a fleet.

    `groups`: group, days, members_changed, rebalances, per_day, moved, unowned_partition_s, cause. `causes` and
    `lateness`: as in `history`. `settings`: group, setting, rebalances, moved, unowned_partition_s, left_out.
    """

    groups: pd.DataFrame
    causes: pd.DataFrame
    lateness: pd.DataFrame
    settings: pd.DataFrame


@dataclass(frozen=True, slots=True)
class Question:
    """One row of the page: `figures` are rows of one table, at most SHOWN, the most important first."""

    question: str
    answer: str
    figures: Sequence[Mapping[str, object]]


def questions(tables: Tables) -> list[Question]:
    """Answer every question; without data, the answer says so."""
    return [ask(tables) for ask in _ASKED]


def _too_often(tables: Tables) -> Question:
    often = tables.groups[tables.groups["per_day"] > OFTEN_PER_DAY].sort_values("per_day", ascending=False)
    median = float(tables.groups["per_day"].median()) if len(tables.groups) else 0.0
    if often.empty:
        answer = f"None has more than {OFTEN_PER_DAY:g} rebalances a day; the median of all groups is {shown(median)}."
    else:
        worst = often.iloc[0]
        answer = (
            f"{len(often)} of {len(tables.groups)} have more than {OFTEN_PER_DAY:g} a day; "
            f"the median is {shown(median)}. {worst['group']} has {shown(worst['per_day'])}, "
            f"most of them because of {worst['cause']}."
        )
    ranked = often if len(often) else tables.groups.sort_values("per_day", ascending=False)
    return Question("Which groups rebalance too often, and why?", answer, _rows(ranked))


def _cost_of_causes(tables: Tables) -> Question:
    sums = ["rebalances", "moved", "unowned_partition_s"]
    by_cause = tables.causes.groupby("cause")[sums].sum().reset_index()
    by_cause = by_cause.sort_values("unowned_partition_s", ascending=False)
    total = float(by_cause["unowned_partition_s"].sum())
    if not total:
        return Question("What does each cause cost?", "No partition was without an owner.", _rows(by_cause))
    first = by_cause.iloc[0]
    answer = (
        f"{shown(total)} partition-seconds without an owner in all; {first['cause']} costs "
        f"{first['unowned_partition_s'] / total:.0%} of them, in {first['rebalances']:.0f} rebalances."
    )
    return Question("What does each cause cost?", answer, _rows(by_cause))


def _costly_groups(tables: Tables) -> Question:
    ranked = tables.groups.sort_values("unowned_partition_s", ascending=False)
    total = float(ranked["unowned_partition_s"].sum())
    question = "Which groups lose most time?"
    if not total:
        return Question(question, "None: no partition was without an owner.", [])
    first = ranked.iloc[0]
    lost = first["unowned_partition_s"]
    answer = f"{first['group']}: {shown(lost)} partition-seconds, {lost / total:.0%} of all."
    return Question(question, answer, _rows(ranked))


def _late(tables: Tables) -> Question:
    question = "Who is late?"
    ranked = tables.lateness.sort_values(["late", "answer_ms"], ascending=False)
    if ranked.empty:
        return Question(question, "Unknown: no command was acknowledged.", [])
    late = ranked[(ranked["late"] > 0) | (ranked["answer_ms"] > SLOW_ANSWER_MS)]
    median = float(ranked["answer_ms"].median())
    if late.empty:
        answer = f"No client: the median of their median answers is {shown(median)} ms."
    else:
        first = late.iloc[0]
        where = f"{first['client']} on {first['host'] or 'an unknown host'}"
        answer = (
            f"{len(late)} of {len(ranked)} clients. {where} was late in {first['late']:.0f} plans; "
            f"its median answer takes {shown(first['answer_ms'])} ms, that of all {shown(median)} ms."
        )
    return Question(question, answer, _rows(late if len(late) else ranked))


def _sessions(tables: Tables) -> Question:
    question = "What do crashes cost while sessions last?"
    waits = tables.causes[tables.causes["cause"] == SESSION_OF_THE_DEAD]
    total = float(tables.causes["unowned_partition_s"].sum())
    if waits.empty:
        return Question(question, "Nothing: no session expired.", [])
    waited = float(waits["unowned_partition_s"].sum())
    answer = (
        f"{shown(waited)} partition-seconds, {waited / total:.0%} of all. A shorter session timeout shortens this in "
        "proportion, but members that pause for longer then lose their partitions."
    )
    return Question(question, answer, _rows(waits.sort_values("unowned_partition_s", ascending=False)))


def _would_have_changed(name: str) -> Callable[[Tables], Question]:
    def ask(tables: Tables) -> Question:
        compared = _compared(tables.settings, name)
        question = f"What would `{name}` have changed?"
        if compared.empty:
            return Question(question, "Unknown: no member joined or left.", [])
        sums = compared[
            ["moved", "moved_now", "unowned_partition_s", "unowned_now", "rebalances", "rebalances_now"]
        ].sum()
        answer = (
            f"{shown(sums['unowned_partition_s'])} partition-seconds without an owner "
            f"instead of {shown(sums['unowned_now'])}, {sums['moved']:.0f} moves instead of {sums['moved_now']:.0f}, "
            f"{sums['rebalances']:.0f} rebalances instead of {sums['rebalances_now']:.0f}, in the replay."
        )
        best = compared.sort_values("saved_partition_s", ascending=False)
        return Question(question, answer, _rows(best[best["saved_partition_s"] != 0]))

    return ask


def _compared(settings: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return each group's replay under a setting beside the one as recorded, and what it would have saved."""
    now = settings[settings["setting"] == AS_RECORDED].drop(columns=["setting", "left_out"])
    now = now.rename(
        columns={"rebalances": "rebalances_now", "moved": "moved_now", "unowned_partition_s": "unowned_now"}
    )
    rows = settings[settings["setting"] == name].drop(columns=["setting", "left_out"]).merge(now, on="group")
    return rows.assign(saved_partition_s=rows["unowned_now"] - rows["unowned_partition_s"])


def shown(value: object) -> str:
    """Return a figure as people read it; unknown ones are a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"  # beyond, digits are noise
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rows(table: pd.DataFrame) -> list[dict[str, object]]:
    rows = table.head(SHOWN).to_dict("records")
    return [{str(key): None if pd.isna(value) else value for key, value in row.items()} for row in rows]


_ASKED: tuple[Callable[[Tables], Question], ...] = (
    _too_often,
    _cost_of_causes,
    _costly_groups,
    _late,
    _sessions,
    *(_would_have_changed(setting.name) for setting in SETTINGS if setting.name != AS_RECORDED),
)
