"""`python -m tests.simulation`: runs seeds on all cores; prints a summary, or the shrunk story of a failure.

Example: `python -m tests.simulation --seconds 600 --from 100000`. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.simulation import transitions
from tests.simulation.plan import HOSTILE_WEIGHTS, SHARD_WEIGHTS, Scenario, make_plan
from tests.simulation.run import Failure, Result, run
from tests.simulation.shrink import shrink

STORY_LINES = 150
MAX_LINE = 400
PROGRESS_S = 1.0
CHUNK = 4
MAX_QUEUED = 2 * CHUNK * (os.cpu_count() or 1)  # seeds that processes have, or will have next
DEFAULT_SEEDS = 200


def perform(seed: int, hostile: Collection[str] = ()) -> tuple[Result, Failure | None]:
    """Run one seed, in a process of the pool."""
    with transitions.counted() as taken:
        result, failure = run(make_plan(seed, hostile))
    result.transitions += taken
    return result, failure


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    logging.disable(logging.WARNING)


def run_many(seeds: Iterable[int], seconds: float | None, hostile: Collection[str]) -> tuple[Result, Failure | None]:
    """Run seeds until one fails, all are done, or `seconds` are over."""
    total, began_s, told_s = Result(), time.monotonic(), 0.0
    room, is_over = threading.Semaphore(MAX_QUEUED), threading.Event()
    context = multiprocessing.get_context("fork")
    with context.Pool(initializer=_prepare) as pool:
        todo = _while(seeds, began_s, seconds, room, is_over)
        try:
            for result, failure in pool.imap_unordered(partial(perform, hostile=hostile), todo, chunksize=CHUNK):
                room.release()
                total.add(result)
                elapsed_s = time.monotonic() - began_s
                if failure is not None:
                    return total, failure
                if elapsed_s - told_s > PROGRESS_S and sys.stderr.isatty():
                    told_s = elapsed_s
                    rate = total.events["rebalance_planned"] / elapsed_s
                    print(f"\r{total.seeds} seeds, {rate:.0f} rebalances/s ", end="", file=sys.stderr, flush=True)
        finally:  # the end of the pool waits for its thread that takes seeds, and that for room
            is_over.set()
            room.release()
    return total, None


def _while(
    seeds: Iterable[int], began_s: float, seconds: float | None, room: threading.Semaphore, is_over: threading.Event
) -> Iterator[int]:
    """Yield seeds for a time, while there is room: a pool takes all that it can get, however long they last."""
    for seed in seeds:
        room.acquire()
        if is_over.is_set() or (seconds is not None and time.monotonic() - began_s > seconds):
            return
        yield seed


def report(total: Result, elapsed_s: float) -> Iterator[str]:
    """Yield the lines of a summary."""
    rebalances, virtual_s = total.events["rebalance_planned"], total.virtual_us / 1e6
    yield f"{total.seeds} seeds, {total.steps} steps, {virtual_s:.0f} s of virtual time in {elapsed_s:.1f} s"
    yield f"{rebalances} rebalances ({rebalances / max(elapsed_s, 0.001):.0f} per second), {total.records} records"
    yield "faults: " + ", ".join(f"{kind} {count}" for kind, count in total.faults.most_common())
    legal = transitions.legal()
    missing = [name for name in legal if not total.transitions[name]]
    yield f"transitions taken: {len(legal) - len(missing)} of {len(legal)}"
    if missing:
        yield "not taken: " + ", ".join(missing)


ROUTINE = re.compile(
    r"<- (Tick|Progress)|-> (EmitUntil|ReadProgress|RecordCommitted)|Check\(path='[^']*', version=-1\),\)\)\)$"
)


def tell(failure: Failure, lines: int) -> Iterator[str]:
    """Yield the last `lines` of a failure's story, its earlier faults, and the broken promise."""
    scenario = failure.plan.scenario
    about = "" if scenario is Scenario.CHAOS else f" ({scenario.value})"
    story = [line for line in failure.story if not ROUTINE.search(line)]
    hidden = max(0, len(story) - lines)
    if hidden:
        yield f"({hidden} earlier lines omitted, except for faults)"
    yield from (line for line in story[:hidden] if " FAULT " in line)
    yield from (line[:MAX_LINE] for line in story[hidden:])
    yield f"seed {failure.plan.seed}{about}, {len(failure.plan.faults)} faults, at {failure.at_us / 1e6:.6f} s:"
    yield failure.text


def _tell_one(seed: int, path: Path | None, hostile: Collection[str]) -> int:
    result, failure = run(make_plan(seed, hostile), tells=True)
    story = failure.story if failure is not None else result.story
    if path is not None:
        path.write_text("\n".join(story) + "\n")
    print("\n".join(tell(failure, STORY_LINES) if failure is not None else story[-STORY_LINES:]))
    return int(failure is not None)


def main(given: Sequence[str] | None = None) -> int:
    """Parse the command line and run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=int, help=f"number of seeds to run ({DEFAULT_SEEDS})")
    what.add_argument("--seconds", type=float, help="run seeds for this time")
    what.add_argument("--seed", type=int, help="run one seed and print its story")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--story", type=Path, help="with --seed: write the whole story into this file")
    parser.add_argument("--hostile", action="store_true", help="add hostile faults")
    parser.add_argument("--kind", action="append", help="add this kind of hostile fault only")
    arguments = parser.parse_args(given)
    kinds = HOSTILE_WEIGHTS | SHARD_WEIGHTS
    unknown = set(arguments.kind or ()) - kinds.keys()
    if unknown:
        parser.error(f"--kind {min(unknown)} is unknown; there are {', '.join(kinds)}")
    hostile = arguments.kind or (HOSTILE_WEIGHTS if arguments.hostile else ())
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error("--seeds has to be at least 1")
    logging.disable(logging.WARNING)
    if arguments.seed is not None:
        return _tell_one(arguments.seed, arguments.story, hostile)
    began_s = time.monotonic()
    endless = arguments.seconds is not None
    seeds = (
        itertools.count(arguments.first)
        if endless
        else range(arguments.first, arguments.first + (arguments.seeds or DEFAULT_SEEDS))
    )
    try:
        total, failure = run_many(seeds, arguments.seconds, hostile)
        print("\n".join(report(total, time.monotonic() - began_s)))
        if failure is not None:
            print(f"seed {failure.plan.seed} fails: {failure.text}\nshrinking …", flush=True)
            print("\n".join(tell(shrink(failure), STORY_LINES)))
            return 1
    except KeyboardInterrupt:
        print("Error: interrupted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
