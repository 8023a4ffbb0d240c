"""The plan of a seed: participants, faults and their times. Dropping faults from a plan shrinks a failure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

DURATION_US = 12_000_000
MIN_FAULTS, MAX_FAULTS = 10, 110
FIRST_FAULT_US, LAST_FAULT_US = 800_000, 11_980_000  # a little before DURATION_US, for delayed effects
GROUPS = {"inc": "incremental", "eag": "eager"}

# Relative frequency of each fault.
WEIGHTS = {
    "join": 10,
    "close_agent": 8,
    "kill_agent": 6,
    "suspend_agent": 6,
    "cut_agent": 6,
    "expire_agent": 3,
    "drop_agent_connection": 6,
    "lose_agent_reply": 8,
    "slow_agent": 5,
    "strand_agent": 5,
    "block_application": 6,
    "stop_polling": 3,
    "resubscribe": 5,
    "kill_coordinator": 5,
    "suspend_coordinator": 5,
    "cut_coordinator": 5,
    "expire_coordinator": 3,
    "drop_coordinator_connection": 5,
    "lose_coordinator_reply": 8,
    "slow_coordinator": 6,
    "break_while_moving": 6,
    "resign": 3,
    "depose": 5,
    "write_epoch": 2,
    "lag_server": 5,
    "cut_server_off": 4,
    "restart_zookeeper": 2,
    "jump_wall_clock": 2,
    "stop_kafka": 2,
    "grow_topic": 4,
    "recreate_topic": 4,
    "configure": 10,
    "ask": 4,
    "poison": 2,
    "garbage_record": 2,
    "delete_registration": 2,
    "delete_channel": 2,
    "storm": 2,
}


# The same for the hostile profile, see `hostile.py`.
HOSTILE_WEIGHTS = {
    "deny_topic": 6,
    "garble_topic": 6,
    "give_topic_id": 6,
    "copy_tree": 2,
    "recreate_topics": 4,
    "deny_group": 8,
    "deny_place": 4,
    "deny_mark": 3,
    "deny_member": 4,
    "deny_agents": 4,
    "refuse_group": 8,
    "garble_settings": 4,
    "garble_generation": 4,
    "garble_static": 6,
    "garble_mark": 4,
    "garble_registration": 4,
    "garble_offset": 3,
    "recreate_group": 3,
    "forge_claim": 5,
    "huge_claim": 2,
    "delete_owner": 4,
    "steal_command": 4,
    "restore_member": 4,
    "small_requests": 4,
    "hang_strategy": 3,
    "break_step": 2,
    "abandon_reset": 2,
    "pair": 8,
    "deny_pair": 6,
    "foreign_node": 8,
    "rewrite_node": 4,
    "delete_place": 3,
    "refuse_sync": 4,
    "garble_epoch": 3,
    "foreign_leader": 2,
    "limit_sessions": 2,
    "reset_offsets": 8,
    "delete_group": 4,
    "import_offsets": 4,
    "operate": 8,
    "back_up": 3,
    "restore": 4,
    "restore_offsets": 4,
    "starve_agent": 3,
    "hide_repair": 3,
}

# The same for runs in which the coordinators share several shards of groups, see `shards.py`.
SHARD_WEIGHTS = {"set_shards": 8, "run_change_shards": 6, "foreign_number": 4, "foreign_hosts": 5}

# Limits of hostile runs; with each of these values, work takes several rounds.
TINY_LIMITS = {
    "MAX_DELETES_PER_TRANSACTION": 2,
    "MAX_READS_PER_STEP": 2,
    "MAX_COMMANDS_PER_TRANSACTION": 2,
    "MAX_LOOKS_PER_TRANSACTION": 2,
    "MAX_LOOKS_PER_STEP": 2,
    "MAX_VACANT": 2,
    "MAX_STARTS": 2,
    "MAX_PLANNING": 1,
    "SURE_TO_FIT": 2,
    "MAX_OPERATIONS": 2,
    "MAX_OFFSET_READS": 2,
}


SMALL_REQUESTS = {"MAX_TRANSACTION_BYTES": 1_000, "MAX_HISTORY_BYTES": 1_000}  # if requests have to be small

# Kinds that hit one topic, group or member, and must affect no other.
ISOLATED = frozenset(
    {
        "deny_topic",
        "garble_topic",
        "give_topic_id",
        "recreate_topics",
        "deny_group",
        "deny_mark",
        "deny_member",
        "refuse_group",
        "garble_settings",
        "garble_generation",
        "garble_static",
        "garble_mark",
        "garble_registration",
        "garble_offset",
        "forge_claim",
        "huge_claim",
        "delete_owner",
        "steal_command",
        "restore_member",
        "hang_strategy",
        "break_step",
        "foreign_node",
        "rewrite_node",
    }
)


class Scenario(Enum):
    """The kind of a run."""

    CHAOS = "chaos"  # every fault at every moment
    ONE_BAD_AGENT = "one bad agent"  # one application hangs, or one agent is suspended; nothing else fails
    ONE_BAD_NODE = "one bad node"  # one hostile fault, which hits a topic, a group or a member


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `pick` decides the details."""

    at_us: int
    kind: str
    pick: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    seed: int
    scenario: Scenario
    coordinators: int
    agents: int  # in each group at the beginning
    faults: tuple[Fault, ...]
    is_hostile: bool = False
    limits: tuple[tuple[str, int], ...] = ()  # name of a constant -> its value in this run
    shards: int = 1  # of groups, at the beginning

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        return replace(self, faults=faults)


def make_plan(seed: int, hostile: Collection[str] = ()) -> Plan:
    """Draw a plan; `hostile`: the kinds of hostile faults to use."""
    draw = Random(f"{seed}/plan")
    if draw.random() < 0.1:
        return Plan(seed, Scenario.ONE_BAD_AGENT, 2, draw.randint(2, 3), ())
    weights = WEIGHTS | {kind: weight for kind, weight in (HOSTILE_WEIGHTS | SHARD_WEIGHTS).items() if kind in hostile}
    limits = tuple(item for item in TINY_LIMITS.items() if hostile and draw.random() < 0.5)
    if "small_requests" in hostile:
        limits += tuple(SMALL_REQUESTS.items())
    isolated = sorted(ISOLATED.intersection(hostile))
    if isolated and draw.random() < 0.4:
        fault = Fault(0, draw.choice(isolated), draw.getrandbits(32))
        return Plan(seed, Scenario.ONE_BAD_NODE, 2, draw.randint(2, 3), (fault,), is_hostile=True, limits=limits)
    count = draw.randint(MIN_FAULTS, MAX_FAULTS)
    moments = sorted(draw.randrange(FIRST_FAULT_US, LAST_FAULT_US) for _ in range(count))
    kinds = draw.choices(list(weights), list(weights.values()), k=count)
    faults = tuple(Fault(at, kind, draw.getrandbits(32)) for at, kind in zip(moments, kinds, strict=True))
    return Plan(
        seed,
        Scenario.CHAOS,
        draw.randint(2, 3),
        draw.randint(1, 3),
        faults,
        is_hostile=bool(hostile),
        limits=limits,
        shards=2 if SHARD_WEIGHTS.keys() & set(hostile) else 1,
    )
