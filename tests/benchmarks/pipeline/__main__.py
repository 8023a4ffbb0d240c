"""Time and memory of `pipeline run` for millions of events, beside plain Python that computes the same facts.

`python -m tests.benchmarks.pipeline 1 5 20` (millions; 20 take 5 GB of disk until they are measured). Spark gets two
cores and a heap that keeps its processes below 4 GB in total; plain Python is one process. The results are compared.
Memory is sampled over all processes of a command. Without a class archive of Spark's, a short run records one first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.benchmarks.pipeline import measuring, timeline
from tests.benchmarks.pipeline.plain import STEP, VERDICT
from tests.benchmarks.pipeline.world import World
from zkrebalancer.localcluster.java import find_java
from zkrebalancer.pipeline.spark_classes import archives_of

HEAP = "2600m"
TABLE = """| events | on disk | Spark | peak memory | peer | peak memory | ratio | answers |
|---|---|---|---|---|---|---|---|"""


def told(document: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return what the command printed and the tables' content in the form of `plain.facts`."""

    def table(name: str, *columns: str) -> list[list[Any]]:
        return [list(row.values()) for row in pq.read_table(out / name, columns=list(columns)).to_pylist()]

    bins: dict[int, int] = {}
    for number, records in table("delays", "bin", "records"):
        bins[number] = bins.get(number, 0) + records
    steps = sorted(table("steps", "step", *STEP))
    curve = sorted(table("delay_curve", "second", "records", "mean_ms", "max_ms"))
    (run,) = document["runs"]
    return {
        "records": {name: run[name] for name in VERDICT},
        "steps": [[number, *(round(value, 1) for value in figures)] for number, *figures in steps],
        "delays": [list(each) for each in sorted(bins.items())],
        "curve": [[at, count, round(mean * count * 1_000), round(most * 1_000)] for at, count, mean, most in curve],
        "cpu_ms": round(sum(cpu_ms for (cpu_ms,) in table("costs", "cpu_ms")), 3),
    }


def written(millions: float, folder: Path) -> Path:
    """Write that many events into a new folder."""
    folder.mkdir()
    world = World(folder)
    world.run(int(millions * 1e6))
    print(f"{world.written:,} events; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return folder


def command(folder: Path, out: Path) -> list[str]:
    """Return the command that is measured."""
    return [
        *(sys.executable, "-m", "zkrebalancer.cli.main", "pipeline", "run", "--events", str(folder)),
        *("--out", str(out), "--master", "local[2]", "--memory", HEAP, "--json"),
    ]


def record_classes() -> None:
    """Run the command on few events if it would record a class archive, which takes time."""
    archives = archives_of(find_java(), os.environ)
    if archives is not None and not archives.folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="zkrebalancer-bench-") as scratch:
            measuring.measured(command(written(0.001, Path(scratch, "events")), Path(scratch, "out")))


def followed(millions: float) -> timeline.Timeline:
    """Run the command on that many events; return where its time went."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-bench-") as scratch:
        folder, log = written(millions, Path(scratch, "events")), Path(scratch, "log")
        log.mkdir()
        measuring.measured([*command(folder, Path(scratch, "out")), *timeline.settings(log)])
        (file,) = (path for path in log.iterdir() if not path.name.startswith("."))
        with file.open() as lines:
            return timeline.read(lines)


def compare(millions: float) -> str:
    """Measure both sides on that many events, compare their results, and return a row of TABLE."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-bench-") as scratch:
        folder, out = written(millions, Path(scratch, "events")), Path(scratch, "out")
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        spark_s, spark_mib, document = measuring.measured(command(folder, out))
        plain_s, plain_mib, said = measuring.measured(
            [sys.executable, "-m", "tests.benchmarks.pipeline.plain", str(folder)]
        )
        found = told(document, out)
        different = [name for name in said if found[name] != said[name]]
        size = f"{size_mb / 1e3:.2f} GB" if size_mb >= 1e3 else f"{size_mb:.0f} MB"
        sides = (f"{spark_s:.0f} s | {spark_mib:,.0f} MiB", f"{plain_s:.0f} s | {plain_mib:,.0f} MiB")
        answers = f"DIFFER: {different}" if different else "equal"
        return f"| {millions:g} million | {size} | {' | '.join(sides)} | {plain_s / spark_s:.2f} | {answers} |"


def main() -> None:
    """Measure the sizes given as arguments; print the table of `docs/benchmarks.md`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", nargs="*", type=float, default=[1, 5, 20], help="of events")
    parser.add_argument("--timeline", action="store_true", help="instead, show where Spark's time goes")
    arguments = parser.parse_args()
    record_classes()
    if arguments.timeline:
        for millions in arguments.millions:
            print(followed(millions), flush=True)
        return
    print(TABLE)
    for millions in arguments.millions:
        print(compare(millions), flush=True)


if __name__ == "__main__":
    main()
