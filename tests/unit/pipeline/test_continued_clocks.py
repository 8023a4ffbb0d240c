"""Runs of several hosts are continued as if all their events had been known at once, event by event."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.unit.observe.test_several_hosts import COORDINATOR, FIRST, SECOND, Clock, Fleet
from tests.unit.pipeline.test_continued import parsed, require_same
from zkrebalancer.observe.clocks import align
from zkrebalancer.observe.hosts import ClockNames, Witness
from zkrebalancer.pipeline import watch
from zkrebalancer.pipeline.continued import keeper as keeping
from zkrebalancer.pipeline.continued import run, tables
from zkrebalancer.pipeline.continued.aligned import AlignedRun
from zkrebalancer.pipeline.continued.clocks import RAW, Clocks, ClocksMovedError
from zkrebalancer.pipeline.continued.keeper import Keeper
from zkrebalancer.pipeline.continued.stored import Span, StoredEvents
from zkrebalancer.pipeline.continued.tables import Parts
from zkrebalancer.pipeline.facts.runs import RUNS
from zkrebalancer.pipeline.schema import BOUNDS, FOREVER_US

SEEDS = range(40)
RUNS_OF_SPARK = range(6)
FEW_RUNS_OF_SPARK = (0, 2, 5)  # clocks are known better, soon and late; events come late, those of a file, too
PIECES = 6
RESTART = 4  # before this piece
WAIT_US = 10_000_000
DAY_US = 86_400_000_000
_TEXTS = ("host", "boot", "group", "cause_id", "command_id", "topic", "member", "reason")
_NUMBERS = ("ts_us", "mono_us", "generation", "asked_us", "first_offset", "last_offset", "sent_us")
COLUMNS = pa.schema([(name, pa.string()) for name in _TEXTS] + [(name, pa.int64()) for name in _NUMBERS]).append(
    pa.field("partition", pa.int32())
)
Event = dict[str, Any]


def history(seed: int) -> list[Event]:
    """Return events of three hosts in the order in which they happened; the clocks of some are hardly tied."""
    chance = random.Random(seed)
    clocks = {COORDINATOR: Clock(), FIRST: Clock(7_000_000, 200, 3_000), SECOND: Clock(-40_000_000, -150)}
    fleet = Fleet(clocks, seed=seed, with_keys=seed % 5 != 4)
    offset, owner, other = 0, FIRST, SECOND
    fleet.command(owner, "start-fetcher", 0)
    for _ in range(chance.randrange(5, 15)):
        pause_us = chance.choice((300_000, 3_000_000, 3_000_000, 20_000_000))
        for _ in range(3):
            fleet.produced(offset, offset + 31).delivered(owner, offset, offset + 31).passes(1, pause_us)
            offset += 32
        what = chance.random()
        if what < 0.1:
            fleet.delivered(owner, offset - 64, offset - 1)
        elif what < 0.2:
            fleet.command(other, "start-fetcher", offset)
        elif what < 0.3:
            fleet.add(COORDINATOR, "step", name="change", target=FIRST, number=chance.randrange(9))
        elif what < 0.4:
            fleet.add(FIRST, "scenario", name="chaos", seed=seed)
        elif what < 0.45:
            offset = 0  # the topic is made anew: its records tie no clocks
        elif what < 0.55 and seed not in RUNS_OF_SPARK:
            left = f"other-{fleet.now_us}"
            fleet.leaves(left, {}, owner).add(COORDINATOR, "member_left", member=left, reason="closed")
        fleet.command(owner, "stop-fetcher", offset)
        owner, other = other, owner
        fleet.command(owner, "start-fetcher", offset)
    lines = [event for events in fleet.lines.values() for event in events]
    return sorted(lines, key=lambda event: event["ts_us"] - fleet.clocks[event["host"]].wall_error_us)


def by_kind(events: list[Event]) -> Iterator[tuple[str, pa.Table]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found[event["kind"]].append(event)
    return ((kind, pa.Table.from_pylist(rows, schema=COLUMNS)) for kind, rows in found.items())


def clocks_of(names: ClockNames, events: list[Event]) -> Clocks:
    clocks = Clocks(names)
    for kind, lines in by_kind(events):
        clocks.see(kind, lines)
    clocks.align()
    return clocks


def placed(clocks: Clocks, events: list[Event]) -> list[Event]:
    return clocks.place(pa.Table.from_pylist(events, schema=COLUMNS)).to_pylist() if events else []


def by_raw(rows: list[Event]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(row["host"], row[RAW]): tuple(row[name] for name in ("mono_us", *BOUNDS)) for row in rows}


def test_what_is_settled_stays_where_a_look_at_all_events_puts_it() -> None:
    """In `Clocks._require_same`, raise nothing."""
    moved = continued = 0
    for seed in SEEDS:
        events, names = history(seed), ClockNames()
        for event in events:
            names.note(event)
        clocks, settled, waiting = Clocks(names), list[Event](), list[Event]()
        for number in range(PIECES):
            new = events[number * len(events) // PIECES : (number + 1) * len(events) // PIECES]
            try:
                clocks.name(names)
                for kind, lines in by_kind(new):
                    clocks.see(kind, lines)
                clocks.align()
                waiting, continued = [*waiting, *new], continued + bool(settled)
            except ClocksMovedError:
                moved += 1
                waiting, settled = events[: (number + 1) * len(events) // PIECES], []
                clocks = clocks_of(names, waiting)
            rows = placed(clocks, waiting)
            limit_us = max(row["mono_us"] for row in rows) - WAIT_US
            done = [(event, row) for event, row in zip(waiting, rows, strict=True) if row["mono_us"] < limit_us]
            waiting = [event for event, row in zip(waiting, rows, strict=True) if row["mono_us"] >= limit_us]
            settled += [row for _event, row in done]
            if done:
                clocks.settle(clocks.place(pa.Table.from_pylist([event for event, _row in done], schema=COLUMNS)))
        expected = by_raw(placed(clocks_of(names, events), events))
        found = by_raw([*settled, *placed(clocks, waiting)])
        assert found == expected
    assert moved > 5
    assert continued > 50


@pytest.mark.parametrize("seed", range(10))
def test_many_events_are_placed_like_one(seed: int) -> None:
    """In `_bounds_at`, round down; or in `_guessed`, ignore the bound that is known."""
    events, names = history(seed), ClockNames()
    for event in events:
        names.note(event)
    witness, clocks = Witness(names), clocks_of(names, events)
    for event in events:
        witness.add(event)
    alignment = align(witness.evidence())
    for event, row in zip(events, placed(clocks, events), strict=True):
        one = alignment.place(names.of(event), event["mono_us"])
        early_us = FOREVER_US if one.earliest_us is None else one.at_us - one.earliest_us
        late_us = FOREVER_US if one.latest_us is None else one.latest_us - one.at_us
        assert (row["mono_us"], row["early_us"], row["late_us"]) == (one.at_us, early_us, late_us)
    middle_us = sorted(row["mono_us"] for row in placed(clocks, events))[len(events) // 2]
    lines = pa.Table.from_pylist(events, schema=COLUMNS)
    for span in (Span(middle_us, None), Span(None, middle_us), Span(middle_us - 9_000_000, middle_us)):
        limit = clocks.within(span)
        assert limit is not None
        assert clocks.place(lines.filter(limit)).to_pylist() == span.of({"any": clocks.place(lines)})["any"].to_pylist()


def pieces(seed: int) -> list[list[tuple[str, str, int, int, str]]]:
    """Return the lines of a history in pieces as they arrive; some are rejected, and a file may come late."""
    chance, events = random.Random(seed), history(seed)
    found: list[list[tuple[str, str, int, int, str]]] = [[] for _ in range(PIECES)]
    rows: dict[str, int] = defaultdict(int)
    for number, event in enumerate(events):
        file = f"run-{seed}/events/{event['host']}.jsonl"
        piece = number * PIECES // len(events)
        if seed == RUNS_OF_SPARK[-1] and event["host"] == SECOND:
            piece = min(PIECES - 1, piece + 1)
        bad = {"kind": "delivered", **{name: event[name] for name in ("mono_us", "ts_us", "host")}}
        others = chance.choice((*[[]] * 20, ["torn"], [json.dumps(bad)]))
        for text in [json.dumps(event), *others]:
            rows[file] += 1
            found[piece].append((f"run-{seed}", file, 0, rows[file], text))
    return found


@pytest.mark.parametrize("seeds", [FEW_RUNS_OF_SPARK, pytest.param(RUNS_OF_SPARK, marks=pytest.mark.long)])
def test_pieces_of_several_hosts_make_the_tables_of_a_whole(
    seeds: Sequence[int],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In `AlignedRun.take_new`, do not place again what waits."""
    for module, name, value in ((run, "LATE_US", 1_000_000), (keeping, "SLICE_EVENTS", 50), (tables, "MERGED", 3)):
        monkeypatch.setattr(module, name, value)
    went_back, go_back = list[bool](), AlignedRun.go_back

    def counted(each: AlignedRun, *read: StoredEvents) -> Parts | None:
        parts = go_back(each, *read)
        went_back.append(parts is not None)
        return parts

    monkeypatch.setattr(AlignedRun, "go_back", counted)
    out = require_same(spark, [pieces(seed) for seed in seeds], tmp_path, RESTART)
    assert any("its clocks are known better" in line for line in caplog.messages)
    assert any(went_back)
    assert {path.parent.name for path in (out / RUNS).glob("run_id=*/*")} >= {tables.part_of("run-0")}


