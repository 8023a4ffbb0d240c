"""The cost of a decision besides the strategy: memory, and conversion from JSON to arrays and back to commands."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import numpy as np

from tests.benchmarks.assign.points import ALIKE, JOINER, Point, settled
from tests.benchmarks.assign.timing import REPETITIONS
from zkrebalancer.assignment.columns import Columns, to_columns
from zkrebalancer.assignment.model import Member, Problem
from zkrebalancer.assignment.placement import to_assignment, to_threads
from zkrebalancer.assignment.sticky import sticky
from zkrebalancer.assignment.transition import Transition, to_transition
from zkrebalancer.assignment.updating import updated
from zkrebalancer.protocol.fields import TopicPartition, threads_to_ranges, topics_to_ranges
from zkrebalancer.protocol.ownership import OwnersRecord, decode_owners, encode_owners

TOPIC_COUNT = 100


def cost_tables(members: int) -> str:
    """Measure at 50 partitions per member with equal subscriptions; return the tables."""
    before, after = _groups(members)
    return _memory_table(to_columns(after)) + "\n" + _conversion_table(before, after)


def _groups(members: int) -> tuple[Problem, Problem]:
    """Return a settled group, and the same group with one more member."""
    fresh = Point(members, 50, TOPIC_COUNT, ALIKE, joins=False).problem()
    columns = to_columns(fresh)
    target = sticky(columns)
    holding = to_assignment(columns, target, to_threads(columns, target))
    held = {name: replace(member, owned=_owned(holding[name])) for name, member in fresh.members.items()}
    before = replace(fresh, members=held)
    joined = replace(next(iter(before.members.values())), owned={})
    return before, replace(before, members={**before.members, JOINER: joined})


def _owned(share: Mapping[int, Mapping[str, tuple[int, ...]]]) -> dict[TopicPartition, int]:
    return {
        (topic, partition): thread
        for thread, topics in share.items()
        for topic, partitions in topics.items()
        for partition in partitions
    }


def _memory_table(columns: Columns) -> str:
    arrays = [value for each in fields(columns) if isinstance(value := getattr(columns, each.name), np.ndarray)]
    tracemalloc.start()
    sticky(columns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = len(columns.topic)
    return (
        "| memory | bytes per partition |\n|---|---|\n"
        f"| the columns | {sum(array.nbytes for array in arrays if array.strides != (0,)) / rows:.1f} |\n"
        f"| in addition while sticky runs | {peak / rows:.1f} |\n"
    )


def _conversion_table(before: Problem, after: Problem) -> str:
    """Measure a plan made from nothing, and one that keeps almost everything.

    The second is the usual case: another member joins, and the members that gave up partitions for the previous joiner
    have acknowledged since the last plan.
    """
    known, whole = to_columns(before), to_columns(after)
    target = sticky(whole)
    threads = to_threads(whole, target)
    nothing = settled(whole, np.full_like(target, -1))
    givers = sorted({whole.consumers[row] for row in np.unique(whole.holder[target != whole.holder]).tolist()})
    records = {name: _record(after.members[name]) for name in after.members}
    changed = [records[name] for name in givers]
    transition = to_transition(whole, target, threads)
    everything = to_transition(nothing, target, threads)
    from_nothing = {
        "ownership records, decoded": lambda: [decode_owners(record) for record in records.values()],
        "problem to columns": lambda: to_columns(after),
        "starts of each member": lambda: to_transition(nothing, target, threads),
        "ownership maps of the starts": lambda: _maps(everything),
    }
    kept = {
        f"the {len(givers)} changed ownership records, decoded": lambda: [decode_owners(r) for r in changed],
        "columns updated": lambda: updated(known, after, [JOINER, *givers]),
        "stops and starts of each member": lambda: to_transition(whole, target, to_threads(whole, target)),
        "ownership maps of the stops and starts": lambda: _maps(transition),
    }
    beside = {
        f"`json.loads` alone for the {len(givers)} records": lambda: [json.loads(record) for record in changed],
        "columns updated for one new member only": lambda: updated(known, after, [JOINER]),
    }
    whole_times, kept_times = _best_of_each(from_nothing), _best_of_each(kept)
    times = whole_times | {"**total, from nothing**": sum(whole_times.values())}
    times |= {f"{name} (kept)": best for name, best in kept_times.items()}
    times |= {"**total, kept**": sum(kept_times.values())} | _best_of_each(beside)
    times |= {"**`sticky` itself, after one join**": _best_ms(lambda: sticky(whole))}
    return "| step | best |\n|---|---|\n" + "".join(f"| {name} | {best:.2f} ms |\n" for name, best in times.items())


def _record(member: Member) -> bytes:
    """Return a member's ownership record as stored in ZooKeeper."""
    return encode_owners(OwnersRecord(7, "6f4c1f5e-4f0b-5d7e-9a53-4f3a6f1f2a0c", member.owned))


def _maps(transition: Transition) -> list[object]:
    """Return the ownership maps of all commands."""
    stops = [topics_to_ranges(partitions) for partitions in transition.stops.values()]
    return [*stops, *(threads_to_ranges(partitions) for partitions in transition.starts.values())]


def _best_of_each(steps: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    return {name: _best_ms(run) for name, run in steps.items()}


def _best_ms(run: Callable[[], object]) -> float:
    """Return the least CPU time of this thread; other load on the machine does not add to it."""
    times_ms = []
    for _ in range(REPETITIONS):
        started = time.thread_time_ns()
        run()
        times_ms.append((time.thread_time_ns() - started) / 1e6)
    return min(times_ms)
