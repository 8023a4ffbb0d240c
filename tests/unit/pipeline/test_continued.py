"""Tables that are continued piece by piece are those of a whole rebuild, row by row."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.unit.observe.history import History
from tests.unit.pipeline.frames import stored
from tests.unit.pipeline.histories import PROCESSES, chaos, planned, unplaced
from zkrebalancer.pipeline import batch, ingest, watch
from zkrebalancer.pipeline.continued import keeper as keeping
from zkrebalancer.pipeline.continued import run, tables
from zkrebalancer.pipeline.continued.keeper import Keeper
from zkrebalancer.pipeline.facts.deliveries import BUCKET_US
from zkrebalancer.pipeline.facts.runs import RUNS
from zkrebalancer.pipeline.store import Folder

SEEDS = range(16)
FEW_SEEDS = (0, 1, 3, 4, 6, 10)  # three of them have events that are late, two several clocks
SEVERAL_CLOCKS = range(2)  # seeds
PLANS = -1
PIECES = 4
RESTART = 1  # before this piece
APART = 3_000  # times as far apart as the events of a history are
TORN = 7  # one in so many lines is followed by one that is not JSON
COLUMNS = "run string, file string, block long, row long, text string"
Line = tuple[str, str, int, int, str]
Content = dict[str, list[str]]


def history_of(seed: int) -> History:
    """Return a history; that of PLANS has plans, those below begin at positions that are known after their starts."""
    history = chaos(seed) if seed >= 0 else planned() if seed == PLANS else unplaced(-seed)
    for number, event in enumerate(history.events):
        event["mono_us"] *= APART
        if seed in SEVERAL_CLOCKS:
            event |= {"host": f"h{number % PROCESSES}", "ts_us": event["mono_us"]}
    return history


def pieces(seed: int) -> list[list[Line]]:
    """Return the lines of a history in pieces as they arrive; of even seeds, some lines come late."""
    chance, history = random.Random(seed), history_of(seed)
    found: list[list[Line]] = [[] for _ in range(PIECES)]
    rows: dict[str, int] = defaultdict(int)
    reached: dict[str, int] = defaultdict(int)  # by file: lines of a file come in order
    for number, event in enumerate(history.events):
        file = f"run-{seed}/events/{number % PROCESSES}.jsonl"
        delay = 0 if seed % 2 else chance.choice((0, 0, 0, 1, 3))
        piece = min(PIECES - 1, number * PIECES // len(history.events) + delay)
        reached[file] = max(reached[file], piece)
        for text in [json.dumps(event)] + ["torn"] * (chance.randrange(TORN) == 0):
            rows[file] += 1
            found[reached[file]].append((f"run-{seed}", file, 0, rows[file], text))
    return found


def parsed(spark: SparkSession, lines: list[Line]) -> DataFrame:
    return ingest.parse(spark.createDataFrame(lines, COLUMNS))


def whole(spark: SparkSession, lines: list[Line], out: Path) -> Content:
    """Return the tables that the batch pipeline makes."""
    ingest.write_events(parsed(spark, lines), str(out / "events"))
    store = Folder(spark, out)
    batch.tables(ingest.read_events(spark, str(out / "events")), ingest.stored_kinds(out / "events"), store)
    return {name: content(out / name) for name in store.written}


def content(table: Path) -> list[str]:
    rows = ({name: value for name, value in row.items() if name != "run_id"} for row in stored(table))
    return sorted(repr(sorted(row.items())) for row in rows)


def require_same(spark: SparkSession, arriving: list[list[list[Line]]], folder: Path, restart: int) -> Path:
    """Return the tables of runs that arrive in pieces, which have to be those of a whole look.

    A new keeper goes on at the piece `restart`.
    """
    expected = whole(spark, [line for of_run in arriving for piece in of_run for line in piece], folder / "whole")
    keeper, out = Keeper(), folder / "out"
    for number, of_runs in enumerate(zip(*arriving, strict=True)):
        if number == restart:
            keeper = Keeper()
        watch.update(spark, parsed(spark, [line for piece in of_runs for line in piece]), out, number, keeper)
        require_conserved(keeper)
    found = {name: content(out / name) for name in expected}
    assert {name for name in expected if found[name] != expected[name]} == set()
    return out


def require_conserved(keeper: Keeper) -> None:
    """Require that what all runs use together is the sum of what each of them uses."""
    runs = keeper._runs
    assert keeper._sizes == {name: (one.waiting, one.remembered) for name, one in runs.items()}
    assert keeper._waiting == sum(one.waiting for one in runs.values())
    assert keeper._remembered == sum(one.remembered for one in runs.values())


@pytest.mark.parametrize("seeds", [FEW_SEEDS, pytest.param(SEEDS, marks=pytest.mark.long)])
def test_pieces_make_the_tables_of_a_whole(
    seeds: Sequence[int],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In `ContinuedRun.see`, raise nothing; in `Records._deliver`, forget `repeat`."""
    for module, name, value in ((run, "LATE_US", 1_000_000), (keeping, "SLICE_EVENTS", 5), (tables, "MERGED", 2)):
        monkeypatch.setattr(module, name, value)
    out = require_same(spark, [pieces(seed) for seed in (*range(-9, 0, 2), *seeds)], tmp_path, RESTART)
    late = sum("so its tables are made again" in line for line in caplog.messages)
    assert 2 < late < len(seeds)  # otherwise the comparison would prove nothing
    settled = {part for part in _parts(out, "stretches") if "/" in part and not part.endswith("/rest")}
    assert any("-" in part for part in settled)  # some are merged
    assert {part for part in _parts(out, RUNS) if "/" not in part} == {tables.NO_RUN}  # all are continued