def test_a_host_that_comes_later_is_not_late(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In `ContinuedRun.take_new`, note no clocks first: its events seem as late as the others have been up longer."""
    keeper, up_us, later_us = Keeper(), {"a": 30 * DAY_US, "b": DAY_US}, 0
    for number, host in enumerate("aab"):
        lines = []
        for row in range(20):
            later_us += 1_000_000
            event = {"kind": "produced", "host": host, "boot": host, "topic": "t", "partition": 0}
            event |= {"mono_us": up_us[host] + later_us, "ts_us": 400 * DAY_US + later_us}
            event |= {"first_offset": later_us, "last_offset": later_us}
            lines.append(("r", f"r/events/{host}.jsonl", 0, 20 * number + row, json.dumps(event)))
        watch.update(spark, parsed(spark, lines), tmp_path, number, keeper)
    found = keeper._runs["r"]
    assert isinstance(found, AlignedRun)
    assert found.patience_us == run.LATE_US
    assert caplog.messages == []


def test_marks_to_go_back_to_become_rarer_with_their_age() -> None:
    """In `AlignedRun.mark`, delete none, or each mark that is not the newest one."""
    found = AlignedRun("r", 5, run.ContinuedRun("r", 5))
    for number in range(1, 2_000):
        found.latest_us, found.settled_us = 10 * number + 10, 10 * number
        found.mark({})
        found.mark({})
    ages = [20_000 - mark.settled_us for mark in found._marks]
    assert len(ages) < 25
    assert ages[-1] == 10
    assert all(older <= 2 * younger + 20 for older, younger in pairwise(ages[1:]))
