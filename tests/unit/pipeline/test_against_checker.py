"""Spark's answers are those of the plain checker, on random histories with every kind of violation in them."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.unit.observe.history import History
from tests.unit.pipeline.frames import events_of, rows, tables_of

MEMBERS = ("a", "b", "c")
SUMS = ("produced", "delivered", "lost", "duplicated", "duplicated_outside_crash", "out_of_order", "overlaps")


def chaos(chance: random.Random) -> History:
    """Return events in any order: who starts, delivers, stops and dies follows no rule at all."""
    history = History()
    for _ in range(chance.randrange(2, 60)):
        member, partition = chance.choice(MEMBERS), chance.randrange(2)
        first = chance.randrange(0, 20)
        last = first + chance.choice((0, 0, 1, 3, 9))
        what = chance.randrange(14)
        if what < 2:
            history.produced(first, last, partition)
        elif what < 5:
            history.started(member, first, partition=partition)
        elif what < 8:
            history.delivered(member, first, last, partition)
        elif what < 9:
            history.committed(member, first, partition)
        elif what < 11:
            history.stopped(member, first, chance.choice(("revoked", "lost", "closed")), partition)
        elif what < 12:
            history.ended(member)
        elif what < 13:
            history.left(member, chance.choice(("closed", "expired", "evicted")))
        elif chance.random() < 0.2:
            history.add("topic_deleted", topic="t", group=None)
    return history


CHAOS = {f"run-{seed:03}": chaos(random.Random(seed)) for seed in range(150)}  # Spark's planning takes time, not they


def planned() -> History:
    """Return plans that were finished, superseded, and left under way; one of them ends a gap."""
    history = History().requested("c1", "member-joined").planned(1, "c1").started("a", 0).finished(1, "c1")
    history.planned(2, "c2").stopped("a", 0).requested("c3", "member-left").planned(3, "c3")
    history.add("fetcher_started", member="b", topic="t", partitions=[0], positions=[0], generation=3, cause_id="c3")
    return history.planned(4, "c4")


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> dict[str, DataFrame]:
    """Return the tables of all histories, computed in one go."""
    runs = {run: history.events for run, history in CHAOS.items()}
    return tables_of(events_of(spark, {**runs, "planned": planned().events}))


def test_records_are_counted_as_the_checker_does(tables: dict[str, DataFrame]) -> None:
    verdicts = {run: history.verdict() for run, history in CHAOS.items()}
    found = {run: figures for run, *figures in rows(tables["runs"], "run", *SUMS) if run in CHAOS}
    assert found == {run: [getattr(verdict, name) for name in SUMS] for run, verdict in verdicts.items()}
    for name in SUMS:  # otherwise it would say nothing
        assert sum(getattr(verdict, name) for verdict in verdicts.values()) > 0, name


def test_rebalances_are_those_of_the_checker(tables: dict[str, DataFrame]) -> None:
    columns = ("generation", "cause", "outcome", "settled_ms", "pause_ms_max", "moved", "members", "mode")
    expected = [tuple(getattr(each, name) for name in columns) for each in planned().verdict().rebalances]
    found = rows(tables["rebalances"].where("run = 'planned'"), *columns)
    assert found == sorted(expected, key=repr)
    assert {row[2] for row in found} == {"finished", "superseded", "under way"}
