"""The known defects: hostile faults that the code does not stand yet. To mend one is to delete its line.

`make_plan(seed, [kind])` draws runs of one kind; `test_hostile.py` sees to it that each of these is found.
"""

from __future__ import annotations

from tests.simulation.plan import HOSTILE_WEIGHTS

KNOWN_DEFECTS = {
    "deny_agents": "an agent that may not register lists the group's nodes without a pause",
    "garble_topic": "a new leader takes a topic whose node cannot be read for absent, and stops its partitions",
    "deny_topic": "the same for a topic whose node may not be read",
    "garble_generation": "a generation that cannot be read begins anew if no member is left that knows it",
    "garble_mark": "an agent with offsets in Kafka that starts while their mark is no mark may set them back",
    "recreate_group": "a group that is deleted in use and made anew waits for no lease",
    "huge_claim": "a short record may claim a million partitions, all of which are counted as held",
    "hang_strategy": "where MAX_PLANNING is 1, a strategy that never comes back keeps others waiting for five seconds",
    "break_step": "an exception in one group's step ends the coordinator",
}

WORKING = frozenset(HOSTILE_WEIGHTS) - KNOWN_DEFECTS.keys()
