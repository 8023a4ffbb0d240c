"""Settings of the group protocols; names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PENDING_MEMBERS = 10_000  # member ids per group that were given out and have not joined yet
FIRST_LIMIT_MS = 60_000  # how long a group that was too large to be stored may not grow; doubled each time
LONGEST_LIMIT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class GroupProtocolSettings:
    """Times in milliseconds."""

    group_initial_rebalance_delay_ms: int = 3_000
    """How long the first join of an empty group waits for others; each further join extends it by as much."""
    group_min_session_timeout_ms: int = 6_000
    """The shortest session that a classic member may ask for."""
    group_max_session_timeout_ms: int = 1_800_000
    """The longest session that a classic member may ask for."""
    group_max_size: int = 2**31 - 1
    """How many members a classic group may have."""
    new_member_join_timeout_ms: int = 300_000
    """How long the JoinGroup of a new member waits; a client that still lives then asks again."""
    empty_group_retention_ms: int = 7 * 24 * 3_600_000
    """How long a group without members is kept."""
    consumer_session_timeout_ms: int = 45_000
    """After how much silence a KIP-848 member is fenced."""
    consumer_heartbeat_interval_ms: int = 5_000
    """How often a KIP-848 member reports in a settled group."""
    consumer_urgent_heartbeat_interval_ms: int = 500
    """The same while a member of the group has not reached its target."""
    consumer_group_max_size: int = 2**31 - 1
    """How many members a KIP-848 group may have."""
    assigns_centrally: bool = False
    """Whether targets of consumer groups come from outside (`Targeted`), instead of a leader or an assignor."""
