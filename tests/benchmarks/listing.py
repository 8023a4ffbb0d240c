"""`python -m tests.benchmarks.listing`: what a micro-batch without new lines costs a watcher of many event files.

Measured is Python's part of it, in processor time: the offsets as Spark keeps them are read, all files looked at, and
the offsets, which are the same, written. The median of several rounds, and the files' share of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from zkrebalancer.pipeline.tail import MAX_BATCH_BYTES, EventFileReader, event_sizes

SHAPES = ((1_000, 100), (20_000, 100), (20_000, 1))  # files, and how many of them a folder has
QUICK = ((20, 2),)


def milliseconds(action: Callable[[], object], rounds: int) -> float:
    """Return the median processor time of an action."""
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        action()
        taken.append((time.process_time() - began) * 1_000)
    return statistics.median(taken)


def fill(root: Path, files: int, per_folder: int) -> None:
    """Write event files of one line each."""
    for number in range(files):
        folder = root / f"run-{number // per_folder:05}" / "events"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"agent-{number % per_folder:05}.jsonl").write_text("{}\n")


def main() -> None:
    """Print a row for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="Only a few files.")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    print("| files | folders | micro-batch | of which looking at files |\n|---|---|---|---|")
    for files, per_folder in QUICK if arguments.quick else SHAPES:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            fill(root, files, per_folder)
            reader = EventFileReader(root)
            known = json.dumps(reader.latestOffset({}, ReadAllAvailable()))

            def look(reader: EventFileReader = reader, known: str = known) -> str:
                return json.dumps(reader.latestOffset(json.loads(known), ReadMaxBytes(MAX_BATCH_BYTES)))

            whole = milliseconds(look, rounds)
            listed = milliseconds(partial(event_sizes, root), rounds)
            print(f"| {files:,} | {files // per_folder:,} | {whole:.0f} ms | {listed:.0f} ms |")


if __name__ == "__main__":
    main()
