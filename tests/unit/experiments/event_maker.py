"""Short constructors of events."""

from __future__ import annotations

from typing import Any

from zkrebalancer.observe.reading import Event

A = "demo-1-6f4c1f5e-4f0b-5d7e-9a53-4f3a6f1f2a0c"
B = "demo-2-7f4c1f5e-4f0b-5d7e-9a53-4f3a6f1f2a0c"


def event(kind: str, at_us: int = 0, **fields: Any) -> Event:
    common = {"ts_us": at_us, "mono_us": at_us, "host": "h", "process": "p", "generation": 1, "cause_id": "c1"}
    return {**common, "kind": kind, "group": "demo", **fields}


def fetcher(kind: str, member: str, partitions: list[int], at_us: int = 0, position: int = 0) -> Event:
    positions = [position] * len(partitions)
    fields = {"topic": "t", "partitions": partitions, "positions": positions, "reason": "revoked"}
    return event(kind, at_us, member=member, **fields)


def delivered(member: str, first: int, last: int, at_us: int = 0) -> Event:
    fields = {"topic": "t", "partition": 0, "first_offset": first, "last_offset": last, "count": last - first + 1}
    return event("delivered", at_us, member=member, **fields)


def produced(first: int, last: int, at_us: int = 0) -> Event:
    return event("produced", at_us, group=None, topic="t", partition=0, first_offset=first, last_offset=last)


def plan(generation: int = 1, at_us: int = 0, partitions: int = 4) -> list[Event]:
    """Return a request and its plan."""
    numbers = {"member_count": 2, "partition_count": partitions, "moved_count": 1, "plan_us": 10}
    return [
        event("rebalance_requested", at_us, cause_id=f"c{generation}", trigger="member-joined"),
        event(
            "rebalance_planned", at_us, generation=generation, cause_id=f"c{generation}", mode="incremental", **numbers
        ),
    ]


def finish(generation: int = 1, at_us: int = 0) -> Event:
    times = {"settled_us": 31_000, "pause_us_max": 12_000, "moved_count": 1, "late_members": []}
    return event(
        "rebalance_finished", at_us, generation=generation, cause_id=f"c{generation}", outcome="finished", **times
    )
