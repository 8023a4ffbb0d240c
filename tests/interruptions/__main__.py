"""`make interruptions`: interrupts every plan over small groups at every step, and prints what was tried.

`python -m tests.interruptions [--members 3] [--partitions 4] [--processes N] [--json]`. Exits with 1, the plan and the
step if an invariant was broken or a group did not reach its goal.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time

from rich.console import Console
from rich.progress import track

from tests.interruptions.campaign import BrokenPromiseError, Tally, interrupt_everywhere, plans
from tests.interruptions.shapes import shapes

CHUNK = 4  # plans per work unit of a process


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=3, choices=range(1, 4), help="maximum (3)")
    parser.add_argument("--partitions", type=int, default=4, choices=range(1, 5), help="maximum (4)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    todo = list(plans(shapes(arguments.members, arguments.partitions)))
    tally, began_s = Tally(), time.monotonic()
    console = Console(stderr=True)
    with multiprocessing.Pool(max(1, arguments.processes)) as pool:
        done = pool.imap_unordered(interrupt_everywhere, todo, CHUNK)
        try:
            for one in track(done, "plans", total=len(todo), console=console):
                tally.add(one)
        except BrokenPromiseError as error:
            console.print(f"Error: an invariant was broken\n  {error}", markup=False, highlight=False)
            return 1
        except KeyboardInterrupt:
            console.print("Error: interrupted; results so far:", markup=False)
            _print(tally, time.monotonic() - began_s, as_json=arguments.json)
            return 1
    _print(tally, time.monotonic() - began_s, as_json=arguments.json)
    return 0


def _print(tally: Tally, elapsed_s: float, *, as_json: bool) -> None:
    document = {
        "plans": tally.plans,
        "steps": tally.steps,
        "interrupted_runs": dict(tally.runs),
        "interrupted_runs_in_all": tally.runs.total(),
        "distinct_stored_states": len(tally.states),
        "elapsed_s": round(elapsed_s, 1),
    }
    if as_json:
        print(json.dumps(document))
        return
    print(f"plans: {tally.plans}, steps: {tally.steps}, distinct stored states at the steps: {len(tally.states)}")
    for name, count in tally.runs.items():
        print(f"  {name.lower().replace('_', ' '):14} {count:9,}")
    print(f"interrupted runs: {tally.runs.total():,}; every one reached its goal; {elapsed_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
