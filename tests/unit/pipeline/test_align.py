"""Spark puts the events of several hosts on one clock, as the plain checker does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.unit.observe.test_several_hosts import SECOND, Fleet, drifting
from zkrebalancer.pipeline import align, ingest
from zkrebalancer.pipeline.facts.by_run import tables_of_runs


def write(folder: Path, fleet: Fleet) -> None:
    folder.mkdir()
    for host, events in fleet.lines.items():
        (folder / f"{host}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


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
    """In `on_one_clock`, return the events as they are; in `Judged.overlap`, do not look at the bounds."""
    write(tmp_path / "correct", Fleet(drifting()).moves(2))
    write(tmp_path / "one-clock", Fleet({host: drifting()["k"] for host in drifting()}).moves(1))
    wrong = Fleet(drifting()).moves(2)
    wrong.commands = 100
    wrong.command(SECOND, "start-fetcher", 192)
    write(tmp_path / "wrong", wrong.passes(400_000, 500_000))
    write(tmp_path / "unbounded", Fleet(drifting(), with_keys=False).moves(1))
    assert overlaps(spark, tmp_path) == [("unbounded", False), ("wrong", True)]
