"""`python -m tests.mutations`: inserts each deliberate bug into the code; the simulation has to find it.

    [NAME …]        only bugs whose name contains one of these
    --list          print the table of bugs, run nothing
    --seeds N       try N seeds for each, instead of its stated number
    --json          print one JSON document

A whole run takes an hour or more; each bug is told on the standard error when its hunt ends, and Ctrl-C prints the
table of those. Example: `python -m tests.mutations lease --seeds 200`. Exit code 1 if a bug was not found within its
seeds, or if removing a redundant rule broke something.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.mutations.bugs import MUTATIONS
from tests.mutations.hunting import Hunt, hunt
from tests.mutations.mutation import Mutation


def _hunt(task: tuple[int, int | None]) -> Hunt:
    return hunt(*task)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    logging.disable(logging.WARNING)


def _row(mutation: Mutation) -> tuple[str, str, str]:
    stated = f"redundant: {mutation.redundant}" if mutation.redundant else f"within {mutation.seeds} seeds"
    return str(mutation.rule or ""), mutation.name, stated


def _document(done: Hunt) -> dict[str, object]:
    mutation = MUTATIONS[done.number]
    return {
        "name": mutation.name,
        "rule": mutation.rule,
        "seeds": mutation.seeds,
        "redundant": mutation.redundant or None,
        "found_by_seed": done.seed,
        "invariant": done.invariant or None,
        "ok": done.is_as_stated,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error("--seeds has to be at least 1")
    chosen = [n for n, m in enumerate(MUTATIONS) if not options.names or any(name in m.name for name in options.names)]
    if not chosen:
        parser.error(f"no mutation is named like {' or '.join(options.names)}; --list prints all")
    if options.list:
        table = Table("rule", "bug", "stated")
        for number in chosen:
            table.add_row(*_row(MUTATIONS[number]))
        Console().print(table)
        return 0
    hunts: list[Hunt] = []
    try:
        for done in _hunt_all(chosen, options.seeds):
            hunts.append(done)
            print(_told(done), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"Error: interrupted; {len(hunts)} of {len(chosen)} bugs were hunted", file=sys.stderr)
    hunts.sort(key=lambda done: done.number)
    _print(hunts, as_json=options.json)
    wrong = [MUTATIONS[done.number].name for done in hunts if not done.is_as_stated]
    for name in wrong:
        print(f"Error: not as stated: {name}", file=sys.stderr)
    return 1 if wrong or len(hunts) < len(chosen) else 0


def _print(hunts: Sequence[Hunt], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"mutations": [_document(done) for done in hunts]}))
        return
    table = Table("rule", "bug", "stated", "found by seed", "invariant")
    for done in hunts:
        style = None if done.is_as_stated else "bold red"
        table.add_row(*_row(MUTATIONS[done.number]), _seed(done), done.invariant, style=style)
    Console().print(table)


def _seed(done: Hunt) -> str:
    return "none" if done.seed is None else str(done.seed)


def _told(done: Hunt) -> str:
    verdict = "as stated" if done.is_as_stated else "NOT AS STATED"
    return f"{MUTATIONS[done.number].name}: found by seed: {_seed(done)} ({verdict})"


def _hunt_all(chosen: list[int], seeds: int | None) -> Iterator[Hunt]:
    context = multiprocessing.get_context("fork")  # the list holds functions, which cannot be pickled
    with context.Pool(initializer=_prepare) as pool:
        done = pool.imap_unordered(_hunt, [(number, seeds) for number in chosen])
        yield from track(done, "mutations", total=len(chosen), console=Console(stderr=True), transient=True)


if __name__ == "__main__":
    sys.exit(main())
