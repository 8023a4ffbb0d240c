"""One run of the batch pipeline for all tests, over random histories and experiment runs to compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.support.run_folders import FakeRun
from tests.unit.observe.history import History
from tests.unit.pipeline.histories import chaos, planned, write_run
from zkrebalancer.cli.main import zkrebalancer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.unit.pipeline.frames import Table
    from zkrebalancer.pipeline.report.compare import Comparison

SEEDS = range(40)
PLANNED = "planned"
INVALID = 'no event\n{"kind": "committed", "mono_us": 1}\n'  # lines of the run PLANNED
PAIRS = range(1, 8)  # the fewest with which two rivals can be told apart
FEW = (1, 2)  # too few to be tested, so they change nothing in the tests of the others
COMPARED = (
    *(FakeRun("central-incremental", 2_000 + 10 * seed, seed) for seed in PAIRS),
    *(FakeRun("kip848", 500 + 10 * seed, seed) for seed in PAIRS),
    *(FakeRun("classic-range", 6_000 + 10 * seed, seed) for seed in PAIRS),
    FakeRun("classic-range", 1, 8, trusted=False),
    FakeRun("kip848", 700, 1, broker="kafka-4"),
    FakeRun("kip848", 800, 2, broker="kafka-4", unsettled_ms=150_000),
    *(FakeRun("central-incremental", 400 + 10 * seed, seed, broker="kafka-4", settings="tuned") for seed in FEW),
    *(FakeRun("kip848", 300 + 10 * seed, seed, broker="kafka-4", settings="heartbeat-50") for seed in FEW),
    *(FakeRun("kip848", 600 + 10 * seed, seed, broker="kafka-4", settings="heartbeat-200") for seed in FEW),
)

Command = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Made:
    """What one `experiment compare` made of COMPARED and of the histories beside them.

    `events` is the folder of the histories' event files, `runs` that of COMPARED. `facts` has the tables of both as
    files, `tables` only the histories' rows.
    """

    histories: dict[str, History]
    events: Path
    runs: Path
    out: Path
    facts: Path
    tables: dict[str, Table]
    comparison: Comparison
    document: dict[str, Any]


@pytest.fixture(scope="session")
def command(spark: SparkSession) -> Iterator[Command]:
    """Run a command of `zkrebalancer` to its end, on the session that all tests share; return its document."""
    from zkrebalancer.pipeline import session  # noqa: PLC0415  # only those that ask for it pay

    @contextmanager
    def shared(
        _master: str,
        _memory: str | None,
        _settings: Mapping[str, str] | None = None,
        *,
        meanwhile: AbstractContextManager[object] | None = None,
        **_: bool,
    ) -> Iterator[SparkSession]:
        with meanwhile or nullcontext():
            yield spark

    def run(*arguments: object) -> dict[str, Any]:
        result = CliRunner().invoke(zkrebalancer, [*map(str, arguments), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "spark_session", shared)
        yield run


@pytest.fixture(scope="session")
def made(spark: SparkSession, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Run the batch pipeline once: a run costs seconds of processor time, however few its events are."""
    from tests.unit.pipeline.frames import stored  # noqa: PLC0415
    from zkrebalancer.pipeline.align import ALIGNED  # noqa: PLC0415
    from zkrebalancer.pipeline.report import compare as report  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("pipeline")
    events, runs, out = folder / "in" / "histories", folder / "in" / "runs", folder / "out"
    histories = {f"run-{seed:03}": chaos(seed) for seed in SEEDS} | {PLANNED: planned()}
    for run, history in histories.items():
        write_run(events / run / "events", history)
    with (events / PLANNED / "events" / "0.jsonl").open("a") as file:
        file.write(INVALID)
    for each in COMPARED:
        each.write(runs)
    out.mkdir()
    (out / report.FACTS / ALIGNED).mkdir(parents=True)  # as another input with several clocks left it
    compare, found = report.compare, []

    def keep(*arguments: Any, with_untrusted: bool) -> Comparison:
        found.append(compare(*arguments, with_untrusted=with_untrusted))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "compare", keep)
        document = command("experiment", "compare", folder / "in", "--out", out)
    facts = {table.name: stored(table) for table in (out / report.FACTS).iterdir()}
    tables = {name: _below(f"{events}/", table) for name, table in facts.items()}
    return Made(histories, events, runs, out, out / report.FACTS, tables, found[0], document)


def _below(folder: str, table: Table) -> Table:
    """Keep the runs below a folder, and name them and their files as if it had been read alone."""
    cut = {name for name in ("run", "file") if table and name in table[0]}
    return [
        {name: value.removeprefix(folder) if name in cut else value for name, value in row.items()}
        for row in table
        if row["run"].startswith(folder)
    ]
