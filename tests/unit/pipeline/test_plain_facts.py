"""What Spark takes through plain Python equals the checker's verdict, on random histories; Spark is not needed here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from tests.unit.observe.history import History
from tests.unit.pipeline.histories import chaos, crowded, unplaced
from zkrebalancer.observe.holdings import era_of
from zkrebalancer.observe.measures import measure
from zkrebalancer.pipeline.facts import fates, of_partition, of_run
from zkrebalancer.pipeline.facts.one_pass import Group

SEEDS = range(150)
SUMS = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order")
Rows = list[dict[str, Any]]


def columns(schema: str) -> list[str]:
    """Return the names of the columns of a schema in DDL."""
    outside, depth = "", 0
    for letter in schema:
        depth += (letter == "<") - (letter == ">")
        outside += letter if depth == 0 else ""
    return [column.split()[0] for column in outside.split(", ")]


def tables(rows: dict[str, list[tuple[Any, ...]]], schemas: dict[str, str]) -> dict[str, Rows]:
    return {
        name: [dict(zip(columns(schemas[name]), row, strict=True)) for row in found] for name, found in rows.items()
    }


def of_history(history: History) -> dict[str, Rows]:
    """Return the tables of `of_run`."""
    facts = of_run.RunFacts("r")
    for number, event in enumerate(history.events):
        facts.apply({"early_us": 0, "late_us": 0, **event, "file": "f", "block": 0, "row": number})
    facts.finish()
    return tables(facts.rows, of_run.SCHEMAS)


def delivered(history: History, found: dict[str, Rows], deleted_us: list[int]) -> Rows:
    """Return the deliveries, with what tells their leg."""
    singles = []
    for number, event in enumerate(history.events):
        if event["kind"] != "delivered":
            continue
        at_us, era = event["mono_us"], era_of(deleted_us, event["mono_us"])
        legs = [
            leg
            for leg in found["legs"]
            if (leg["member"], leg["partition"]) == (event["member"], event["partition"])
            and leg["started_us"] <= at_us <= (at_us if leg["until_us"] is None else leg["until_us"])
        ]
        at = {"mono_us": at_us, "block": 0, "row": number}
        of_leg = {name: legs[0][name] if legs else None for name in ("started_us", "position")}
        if not legs or legs[0]["era"] == era:
            offsets = {"begin": event["first_offset"], "end": event["last_offset"] + 1}
            keys = {name: event[name] for name in ("group", "topic", "partition", "member")}
            singles.append({**keys, **offsets, **of_leg, "era": era, "at": at, "bucket": 0})
    return singles


def joined(singles: Rows) -> Rows:
    """Return deliveries as stretches: those of a leg that follow one another without a gap are one."""
    stretches: Rows = []
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in singles:
        leg = tuple(each[name] for name in ("partition", "member", "started_us", "era"))
        before = last.get(leg)
        if before is not None and before["end"] == each["begin"]:
            before.update(end=each["end"], last=each["at"], events=before["events"] + 1)
        else:
            last[leg] = {**each, "bucket": 0, "began": each["at"], "last": each["at"], "events": 1}
            stretches.append(last[leg])
    return stretches


def by_partition(history: History) -> dict[int, dict[str, Rows]]:
    """Return what `of_partition` and `fates` need, by partition."""
    found = of_history(history)
    deleted_us = [deleted for row in found["eras"] for deleted in row["deleted_us"]]
    produced = [event for event in history.events if event["kind"] == "produced"]
    excused = [{**each, "held_us": each["started_us"]} for each in found["intervals"] if each["excused_us"] is not None]
    singles = delivered(history, found, deleted_us)
    rows = {
        "produced": [
            {
                **each,
                "era": era_of(deleted_us, each["mono_us"]),
                "begin": each["first_offset"],
                "end": each["last_offset"] + 1,
            }
            for each in produced
        ],
        "interval": [{**each, "since": dict(enumerate(each["began"]))} for each in found["intervals"]],
        "leg": found["legs"],
        "stretch": joined(singles),
        "single": singles,
        "excuse": excused,
        "commit": [{**each, "committed": last} for each in excused if (last := committed(history, each)) is not None],
    }
    partitions: dict[int, dict[str, Rows]] = defaultdict(lambda: defaultdict(list))
    for what, of_kind in rows.items():
        for row in of_kind:
            partitions[row["partition"]][what].append({**row, "what": what})
    return partitions


def counts(history: History) -> Counter[str]:
    """Return the sums of the rows of `delivery`."""
    sums = Counter[str]()
    for partition, rows in by_partition(history).items():
        facts = of_partition.PartitionFacts("r", "t", partition)
        feed(facts, *(rows[what] for what in ("produced", "interval", "leg", "stretch")))
        judged = tables(facts.rows, of_partition.SCHEMAS)
        singles = [each for each in rows["single"] if any(_is_of(each, stretch) for stretch in judged["suspects"])]
        segments = [{**each, "what": "segment"} for each in judged["segments"]]
        record = fates.Fates("r", "g", "t", partition)
        feed(record, segments, singles, *(rows[what] for what in ("leg", "stretch", "excuse", "commit")))
        for row in tables(record.rows, fates.SCHEMAS)["delivery"]:
            sums.update({name: row[name] for name in SUMS})
    return sums


def _is_of(single: dict[str, Any], stretch: dict[str, Any]) -> bool:
    is_same_leg = all(single[name] == stretch[name] for name in ("member", "started_us", "era"))
    return is_same_leg and stretch["began"]["row"] <= single["at"]["row"] <= stretch["last"]["row"]


def feed(group: Group, *rows: Rows) -> None:
    for each in chain(*rows):
        group.apply(each)
    group.finish()


def committed(history: History, excused: dict[str, Any]) -> int | None:
    """Return the last offset committed in an interval up to its excuse, if any."""
    offsets = [
        event["offset"]
        for event in history.events
        if event["kind"] == "committed"
        and (event["member"], event["partition"]) == (excused["member"], excused["partition"])
        and excused["started_us"] <= event["mono_us"] <= excused["excused_us"]
    ]
    return offsets[-1] if offsets else None


@pytest.mark.parametrize(("made", "seeds"), [(chaos, SEEDS), (crowded, range(1_500)), (unplaced, range(500))])
def test_the_fate_of_records_is_that_of_the_checker(made: Callable[[int], History], seeds: range) -> None:
    """In `_Piece.history`, excuse no record at the committed offset; in `Book._passed_over`, begin below a position."""
    total = Counter[str]()
    for seed in seeds:
        history = made(seed)
        verdict, found = history.verdict(), counts(history)
        assert {name: found[name] for name in SUMS} == {name: getattr(verdict, name) for name in SUMS}, seed
        total.update(found)
    assert all(total[name] for name in SUMS)


def test_overlaps_and_steps_are_those_of_the_checker() -> None:
    compared = 0
    for seed in SEEDS:
        history = chaos(seed)
        found = of_history(history)
        assert len({row["partition"] for row in found["overlaps"]}) == history.verdict().overlaps
        steps = {row["step"]: row for row in found["steps"]}
        for step in measure(history.events)[1]:
            own = steps[step["number"]]
            names = ("settled_ms", "first_record_ms", "unowned_partition_ms", "moved", "stopped_needlessly")
            assert [own[name] for name in names] == [step[name] for name in names]
            compared += 1
    assert compared > 3


@pytest.mark.parametrize(("early_us", "count"), [(0, 2), (10_000_000, 0)])
def test_a_start_that_may_have_been_before_the_end_of_its_member_owns_nothing(early_us: int, count: int) -> None:
    """In `RunFacts._start`, let it begin: each later start would be an overlap, as its member ends no more."""
    history = History().started("a", 0).ended("a", "expired").started("a", 0)
    history.events[-1]["early_us"] = early_us
    history.started("b", 0, generation=2).stopped("b", 0).started("b", 0, generation=3)
    assert len(of_history(history)["overlaps"]) == count
