"""Draws kinds and times of faults from one seed. Pure. A round has one to three overlapping faults.

Kinds come from a shuffled deck, so a kind is as frequent as it has cards. The target of a fault is drawn as a number
between 0 and 1, which selects among the targets that exist when the fault begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from consumer_agent.runtime import failpoints

MAX_AT_ONCE = 3
MAX_OFFSET_S = 4.0  # longest time between a round's first and last fault
ZOOKEEPER, BROKER, LEADER, CONNECTIONS = "zookeeper", "broker", "leader", "connections"
EVERYTHING = frozenset({ZOOKEEPER, BROKER, LEADER})
COORDINATOR_STEPS = (
    *(f"multi:{number}" for number in range(1, 9)),
    *(f"{kind}:{number}" for kind in ("command_sent", "command_acked") for number in (1, 2, 4)),
    *("rebalance_requested:2", "rebalance_planned:1", "rebalance_planned:3"),
    *("rebalance_finished:1", "rebalance_finished:3", "ownership_ended:1"),
)
AGENT_STEPS = tuple(f"{name}:{number}" for name in failpoints.NAMES for number in (1, 2))
REGISTRATIONS = "/ids/"
PATHS = ("/channel/", "/channel/", "/offsets/", REGISTRATIONS)  # the transaction that loses its request or its reply
RIGHTS = tuple(
    f"{child} {right}"
    for child, rights in {
        "ids": ("READ", "CREATE"),
        "owners": ("READ", "CREATE"),
        "channel": ("READ", "CREATE", "DELETE"),
        "given": ("READ", "CREATE", "DELETE"),
        "evicted": ("READ", "CREATE", "DELETE"),
        "static": ("READ", "CREATE", "DELETE"),
        "offsets": ("READ", "CREATE"),
        "generation": ("READ", "WRITE"),
    }.items()
    for right in rights
)
SHARDS = ("1", "2", "3", "7")  # of groups; three coordinators share them
GARBLED = ("settings", "generation", "registration")
JUMPS = ("-86400", "-5", "+5", "+86400")  # of the wall clock, in seconds


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault; `lasts` is in sessions. Faults that need the same resource do not overlap.

    The campaign ends sessions by force, before their timeout. A client learns of that only from an intact server over
    an intact connection, and reads on until then; so nothing else may be broken at the same time.
    """

    title: str
    lasts: tuple[float, float]
    needs: frozenset[str] = frozenset()
    details: tuple[str, ...] = ("",)
    cards: int = 1  # in the deck
    is_alone: bool = False  # excludes other faults


