"""What a task makes of deliveries equals what a look at each of them gives; Spark is not needed here."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from zkrebalancer.pipeline.facts import reduced as facts
from zkrebalancer.pipeline.facts.delays import BIN_WIDTH, CURVE_US, Delays
from zkrebalancer.pipeline.facts.reduced import ARRIVAL, BIN, SECOND, reduce

BEGAN_US = -3


def deliveries(count: int) -> list[dict[str, Any]]:
    chance = random.Random(7)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        delays_us = [chance.choice([0, 1, 7, 10**9, chance.randrange(1, 30_000)]) for _ in range(chance.randrange(4))]
        row: dict[str, Any] = {
            "run": f"r{chance.randrange(2)}",
            "group": "g",
            "topic": chance.choice("tu"),
            "row": number,
        }
        row |= {"partition": chance.randrange(3), "member": chance.choice("mn"), "began_us": BEGAN_US}
        row |= {"mono_us": chance.randrange(3 * CURVE_US), "file": chance.choice("fe"), "block": 0}
        row |= {"delays_us": delays_us or None, "step": chance.choice([None, 1, 2])}
        rows.append(row)
    return rows


def reduced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    schema = pa.Table.from_pylist(rows).schema
    batches = [
        pa.RecordBatch.from_pylist(part, schema=schema) for part in (rows[: len(rows) // 3], [], rows[len(rows) // 3 :])
    ]
    return [row for found in reduce(iter(batches)) for row in found.to_pylist()]


@pytest.mark.parametrize(("at_once", "kept"), [(100, 0), (1_000_000, 1_000_000)])
def test_delays_are_counted_in_bins_and_seconds(at_once: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `reduce`, keep the sums that were given away: the delays of a large run would count several times."""
    monkeypatch.setattr(facts, "MAX_DELAYS", at_once)
    monkeypatch.setattr(facts, "MAX_KEPT", kept)
    rows = deliveries(500)
    found, expected = Counter[Any](), Counter[Any]()
    for row in rows:
        for delay_us in row["delays_us"] or ():
            series = tuple(row[name] for name in ("run", "group", "topic", "step"))
            number = math.floor(math.log(max(delay_us, 1)) / math.log(BIN_WIDTH))
            second = (row["mono_us"] - BEGAN_US) // CURVE_US
            expected[BIN, *series, number] += 1
            expected[SECOND, row["run"], row["group"], second] += delay_us
    for row in reduced(rows):
        if row["kind"] == BIN:
            found[BIN, *(row[name] for name in ("run", "group", "topic", "number", "bin"))] += row["count"]
        elif row["kind"] == SECOND:
            assert row["mono_us"] == BEGAN_US + row["number"] * CURVE_US
            found[SECOND, *(row[name] for name in ("run", "group", "number"))] += row["total_us"]
    assert found == expected


def test_the_first_delivery_to_each_member_in_each_step_is_kept() -> None:
    rows = deliveries(500)
    names = ("run", "group", "topic", "partition", "member")
    first: dict[Any, Any] = {}
    for row in rows:
        if row["step"] is not None:
            at = tuple(row[name] for name in ("mono_us", "file", "block", "row"))
            key = (*(row[name] for name in names), row["step"])
            first[key] = min(at, first.get(key, at))
    found = [row for row in reduced(rows) if row["kind"] == ARRIVAL]
    assert sorted((*key[:-1], *at) for key, at in first.items()) == sorted(
        tuple(row[name] for name in (*names, "mono_us", "file", "block", "row")) for row in found
    )


def test_percentiles_are_those_of_the_bins() -> None:
    delays = Delays()
    for topic, number, count, max_us in (("t", 100, 98, 3), ("u", 100, 1, 4), ("t", 300, 1, 20)):
        delays.add_bin({"group": "g", "topic": topic, "number": None, "bin": number, "count": count, "max_us": max_us})
    middle_ms = BIN_WIDTH**100.5 / 1_000
    assert list(delays.figures()) == [("g", None, 100, middle_ms, middle_ms, 0.02)]


def test_a_second_is_complete_when_the_next_one_begins() -> None:
    delays = Delays()
    for second, count, total_us, max_us in ((0, 1, 5_000, 5_000), (0, 3, 3_000, 1_000), (2, 1, 7_000, 7_000)):
        sums = {"count": count, "total_us": total_us, "max_us": max_us}
        delays.add_second({"group": "g", "number": second, **sums})
    assert delays.curve == [("g", 0, 4, 2.0, 5.0)]
    delays.finish()
    assert delays.curve[1:] == [("g", 2, 1, 7.0, 7.0)]
