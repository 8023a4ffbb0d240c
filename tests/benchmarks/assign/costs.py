"""What a decision costs beside the decision itself: memory, and the way from JSON to arrays and back to commands."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import fields, replace

import numpy as np

from tests.benchmarks.assign.points import ALIKE, JOINER, Point, settled
from tests.benchmarks.assign.timing import REPETITIONS
from zkrebalancer.assignment.columns import Columns, Rows, to_columns, updated
from zkrebalancer.assignment.model import Assignment, Problem
from zkrebalancer.assignment.placement import to_assignment, to_threads
from zkrebalancer.assignment.sticky import sticky
from zkrebalancer.assignment.transition import to_transition
from zkrebalancer.protocol.fields import threads_to_ranges, to_ranges, topics_to_ranges

TOPIC_COUNT = 100


def cost_tables(members: int) -> str:
    """Measure at 50 partitions per member, all subscribing alike."""
    before, after = _groups(members)
    return _memory_table(to_columns(after)) + "\n" + _conversion_table(before, after)


def _groups(members: int) -> tuple[Problem, Problem]:
    """Return a group that has settled, and the same one with one member more."""
    fresh = Point(members, 50, TOPIC_COUNT, ALIKE, joins=False).problem()
    columns = to_columns(fresh)
    target = sticky(columns)
    holding = to_assignment(columns, target, to_threads(columns, target))
    before = replace(
        fresh, members={name: replace(m, owned=_by_topic(holding, name)) for name, m in fresh.members.items()}
    )
    joined = replace(next(iter(before.members.values())), owned={})
    return before, replace(before, members={**before.members, JOINER: joined})


def _by_topic(assignment: Assignment, consumer: str) -> dict[str, dict[int, int]]:
    owned: dict[str, dict[int, int]] = {}
    for thread, topics in assignment[consumer].items():
        for topic, partitions in topics.items():
            owned.setdefault(topic, {}).update(dict.fromkeys(partitions, thread))
    return owned


def _memory_table(columns: Columns) -> str:
    arrays = [value for each in fields(columns) if isinstance(value := getattr(columns, each.name), np.ndarray)]
    tracemalloc.start()
    sticky(columns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = len(columns.topic)
    return (
        "| memory | bytes per partition |\n|---|---|\n"
        f"| the columns | {sum(array.nbytes for array in arrays) / rows:.1f} |\n"
        f"| while sticky decides, in addition | {peak / rows:.1f} |\n"
    )


def _conversion_table(before: Problem, after: Problem) -> str:
    known = to_columns(before)
    whole, part = to_columns(after), updated(known, after, [JOINER])
    target = sticky(whole)
    threads = to_threads(whole, target)
    takers = sorted({whole.consumers[row] for row in np.unique(target[target != whole.holder]).tolist()})
    givers = sorted({whole.consumers[row] for row in np.unique(whole.holder[target != whole.holder]).tolist()})
    records = _records(after, after.members)
    changed = _records(after, takers + givers)
    nothing = settled(whole, np.full_like(target, -1))
    rows = [
        ("JSON of all ownership records, read", _best_ms(lambda: [json.loads(record) for record in records])),
        ("problem to columns, all read", _best_ms(lambda: to_columns(after))),
        ("columns to commands, everything is new", _best_ms(lambda: _commands(nothing, target, threads))),
        (f"JSON of the {len(changed)} records that changed, read", _best_ms(lambda: [json.loads(r) for r in changed])),
        ("columns, one member has joined", _best_ms(lambda: updated(known, after, [JOINER]))),
        (f"columns, {len(changed)} members have changed", _best_ms(lambda: updated(part, after, takers + givers))),
        (
            "columns to threads and commands of what moves",
            _best_ms(lambda: _commands(whole, target, to_threads(whole, target))),
        ),
        ("sticky itself, one member has joined", _best_ms(lambda: sticky(part))),
    ]
    return "| step | best |\n|---|---|\n" + "".join(f"| {name} | {best:.2f} ms |\n" for name, best in rows)


def _records(problem: Problem, consumers: Iterable[str]) -> list[str]:
    """Write ownership records as they stand in ZooKeeper."""
    return [
        json.dumps(
            {
                "version": 1,
                "generation": 7,
                "command_id": None,
                "threads": {
                    "0": {
                        topic: to_ranges(sorted(partitions))
                        for topic, partitions in problem.members[consumer].owned.items()
                    }
                },
            }
        )
        for consumer in consumers
    ]


def _commands(columns: Columns, target: Rows, threads: Rows) -> list[object]:
    """Make the ownership maps of all commands."""
    transition = to_transition(columns, target, threads)
    stops = [topics_to_ranges(partitions) for partitions in transition.stops.values()]
    return [*stops, *(threads_to_ranges(partitions) for partitions in transition.starts.values())]


def _best_ms(run: Callable[[], object]) -> float:
    times_ms = []
    for _ in range(REPETITIONS):
        started = time.perf_counter_ns()
        run()
        times_ms.append((time.perf_counter_ns() - started) / 1e6)
    return min(times_ms)
