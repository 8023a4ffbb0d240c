"""What a seed stands for: who takes part, and which faults come when. Dropping faults from a plan shrinks a failure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

DURATION_US = 12_000_000
MIN_FAULTS, MAX_FAULTS = 10, 110
FIRST_FAULT_US, LAST_FAULT_US = 800_000, 11_980_000  # what a fault puts off a little happens before the end
GROUPS = {"inc": "incremental", "eag": "eager"}

# How often each fault is drawn, in parts of the sum.
WEIGHTS = {
    "join": 10,
    "close_agent": 8,
    "kill_agent": 6,
    "freeze_agent": 6,
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
    "freeze_coordinator": 5,
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


class Scenario(Enum):
    """What a run is about."""

    CHAOS = "chaos"  # every fault at every moment
    ONE_BAD_AGENT = "one bad agent"  # one hangs or is frozen, nothing else fails: who else notices?


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; `pick` decides the details."""

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

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        return replace(self, faults=faults)


def make_plan(seed: int) -> Plan:
    """Draw a plan."""
    draw = Random(f"{seed}/plan")
    if draw.random() < 0.1:
        return Plan(seed, Scenario.ONE_BAD_AGENT, 2, draw.randint(2, 3), ())
    count = draw.randint(MIN_FAULTS, MAX_FAULTS)
    moments = sorted(draw.randrange(FIRST_FAULT_US, LAST_FAULT_US) for _ in range(count))
    kinds = draw.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    faults = tuple(Fault(at, kind, draw.getrandbits(32)) for at, kind in zip(moments, kinds, strict=True))
    return Plan(seed, Scenario.CHAOS, draw.randint(2, 3), draw.randint(1, 3), faults)