def _parts(out: Path, table: str) -> set[str]:
    folder = out / table
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink()}


def produced(name: str, began_us: int, first: int, count: int) -> list[Line]:
    """Return lines of a run, one for each microsecond."""
    lines: list[Line] = []
    for offset in range(first, first + count):
        event = {"kind": "produced", "mono_us": began_us + offset, "topic": "t", "partition": 0}
        event |= {"first_offset": offset, "last_offset": offset}
        lines.append((name, f"{name}/a.jsonl", 0, offset + 1, json.dumps(event)))
    return lines


def test_what_is_settled_is_not_read_again(spark: SparkSession, tmp_path: Path) -> None:
    """In `Keeper._continued`, forget the run: a refresh costs as much as the run is long."""
    keeper, names = Keeper(), tmp_path / "store" / "events"
    for number in range(5):
        lines = produced("r", 20 * BUCKET_US * (number + 1), 10 * number, 10)
        watch.update(spark, parsed(spark, lines), tmp_path, number, keeper)
        for folder in names.iterdir():  # as if disks forgot
            shutil.rmtree(folder)
            folder.mkdir()
    (row,) = stored(tmp_path / RUNS)
    assert (row["events"], row["began_us"]) == (50, 20 * BUCKET_US)


def test_runs_for_which_there_is_no_room_are_not_read_again_and_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Keeper._make_room`, forget the run that got events least recently: all are read from their beginnings.

    In `Keeper._take`, let a run that is forgotten count on.
    """
    monkeypatch.setattr(keeping, "MAX_WAITING", 25)
    keeper, read, read_one = Keeper(), list[str](), keeping._read

    def noted(found: run.ContinuedRun, name: str, *others: Any) -> None:
        read.append(name)
        read_one(found, name, *others)

    def refresh(number: int, first: int, count: int, *names: str) -> None:
        lines = [line for name in names for line in produced(name, 20 * BUCKET_US, first, count)]
        watch.update(spark, parsed(spark, lines), tmp_path, number, keeper)
        require_conserved(keeper)

    monkeypatch.setattr(keeping, "_read", noted)
    refresh(0, 0, 10, "a", "b", "c")
    assert not caplog.messages  # a run may have ended
    refresh(1, 10, 1, "a", "b", "c")
    (left,) = read
    assert keeper._whole == {left}
    assert caplog.messages == [
        f"run {left}: no room for it beside others with new events, so it is made whole each time"
    ]
    refresh(2, 11, 1, *({"a", "b", "c"} - {left}))
    assert read == [left]
    refresh(3, 0, 10, "d")  # the others have no new events
    assert len(keeper._runs) == 2
    assert keeper._whole == {left}
    assert read == [left]


def test_a_run_waits_for_late_events() -> None:
    found = run.ContinuedRun("r", 5)
    found.latest_us, found.settled_us = 10 * BUCKET_US, 9 * BUCKET_US
    assert found.limit_us() is None
    found.latest_us = 10 * BUCKET_US + 5
    assert found.limit_us() == 10 * BUCKET_US
