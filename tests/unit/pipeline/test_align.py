"""Spark puts the events of several hosts on one clock, as the plain checker does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere

from tests.unit.observe.test_several_hosts import SECOND, Fleet, drifting
from zkrebalancer.observe import hosts
from zkrebalancer.observe.clocks import align as clock_alignment
from zkrebalancer.observe.hosts import ClockNames, Witness
from zkrebalancer.pipeline import align, ingest
from zkrebalancer.pipeline.facts.by_run import tables_of_runs

KEYS = ("host", "boot", "ts_us", "mono_us", "kind", "topic", "partition", "first_offset", "last_offset", "sent_us")


def write(folder: Path, fleet: Fleet) -> None:
    folder.mkdir()
    for host, events in fleet.lines.items():
        (folder / f"{host}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def neighbours(*, stops: bool) -> Fleet:
    """Return two members of one host, of whose clock nothing is known; the second one starts what the first one had."""
    fleet = Fleet(drifting(), with_keys=False)
    for number in range(8):
        fleet.add("k", "member_joined", member=f"m{number}", boot="k")
    where = {"topic": "t", "partitions": [0], "positions": [0], "boot": "b"}
    fleet.add(SECOND, "fetcher_started", member="b1", **where)
    if stops:
        fleet.add(SECOND, "fetcher_stopped", member="b1", reason="revoked", **where)
    return fleet.add(SECOND, "fetcher_started", member="b2", **where)


def overlaps(spark: SparkSession, folder: Path) -> list[tuple[str, bool]]:
    ingest.write_events(ingest.parse(ingest.read_lines(spark, str(folder))), str(folder / "stored"))

    def keep(_name: str, table: DataFrame) -> DataFrame:
        return table

    events = ingest.read_events(spark, str(folder / "stored"))
    events = align.on_one_clock(events, ingest.blocks(events), keep)
    with tables_of_runs(events).frames() as found:
        return sorted((row["run"], row["is_certain"]) for row in found("overlaps").collect())


@pytest.mark.filterwarnings("error:Cannot infer the eval type")
def test_overlaps_of_several_hosts_are_those_of_the_checker(spark: SparkSession, tmp_path: Path) -> None:
    """In `on_one_clock`, return the events as they are; in `Judged.overlap`, do not look at bounds, or at clocks."""
    write(tmp_path / "correct", Fleet(drifting()).moves(2))
    write(tmp_path / "one-clock", Fleet({host: drifting()["k"] for host in drifting()}).moves(1))
    wrong = Fleet(drifting()).moves(2)
    wrong.commands = 100
    wrong.command(SECOND, "start-fetcher", 192)
    write(tmp_path / "wrong", wrong.passes(400_000, 500_000))
    write(tmp_path / "unbounded", Fleet(drifting(), with_keys=False).moves(1))
    write(tmp_path / "neighbours", neighbours(stops=True))
    write(tmp_path / "neighbours-at-once", neighbours(stops=False))
    assert overlaps(spark, tmp_path) == [("neighbours-at-once", True), ("unbounded", False), ("wrong", True)]


def test_events_are_placed_one_by_one_if_only_walls_tell_boots_apart(spark: SparkSession) -> None:
    """In `_place`, take the clock of the first event of a host for all of its events."""
    boots = [(mono_us, 10**15 + mono_us) for mono_us in range(5)]
    boots += [(mono_us, 10**15 + 10**10 + mono_us) for mono_us in range(5)]
    events: list[dict[str, Any]] = [
        {"kind": "step", "host": "h", "mono_us": mono_us, "ts_us": ts_us} for mono_us, ts_us in boots
    ]
    names, rows = ClockNames(), [("r", event["host"], None, event["ts_us"], event["mono_us"]) for event in events]
    for event in events:
        names.note(event)
    witness = Witness(names)
    for event in events:
        witness.add(event)
    alignment = clock_alignment(witness.evidence())
    columns = "run string, host string, boot string, ts_us long, mono_us long"
    moved = align.aligned(spark.createDataFrame(rows, columns), {"r": (names, alignment)}).orderBy("ts_us")
    expected = [alignment.place(names.of(event), event["mono_us"]).at_us for event in events]
    assert [row["mono_us"] for row in moved.collect()] == expected
    assert len(set(expected)) == len(expected)


def test_of_records_only_those_are_looked_at_that_are_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `followed`, return all; or count each delivery of a record."""
    monkeypatch.setattr(hosts, "MAX_SAMPLES", 5)
    write(tmp_path / "run", Fleet(drifting()).moves(4))
    lines = ingest.parse(ingest.read_lines(spark, str(tmp_path / "run")))
    records = lines.where(F.col("kind").isin(*align.RECORDS)).select(*KEYS)
    records = records.unionByName(records.where("kind = 'delivered'"))  # to two groups
    rows, names = [row.asDict() for row in records.collect()], ClockNames()
    kept = [row.asDict() for row in align.followed(records, len(rows)).collect()]
    for event in rows:
        names.note(event)
    found = list[dict[tuple[str, str], set[tuple[int, int]]]]()
    for events in (rows, kept):
        witness = Witness(names)
        for event in events:
            witness.add(event, 0)
        found.append({clocks: set(times) for clocks, times in witness.evidence().pairs.items()})
    assert found[0] == found[1] != {}
    assert len(kept) <= 3 * hosts.MAX_SAMPLES < len(rows)
