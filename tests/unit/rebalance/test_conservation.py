"""A coordinator that has run for hours has no more objects than before: nothing that ends is kept."""

from __future__ import annotations

import gc
from collections import Counter

from tests.benchmarks.acknowledging import write
from tests.benchmarks.many_groups import NOT_DATA, ManyLab
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Delete
from zkrebalancer.protocol.registration import STATIC, Registration
from zkrebalancer.rebalance.reconciling import RECONCILE_INTERVAL_US

GROUPS, TOPICS = 1, 2
ROUNDS = 12  # of five minutes each: an hour, twice


def objects_of(root: object) -> Counter[str]:
    """Count the objects that an object refers to, by type."""
    seen = {id(root)}
    waiting = [root]
    counts = Counter[str]()
    while waiting:
        each = waiting.pop()
        counts[type(each).__qualname__] += 1
        for referred in gc.get_referents(each):
            if id(referred) not in seen and not isinstance(referred, NOT_DATA):
                seen.add(id(referred))
                waiting.append(referred)
    return counts


def pass_round(lab: ManyLab, number: int) -> None:
    """Let a consumer with a new name join each group and leave it again, then let all be reconciled."""
    described = Registration(STATIC, {"t0000": 1, "t0001": 1}, "0", "x", "h", 6_000)
    names = [(group, f"{group}-x{number:05}") for group in lab.names]
    for group, name in names:
        lab.join(group, name, described)
    lab.phase("join")
    for group, name in names:
        write(lab.zk, *(Delete(path(group, name)) for path in (paths.channel, paths.ids, paths.owners)))
    lab.phase("leave")
    lab.phase("reconcile", RECONCILE_INTERVAL_US)


def test_after_two_hours_there_is_no_more_than_after_one() -> None:
    """In `Planning.keep`, do not clear what has changed."""
    lab = ManyLab(GROUPS, TOPICS, measures_size=False)
    lab.phase("start")
    for number in range(ROUNDS):
        pass_round(lab, number)
    gc.collect()
    before = objects_of(lab.machine)
    for number in range(ROUNDS, 2 * ROUNDS):
        pass_round(lab, number)
    gc.collect()
    more = objects_of(lab.machine) - before
    assert more.total() < ROUNDS, more  # what each round leaves behind would be as many at least
