"""How long partitions had no owner, from events in short form."""

from __future__ import annotations

from typing import Any

from tests.campaign.watching import OwnerGaps
from zkrebalancer.experiments.picture import MEMBER_UUID_LENGTH

SECOND_US = 1_000_000
A, B = (f"{client_id}{'-':x<{MEMBER_UUID_LENGTH}}" for client_id in ("a", "b"))


def feed(gaps: OwnerGaps, kind: str, member: str, at_s: float, *partitions: int) -> None:
    event: dict[str, Any] = {"kind": kind, "group": "g", "member": member, "mono_us": int(at_s * SECOND_US)}
    if partitions:
        event |= {"topic": "t", "partitions": list(partitions), "positions": [0] * len(partitions)}
    gaps.apply(event)


def test_a_gap_runs_from_the_stop_to_the_next_start() -> None:
    gaps = OwnerGaps()
    feed(gaps, "fetcher_started", A, 1, 0, 1)
    feed(gaps, "fetcher_stopped", A, 2, 0)
    feed(gaps, "fetcher_started", B, 5, 0)
    assert gaps.longest_us == 3 * SECOND_US
    gaps.begin()
    assert gaps.longest_us == 0


def test_the_partitions_of_a_killed_member_have_no_owner_although_its_session_goes_on() -> None:
    gaps = OwnerGaps()
    feed(gaps, "fetcher_started", A, 1, 0)
    gaps.abandoned("a", 2 * SECOND_US)
    feed(gaps, "ownership_ended", A, 5)
    feed(gaps, "fetcher_started", B, 6, 0)
    assert gaps.longest_us == 4 * SECOND_US


def test_a_member_that_resumes_within_its_session_is_still_the_owner() -> None:
    gaps = OwnerGaps()
    feed(gaps, "fetcher_started", A, 1, 0)
    gaps.abandoned("a", 2 * SECOND_US)
    gaps.returned("a", 3 * SECOND_US)
    feed(gaps, "fetcher_stopped", A, 50, 0)
    feed(gaps, "fetcher_started", B, 50.5, 0)
    assert gaps.longest_us == SECOND_US


def test_a_member_that_resumes_after_its_session_owns_nothing() -> None:
    gaps = OwnerGaps()
    feed(gaps, "fetcher_started", A, 1, 0)
    gaps.abandoned("a", 2 * SECOND_US)
    feed(gaps, "ownership_ended", A, 5)
    gaps.returned("a", 6 * SECOND_US)
    feed(gaps, "fetcher_started", B, 9, 0)
    assert gaps.longest_us == 7 * SECOND_US


def test_a_deleted_topic_leaves_no_gap() -> None:
    gaps = OwnerGaps()
    feed(gaps, "fetcher_started", A, 1, 0)
    feed(gaps, "fetcher_stopped", A, 2, 0)
    gaps.apply({"kind": "topic_deleted", "topic": "t"})
    feed(gaps, "fetcher_started", B, 60, 0)
    assert gaps.longest_us == 0