KINDS: Mapping[str, Kind] = {
    "kill-agent": Kind("agent killed (kill -9)", (0.0, 2.0), cards=2),
    "kill-agent-at-step": Kind("agent killed at a step", (2.0, 3.0), details=AGENT_STEPS, cards=3),
    "kill-coordinator": Kind("coordinator killed (kill -9)", (0.0, 2.0), frozenset({LEADER})),
    "kill-leader-at-step": Kind(
        "leader killed at a step", (2.0, 3.0), frozenset({LEADER}), details=COORDINATOR_STEPS, cards=3
    ),
    "restart-coordinator": Kind("coordinator stopped cleanly, restarted", (0.0, 1.0), frozenset({LEADER})),
    "suspend-agent": Kind("agent suspended past its session", (1.2, 2.5), cards=2),
    "suspend-agent-briefly": Kind("agent suspended for about its session", (0.5, 1.2)),
    "suspend-leader": Kind("leader suspended past its session", (1.2, 2.5), frozenset({LEADER})),
    "expire-agent": Kind("session of an agent expired", (0.0, 0.2), frozenset({ZOOKEEPER, CONNECTIONS})),
    "expire-leader": Kind("session of the leader expired", (0.0, 0.2), frozenset({LEADER, ZOOKEEPER})),
    "cut-agent": Kind("agent's connection cut", (0.0, 0.2)),
    "cut-all": Kind("all connections cut", (0.0, 0.2), frozenset({LEADER, CONNECTIONS})),
    "refuse-agent": Kind("agent cut off (connections refused)", (0.3, 2.0)),
    "refuse-leader": Kind("leader cut off (connections refused)", (0.3, 2.0), frozenset({LEADER})),
    "silence-agent": Kind("agent cut off (packets vanish)", (0.3, 2.0)),
    "silence-leader": Kind("leader cut off (packets vanish)", (0.3, 2.0), frozenset({LEADER})),
    "slow-agent": Kind("agent's connection slow", (0.5, 2.0), details=("20", "100", "300")),
    "slow-leader": Kind("leader's connection slow", (0.5, 2.0), frozenset({LEADER}), details=("20", "100", "300")),
    "lose-reply-agent": Kind("replies to an agent lost after their commits", (2.0, 3.0), details=PATHS, cards=2),
    "lose-reply-leader": Kind(
        "replies to the leader lost after their commits",
        (2.0, 3.0),
        frozenset({LEADER}),
        details=("/channel/",),
        cards=2,
    ),
    "lose-request-agent": Kind("requests of an agent lost", (2.0, 3.0), details=PATHS),
    "lose-request-leader": Kind("requests of the leader lost", (2.0, 3.0), frozenset({LEADER}), details=("/channel/",)),
    "kill-zookeeper-leader": Kind("leading ZooKeeper server killed", (0.5, 2.0), frozenset({ZOOKEEPER})),
    "kill-zookeeper-follower": Kind("following ZooKeeper server killed", (0.5, 2.0), frozenset({ZOOKEEPER})),
    "suspend-zookeeper": Kind("ZooKeeper server suspended", (0.5, 2.5), frozenset({ZOOKEEPER})),
    "lose-quorum": Kind("ZooKeeper without a quorum", (0.3, 2.5), frozenset({ZOOKEEPER})),
    "fill-disk": Kind("disk under a ZooKeeper server full", (1.0, 2.5), frozenset({ZOOKEEPER})),
    "jump-clock": Kind("wall clock of the leader jumps", (1.0, 2.0), frozenset({LEADER}), details=JUMPS),
    "deny-node": Kind("right withheld at a group's node", (0.5, 2.5), frozenset({ZOOKEEPER}), details=RIGHTS, cards=3),
    "garble-node": Kind(
        "node of a group with an unknown version", (0.5, 2.5), frozenset({ZOOKEEPER}), details=GARBLED, cards=2
    ),
    "delete-owner": Kind("ownership record of a live member deleted", (0.0, 0.2), frozenset({ZOOKEEPER})),
    "steal-command": Kind("command deleted by another program", (0.0, 0.2), frozenset({ZOOKEEPER})),
    "forge-claim": Kind("member claims partitions that it was not given", (0.5, 2.0), frozenset({ZOOKEEPER})),
    "restart-broker": Kind("broker killed, comes back", (0.5, 2.0), frozenset({BROKER, ZOOKEEPER})),
    "join": Kind("agent joins", (0.0, 0.1), cards=2),
    "leave": Kind("agent leaves", (0.0, 0.1), cards=2),
    "churn": Kind("agents of a group restarted one after the other", (1.5, 3.0), cards=3),
    "switch-mode": Kind("group's mode switched", (0.0, 0.1), frozenset({ZOOKEEPER})),
    "set-shards": Kind("number of shards changed", (0.0, 0.1), frozenset({ZOOKEEPER}), details=SHARDS, cards=3),
    "damage-shards": Kind("number of shards damaged, set again", (0.5, 2.5), frozenset({ZOOKEEPER}), details=SHARDS),
    "grow-topic": Kind("topic grows", (0.0, 0.1), frozenset({BROKER, ZOOKEEPER})),
    "create-topic": Kind("topic created", (0.0, 0.1), frozenset({BROKER, ZOOKEEPER})),
    "delete-topic": Kind("topic deleted", (0.0, 0.1), EVERYTHING, is_alone=True),
}

# Kinds after which a client may need longer to learn that its session was ended.
SERVERS_AWAY = frozenset(
    ("kill-zookeeper-leader", "kill-zookeeper-follower", "suspend-zookeeper", "lose-quorum", "fill-disk", "cut-all")
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a round: it begins `at_s` after the round's start, and lasts `lasts_s`."""

    kind: str
    at_s: float
    lasts_s: float
    pick: float  # chooses among the existing targets: 0 <= pick < 1
    detail: str


def rounds(seed: int, kinds: Collection[str], session_s: float) -> Iterator[tuple[Fault, ...]]:
    """Yield rounds of faults without end; a session lasts `session_s` seconds."""
    random = Random(seed)
    deck: list[str] = []
    while True:
        if not deck:
            deck = [kind for kind in KINDS if kind in kinds for _ in range(KINDS[kind].cards)]
            random.shuffle(deck)
        drawn = _deal(deck, random.randint(1, MAX_AT_ONCE))
        offsets = [0.0, *sorted(random.uniform(0, MAX_OFFSET_S) for _ in drawn[1:])]
        yield tuple(
            Fault(
                kind,
                offset,
                random.uniform(*KINDS[kind].lasts) * session_s,
                random.random(),
                random.choice(_details(kind, drawn)),
            )
            for kind, offset in zip(drawn, offsets, strict=True)
        )


def _details(kind: str, drawn: Collection[str]) -> Sequence[str]:
    """Return the details of a kind, without the one that ends a session by force if that could stay unnoticed."""
    is_intact = SERVERS_AWAY.isdisjoint(drawn)
    return [detail for detail in KINDS[kind].details if is_intact or detail != REGISTRATIONS]


def _deal(deck: list[str], wanted: int) -> list[str]:
    """Draw up to `wanted` compatible kinds from the deck; the others stay in their order."""
    drawn: list[str] = []
    for kind in list(deck):
        if len(drawn) < wanted and all(go_together(kind, other) for other in drawn):
            drawn.append(kind)
            deck.remove(kind)
    return drawn


def go_together(one: str, other: str) -> bool:
    """Whether two kinds are compatible in one round."""
    is_shared = KINDS[one].needs & KINDS[other].needs
    return one != other and not (is_shared or KINDS[one].is_alone or KINDS[other].is_alone)
