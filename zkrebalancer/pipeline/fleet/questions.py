"""The questions that a fleet's history answers, each with a short answer and the figures that it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from zkrebalancer.pipeline.fleet.history import SESSION_OF_THE_DEAD
from zkrebalancer.pipeline.fleet.replay import AS_RECORDED, SETTINGS, Setting

SHOWN = 5  # rows below an answer
OFTEN_PER_DAY = 24.0  # more rebalances than this are too often, unless the members really come and go so often
SLOW_ANSWER_MS = 1_000.0
UNOWNED = "unowned_partition_s"
NOT_RECORDED = "Unknown: no agent wrote events."


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a fleet.

    `groups`: group, days, rebalances, per_day, moved, unowned_partition_s, cause, members, unheard, crashed,
    sessions_unknown, unowned_now. `causes` and `lateness`: as in `history`. `settings`: group, setting, rebalances,
    moved, unowned_partition_s, steps, left_out, crashes_unknown, clients_unknown, recorded_rebalances,
    recorded_partition_s. Unrecorded values are null.
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
            f"most often because of {worst['cause']}."
        )
    if (tables.groups["days"] < 1).any():
        answer += " Less than a day counts as one."
    ranked = often if len(often) else tables.groups.sort_values("per_day", ascending=False)
    return Question("Which groups rebalance too often, and why?", answer, _rows(ranked))


def _cost_of_causes(tables: Tables) -> Question:
    question = "What does each cause cost?"
    by_cause = tables.causes.groupby("cause")[["rebalances", "moved", UNOWNED]].sum(min_count=1).reset_index()
    by_cause = by_cause.sort_values(UNOWNED, ascending=False)
    if _is_unknown(tables):
        return Question(question, NOT_RECORDED, _rows(by_cause))
    total = float(by_cause[UNOWNED].sum())
    first = by_cause.iloc[0] if total else None
    answer = (
        "No partition was without an owner."
        if first is None
        else f"{shown(total)} partition-seconds without an owner in all; {first['cause']} costs "
        f"{first[UNOWNED] / total:.0%} of them, in {first['rebalances']:.0f} rebalances."
    )
    return Question(question, answer + _missing(tables), _rows(by_cause))


def _costly_groups(tables: Tables) -> Question:
    ranked = tables.groups.sort_values(UNOWNED, ascending=False)
    question = "Which groups lose most time?"
    if _is_unknown(tables):
        return Question(question, NOT_RECORDED, _rows(ranked))
    total = float(ranked[UNOWNED].sum())
    answer = "None: no partition was without an owner for a time that is over."
    if total:
        first = ranked.iloc[0]
        answer = f"{first['group']}: {shown(first[UNOWNED])} partition-seconds, {first[UNOWNED] / total:.0%} of all."
    if now := int(ranked["unowned_now"].sum()):
        answer += f" {now} partitions have no owner at the end, which does not count: their topics may be gone."
    return Question(question, answer + _missing(tables), _rows(ranked if total or now else ranked[:0]))


def _is_unknown(tables: Tables) -> bool:
    return bool(len(tables.groups)) and bool(tables.groups[UNOWNED].isna().all())


def _missing(tables: Tables) -> str:
    """Return sentences about unrecorded values, each after a space."""
    groups = tables.groups
    unknown = groups[UNOWNED].isna()
    told = f" Of {unknown.sum()} of {len(groups)} groups it is unknown: no agent wrote events." if unknown.any() else ""
    heard = groups[~unknown]
    if unheard := int(heard["unheard"].sum()):
        others = " of the others" if told else ""
        told += (
            f" Of {unheard} of {int(heard['members'].sum())} members{others}, no events are there: "
            "times without an owner are too long or too short."
        )
    return told


def _late(tables: Tables) -> Question:
    question = "Who is late?"
    ranked = tables.lateness.sort_values(["late", "answer_ms"], ascending=False)
    if ranked.empty:
        return Question(question, "Unknown: no command was acknowledged.", [])
    late = ranked[(ranked["late"] > 0) | (ranked["answer_ms"] > SLOW_ANSWER_MS)]
    median = float(ranked["answer_ms"].dropna().median())
    if late.empty:
        answer = f"No client: the median of their median answers is {shown(median)} ms."
    else:
        first = late.iloc[0]
        where = f"{first['client']} on {first['host'] or 'an unknown host'}"
        answer = f"{len(late)} of {len(ranked)} clients. {where} was late in {first['late']:.0f} plans"
        has_answered = pd.notna(first["answer_ms"])
        answer += f"; its median answer takes {shown(first['answer_ms'])} ms" if has_answered else " and never answered"
        answer += "." if pd.isna(median) else f"; that of all takes {shown(median)} ms."
    return Question(question, answer, _rows(late if len(late) else ranked))


def _sessions(tables: Tables) -> Question:
    question = "What do crashes cost while sessions last?"
    waits = tables.causes[tables.causes["cause"] == SESSION_OF_THE_DEAD]
    groups = tables.groups
    unknown = int(groups[groups[UNOWNED].isna()]["crashed"].sum())
    if not groups["crashed"].sum():
        return Question(question, "Nothing: no session expired.", [])
    if waits.empty:
        answer = "Nothing: whose session expired owned nothing."
        if unknown:
            answer = f"Unknown: {unknown} sessions expired, and no agent wrote events."
        return Question(question, answer, [])
    waited, total = float(waits[UNOWNED].sum()), float(tables.causes[UNOWNED].sum())
    answer = f"{shown(waited)} partition-seconds" + (f", {waited / total:.0%} of all" if total else "")
    if groups["sessions_unknown"].sum():
        answer += ", at most: the last record of a member whose session is unknown counts as its last sign of life"
    answer += (
        ". A shorter session timeout shortens this in proportion, but members that pause for longer then lose their "
        "partitions."
    )
    if unknown:
        answer += f" Of {unknown} more sessions that expired, it is unknown."
    return Question(question, answer, _rows(waits.sort_values(UNOWNED, ascending=False)))


def _would_have_changed(setting: Setting) -> Callable[[Tables], Question]:
    def ask(tables: Tables) -> Question:
        compared = _compared(tables.settings, setting.name)
        question = f"What would `{setting.name}` have changed?"
        if compared.empty:
            return Question(question, "Unknown: no member joined or left.", [])
        sums = compared.select_dtypes("number").sum(skipna=False)
        recorded_s = sums["recorded_partition_s"]
        recorded = "an unknown number of" if pd.isna(recorded_s) else shown(recorded_s)
        answer = (
            f"{shown(sums[UNOWNED])} partition-seconds without an owner "
            f"instead of {shown(sums['unowned_now'])}, {sums['moved']:.0f} moves instead of {sums['moved_now']:.0f}, "
            f"{sums['rebalances']:.0f} rebalances instead of {sums['rebalances_now']:.0f}, in the replay. Recorded are "
            f"{recorded} partition-seconds and {sums['recorded_rebalances']:.0f} rebalances."
        )
        if sums["left_out"]:
            answer += f" The replay leaves out {sums['left_out']:.0f} older changes, of groups with very many."
        if sums["crashes_unknown"]:
            answer += f" {sums['crashes_unknown']:.0f} crashes cost nothing here: nobody knows since when."
        if setting.grace_us:
            answer += " Events do not tell which members were static: all are replayed as if none had been."
        if setting.grace_us and sums["clients_unknown"]:
            answer += (
                f" {sums['clients_unknown']:.0f} of {sums['steps']:.0f} changes are of members without events of their "
                "own, whose returns cannot be seen."
            )
        best = compared.sort_values("saved_partition_s", ascending=False)
        return Question(question, answer, _rows(best[best["saved_partition_s"] != 0]))

    return ask


def _compared(settings: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return each group's replay under a setting beside the one as recorded, and what it would have saved."""
    now = settings[settings["setting"] == AS_RECORDED][["group", "rebalances", "moved", UNOWNED]]
    now = now.rename(columns={"rebalances": "rebalances_now", "moved": "moved_now", UNOWNED: "unowned_now"})
    rows = settings[settings["setting"] == name].drop(columns=["setting"]).merge(now, on="group")
    return rows.assign(saved_partition_s=rows["unowned_now"] - rows[UNOWNED])


def shown(value: object) -> str:
    """Return a figure as people read it; unknown ones are a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
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
    *(_would_have_changed(setting) for setting in SETTINGS if setting.name != AS_RECORDED),
)
