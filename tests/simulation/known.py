"""The known defects: hostile faults that the code does not stand yet. To mend one is to delete its line.

`make_plan(seed, [kind])` draws runs of one kind; `test_hostile.py` sees to it that each of these is found.
"""

from __future__ import annotations

from tests.simulation.plan import HOSTILE_WEIGHTS

KNOWN_DEFECTS = {
    "deny_topic": "one topic node that may not be read stops the planning of all groups, without a line of log",
    "garble_topic": "a topic whose node cannot be read counts as absent: its partitions are taken from their owners",
    "give_topic_id": "an id that appears at a topic's node is taken for a topic created anew, and offsets are deleted",
    "recreate_topics": "/brokers/topics, deleted and made anew, is never listed again",
    "deny_group": "a list that may not be read counts as empty: channels of the living are swept, starts sent twice",
    "refuse_group": "the same for any other refusal, and a group whose reading is refused stalls without a word",
    "deny_agents": "an agent that may not register lists the group's nodes without a pause",
    "garble_static": "a static member's node that cannot be read makes its group read and fail without a pause",
    "garble_generation": "a generation that cannot be read begins anew: fencing tokens fall",
    "garble_mark": "a mark of offsets that is no mark is taken for another topic, and offsets are deleted",
    "garble_registration": "partitions of a member whose registration cannot be read stay without an owner",
    "recreate_group": "a group that is deleted in use and made anew waits for no lease",
    "delete_owner": "a record that is deleted while its member lives frees its partitions at once",
    "forge_claim": "a claim in a member's own record is believed, though nothing was given to it",
    "huge_claim": "a short record may claim a million partitions, all of which are counted as held",
    "hang_strategy": "strategies that never come back keep their places, and others are not planned",
    "break_step": "an exception in one group's step ends the coordinator",
    "abandon_reset": "the pause of a reset that was killed stays",
}

WORKING = frozenset(HOSTILE_WEIGHTS) - KNOWN_DEFECTS.keys()
