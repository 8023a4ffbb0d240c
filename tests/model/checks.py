"""The searches: properties that must hold, and rules without which one of them must fail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Search(Enum):
    """Spin's kinds of search; the values are the verifier's macros and options."""

    SAFETY = (("SAFETY",), ("-E",))  # assertions, in every state
    SHORTEST = (("SAFETY", "BFS"), ("-E",))  # the same, breadth first, for a short counterexample
    TERMINATION = (("NP", "NOCLAIM"), ("-l", "-E"))  # no cycles: without progress marks, every cycle is non-progress
    LIVENESS = (("NFAIR=3",), ("-a", "-f", "-E"))  # the LTL formula, under weak fairness


@dataclass(frozen=True, slots=True)
class Check:
    """One search of the model."""

    name: str
    macros: tuple[str, ...]  # macros of the model
    faults: int
    search: Search
    is_quick: bool = True


PROPERTIES = (
    Check("safe, incremental", (), 2, Search.SAFETY),
    Check("safe, eager", ("EAGER",), 1, Search.SAFETY),
    Check("safe, eager, more faults", ("EAGER",), 2, Search.SAFETY, is_quick=False),
    Check("safe, coordinator's faults", ("NO_CONSUMER_FAULTS",), 3, Search.SAFETY, is_quick=False),
    Check("safe, consumers' faults", ("NO_COORDINATOR_FAULTS",), 3, Search.SAFETY, is_quick=False),
    Check("safe, false claims", ("FALSE_CLAIMS",), 2, Search.SAFETY, is_quick=False),
    Check("safe, shards", ("SHARDS",), 1, Search.SAFETY),
    Check("safe, shards, more faults", ("SHARDS",), 2, Search.SAFETY, is_quick=False),
    Check("every run ends", (), 2, Search.TERMINATION, is_quick=False),
    Check("served, incremental", ("LIVENESS",), 1, Search.LIVENESS),
    Check("served, eager", ("LIVENESS", "EAGER"), 1, Search.LIVENESS),
    Check("served, shards", ("LIVENESS", "SHARDS"), 1, Search.LIVENESS, is_quick=False),
    Check("served, more faults", ("LIVENESS",), 2, Search.LIVENESS, is_quick=False),
)


def _without(rule: str, faults: int = 1, *more: str) -> Check:
    return Check(rule.lower().replace("_", "-"), (rule, *more), faults, Search.SHORTEST, is_quick=faults == 1)


REFUTATIONS = (
    _without("READ_OWNERS_FIRST"),
    _without("READ_IDS_FIRST"),
    _without("LOAD_BEFORE_EPOCH"),
    _without("NO_SYNC"),
    _without("FORGET_UNKNOWN_START"),
    _without("RETRY_CREATES_SECOND"),
    _without("NO_EPOCH_CHECK"),
    _without("NO_ELECTION_MULTI", 2),
    _without("ACK_DELETES_FIRST"),
    _without("ASSUME_ACKED", 2),
    _without("ASSUME_NOT_ACKED"),
    _without("ACK_IGNORES_CANCEL"),
    _without("CANCEL_UNCONDITIONAL"),
    _without("EMIT_WITHOUT_LEASE"),
    _without("LEASE_OUTLIVES_SESSION"),
    _without("RENEW_BY_READ"),
    _without("NO_LEASE_WAIT"),
    _without("TOMBSTONE_NOT_ADOPTED", 2),
    _without("EVICT_AT_ANY_VERSION", 1, "TOMBSTONE_WITHOUT_STARTS"),
    _without("NO_ADOPTION"),
    _without("IDS_TELL_DEATH"),
    _without("START_BEFORE_STOP_ACK"),
    _without("EMIT_BEFORE_ACK"),
    _without("STOP_AFTER_ACK"),
    _without("LOST_CHANGE"),
    _without("FAILOVER_BELIEVES_CLAIMS", 2, "FALSE_CLAIMS"),
    _without("RECORD_AFTER_COMMAND", 1, "FALSE_CLAIMS"),
    _without("CHANGE_KEEPS_EPOCHS", 1, "SHARDS"),
    _without("ELECT_WITHOUT_NUMBER", 1, "SHARDS"),
    _without("KEEP_GROUP", 1, "SHARDS"),
    _without("FENCE_OF_ANY_SHARD", 1, "SHARDS"),
)
