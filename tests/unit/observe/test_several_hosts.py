"""Runs of several hosts are judged as if they had one clock, or the checker says that it cannot tell."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkrebalancer.observe.checker import Verdict, check
from zkrebalancer.observe.overview import overview
from zkrebalancer.observe.reading import Problems
from zkrebalancer.observe.run_events import RunEvents

EPOCH_US = 1_732_150_000_000_000
COORDINATOR, FIRST, SECOND = "k", "a", "b"


@dataclass
class Clock:
    """A host's clock: what it shows at a true time."""

    offset_us: int = 0
    drift_ppm: int = 0
    wall_error_us: int = 0

    def mono_us(self, true_us: int) -> int:
        return true_us + true_us * self.drift_ppm // 1_000_000 + self.offset_us


@dataclass
class Fleet:
    """Hosts that write events; members are named like their hosts."""

    clocks: dict[str, Clock]
    with_keys: bool = True  # those that bound clocks
    seed: int = 0
    now_us: int = 5_000_000
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    commands: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def passes(self, least_us: int, most_us: int) -> Fleet:
        self.now_us += self.chance.randrange(least_us, most_us)
        return self

    def mono_us(self, host: str) -> int:
        return self.clocks[host].mono_us(self.now_us)

    def add(self, host: str, kind: str, **fields: object) -> Fleet:
        self.now_us += 1
        ts_us = EPOCH_US + self.now_us + self.clocks[host].wall_error_us
        common = {"ts_us": ts_us, "mono_us": self.mono_us(host), "host": host, "process": f"p-{host}", "kind": kind}
        self.lines.setdefault(host, []).append({**common, "group": "g", "generation": 1, "cause_id": "c", **fields})
        return self

    def command(self, member: str, option: str, position: int) -> None:
        self.commands += 1
        command = {"command_id": f"id-{self.commands}"}
        asked = {"asked_us": self.mono_us(COORDINATOR)} if self.with_keys else {}
        self.passes(500, 5_000)
        sent = {"option": option, "member": member, "partition_count": 1}
        self.add(COORDINATOR, "command_sent", **command, **sent, **asked)
        self.passes(500, 5_000)
        known = command if self.with_keys else {}
        where = {"member": member, "topic": "t", "partitions": [0], "positions": [position], **known}
        if option == "start-fetcher":
            self.add(member, "fetcher_started", **where)
        else:
            self.add(member, "fetcher_stopped", reason="revoked", **where)
        self.passes(500, 5_000)
        self.add(COORDINATOR, "command_acked", member=member, **command)

    def leaves(self, member: str, where: dict[str, object], host: str) -> Fleet:
        """Stop to leave, and let the coordinator miss the member; it has not looked yet how that one ended."""
        stopped = {"topic": "t", "partitions": [], "positions": [], **where, "reason": "closed", "cause_id": None}
        self.passes(500, 5_000).add(host, "fetcher_stopped", member=member, **stopped)
        return self.passes(500, 5_000).add(COORDINATOR, "ownership_ended", member=member, reason="expired")

    def delivered(self, member: str, first: int, last: int) -> Fleet:
        where = {"topic": "t", "partition": 0, "first_offset": first, "last_offset": last}
        return self.passes(100, 900).add(member, "delivered", member=member, **where, count=last - first + 1)

    def produced(self, first: int, last: int) -> Fleet:
        sent = {"sent_us": self.mono_us(COORDINATOR)} if self.with_keys else {}
        where = {"topic": "t", "partition": 0, "first_offset": first, "last_offset": last}
        return self.passes(200, 900).add(COORDINATOR, "produced", **where, **sent)

    def moves(self, times: int, pause_us: int = 3_000_000) -> Fleet:
        """Move the partition to and fro, correctly."""
        offset, owner = 0, FIRST
        self.command(owner, "start-fetcher", 0)
        for _ in range(times):
            for _ in range(3):
                self.produced(offset, offset + 31).delivered(owner, offset, offset + 31)
                offset += 32
                self.passes(1, pause_us)
            self.command(owner, "stop-fetcher", offset)
            owner = SECOND if owner == FIRST else FIRST
            self.command(owner, "start-fetcher", offset)
        return self

    def verdict(self, folder: Path) -> Verdict:
        for host, events in self.lines.items():
            (folder / f"{host}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return check(folder)


def figures(verdict: Verdict) -> Sequence[int]:
    return (verdict.overlaps, verdict.lost, verdict.duplicated_outside_crash, verdict.out_of_order)


@settings(max_examples=25)
@given(
    st.integers(0, 1_000),
    st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3),
    st.lists(st.integers(-400, 400), min_size=3, max_size=3),
    st.lists(st.integers(-(10**9), 10**9), min_size=3, max_size=3),
)
def test_a_correct_history_of_hosts_that_differ_has_no_problem_and_no_doubt(
    seed: int, offsets: list[int], drifts: list[int], walls: list[int]
) -> None:
    clocks = {
        host: Clock(*numbers)
        for host, numbers in zip((COORDINATOR, FIRST, SECOND), zip(offsets, drifts, walls, strict=True), strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        verdict = Fleet(clocks, seed=seed).moves(4).verdict(Path(folder))
    assert (verdict.problems, verdict.unclear) == ((), ())
    assert figures(verdict) == (0, 0, 0, 0)
    assert verdict.produced == verdict.delivered == 4 * 3 * 32


def drifting() -> dict[str, Clock]:
    return {COORDINATOR: Clock(), FIRST: Clock(7_000_000, 200), SECOND: Clock(-40_000_000, -150)}


def test_an_overlap_that_is_longer_than_the_bounds_is_found(tmp_path: Path) -> None:
    fleet = Fleet(drifting()).moves(2)  # the partition is with the first again
    fleet.commands = 100
    fleet.command(SECOND, "start-fetcher", 192)
    verdict = fleet.passes(400_000, 500_000).moves(0).verdict(tmp_path)
    assert verdict.overlaps == 1


def handed_over(fleet: Fleet, reason: str, folder: Path) -> Verdict:
    """Give the second one's partitions to the first, and read meanwhile how the second ended."""
    asked_us = fleet.now_us
    fleet.command(FIRST, "start-fetcher", 0)
    fleet.now_us, now_us = (asked_us + fleet.now_us) // 2, fleet.now_us
    fleet.add(COORDINATOR, "member_left", member=SECOND, reason=reason)
    fleet.now_us = now_us
    return fleet.verdict(folder)


def test_an_owner_that_leaves_after_a_quiet_hour_leaves_no_doubt(tmp_path: Path) -> None:
    """In `Witness._tell_end`, tell nothing, or only what `member_left` says; in `Doubts`, take that for a change."""
    fleet = Fleet(drifting())
    fleet.command(SECOND, "start-fetcher", 0)
    fleet.passes(3_600_000_000, 3_600_000_001).leaves(SECOND, {"partitions": [0], "positions": [0]}, SECOND)
    verdict = handed_over(fleet, "closed", tmp_path)
    assert (figures(verdict), verdict.problems, verdict.unclear) == ((0, 0, 0, 0), (), ())


def test_the_end_of_a_crashed_owner_is_when_its_partitions_became_free(tmp_path: Path) -> None:
    """In `Doubts._takes_back`, return True: a member's end is read while others start its partitions."""
    fleet = Fleet(drifting())
    for option in ("start-fetcher", "stop-fetcher", "start-fetcher"):
        fleet.command(SECOND, option, 0)
    fleet.passes(3_600_000_000, 3_600_000_001)
    fleet.add(COORDINATOR, "ownership_ended", member=SECOND, reason="expired")
    verdict = handed_over(fleet, "expired", tmp_path)
    assert (figures(verdict), verdict.problems, verdict.unclear) == ((0, 0, 0, 0), (), ())


def test_a_start_that_may_have_been_before_the_end_of_its_member_lasts_no_longer(tmp_path: Path) -> None:
    """In `Run._started`, let it own the partition: the next start would be an overlap, and so would all later ones."""
    fleet = Fleet(drifting())
    fleet.command(SECOND, "start-fetcher", 0)
    fleet.passes(3_000_000, 3_000_001).add(COORDINATOR, "ownership_ended", member=SECOND, reason="expired")
    handed_over(fleet, "expired", tmp_path)
    for _ in range(2):
        fleet.passes(10_800_000_000, 10_800_000_001)
        for option in ("stop-fetcher", "start-fetcher"):
            fleet.command(FIRST, option, 0)
    known = {"member": "b2", "command_id": "of b2"}  # hours later, its host is heard of again
    stopped = {"topic": "t", "partitions": [9], "positions": [0], "reason": "revoked"}
    fleet.add(SECOND, "fetcher_stopped", **known, **stopped).passes(500, 5_000)
    verdict = fleet.add(COORDINATOR, "command_acked", **known).verdict(tmp_path)
    assert (figures(verdict), verdict.problems) == ((0, 0, 0, 0), ())
    assert any("cannot tell who owned it when b started" in line for line in verdict.unclear)


def test_without_bounds_the_checker_cannot_tell_and_claims_no_overlap(tmp_path: Path) -> None:
    clocks = drifting()
    clocks[SECOND].wall_error_us = 90_000_000  # so the wall clocks say the wrong order
    verdict = Fleet(clocks, with_keys=False).moves(3).verdict(tmp_path)
    assert (figures(verdict), verdict.problems) == ((0, 0, 0, 0), ())
    assert any("cannot tell who owned it when b started" in line for line in verdict.unclear)


def test_an_overlap_that_is_in_doubt_is_not_counted(tmp_path: Path) -> None:
    """In `Run._started`, count whoever owns the partition by the middle of the bounds."""
    fleet = Fleet(drifting(), with_keys=False)
    for member, option in ((FIRST, "start-fetcher"), (SECOND, "start-fetcher"), (FIRST, "stop-fetcher")):
        fleet.passes(20_000, 30_000).command(member, option, 0)
    verdict = fleet.verdict(tmp_path)
    assert (figures(verdict), verdict.problems) == ((0, 0, 0, 0), ())
    assert any("cannot tell who owned it when b started" in line for line in verdict.unclear)


def test_what_is_in_doubt_is_not_counted(tmp_path: Path) -> None:
    """In `Run._delivered`, count what was delivered again or out of order whatever is unclear."""
    fleet = Fleet(drifting(), with_keys=False)
    fleet.command(FIRST, "start-fetcher", 0)
    fleet.passes(20_000, 30_000).produced(0, 31).delivered(FIRST, 0, 31).passes(20_000, 30_000)
    fleet.command(FIRST, "stop-fetcher", 32)
    fleet.passes(20_000, 30_000).command(SECOND, "start-fetcher", 0)
    verdict = fleet.passes(20_000, 30_000).delivered(SECOND, 0, 31).delivered(SECOND, 0, 7).verdict(tmp_path)
    assert (figures(verdict), verdict.duplicated, verdict.problems) == ((0, 0, 0, 0), 40, ())
    for text in ("again without a crash", "after later ones"):
        assert any(line.endswith(text) for line in verdict.unclear)


@pytest.mark.parametrize("with_boot", [True, False])
def test_two_boots_of_one_host_are_two_clocks(tmp_path: Path, *, with_boot: bool) -> None:
    fleet = Fleet({COORDINATOR: Clock(10**10), FIRST: Clock(10**10), SECOND: Clock(10**10)}).moves(2)
    first = [event for events in fleet.lines.values() for event in events]
    again = Fleet({host: Clock(-4_900_000) for host in fleet.clocks}, now_us=fleet.now_us + 60_000_000)
    again.commands = 1_000
    again.command(FIRST, "stop-fetcher", 192)
    again.command(SECOND, "start-fetcher", 192)
    second = [event for events in again.lines.values() for event in events]
    lines = []
    for boot, events in (("one", first), ("two", second)):
        boots = {"boot": boot} if with_boot else {}
        # one process id, as in containers
        lines += [{**event, "host": "h", **boots} for event in sorted(events, key=lambda event: event["mono_us"])]
    (tmp_path / "p-1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lines))
    verdict = check(tmp_path)
    assert (figures(verdict), verdict.problems, verdict.unclear) == ((0, 0, 0, 0), (), ())
    assert verdict.delivered == 192


def test_a_host_that_writes_its_first_event_after_clocks_were_aligned_is_not_read(tmp_path: Path) -> None:
    """In `reading.lines_of`, read to the end: its clock is not known."""
    fleet = Fleet(drifting()).moves(1)
    fleet.verdict(tmp_path)
    files = RunEvents(tmp_path, Problems())
    event = {"mono_us": 7, "kind": "member_joined", "host": "new", "boot": "new", "group": "g", "member": "m"}
    with (tmp_path / f"{FIRST}.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    assert sum(1 for _ in files) == sum(map(len, fleet.lines.values()))


def test_a_host_whose_clock_jumped_is_told(tmp_path: Path) -> None:
    fleet = Fleet(drifting()).moves(2)
    fleet.clocks[SECOND].offset_us -= 5_000_000  # it was suspended
    verdict = fleet.moves(1).verdict(tmp_path)
    assert verdict.unclear[0] == "the clocks of b and k contradict each other: one has jumped"


def test_a_pod_that_came_back_to_its_former_node_left_another_clock_within_its_file(tmp_path: Path) -> None:
    """In `_of_each_clock`, look at the first and the last event: both nodes seem to have one clock."""
    known = {"kind": "fetcher_started", "group": "g", "topic": "t", "partitions": [0], "positions": [0]}
    lines = []
    for number, (boot, mono_us) in enumerate((("one", 10**9), ("two", 10**9 + 10), ("one", 10**9 + 60_000_000))):
        for kind, at_us in (("fetcher_started", 0), ("fetcher_stopped", 20)):
            clock = {"ts_us": EPOCH_US + 30_000_000 * number + at_us, "mono_us": mono_us + at_us, "host": "app-0"}
            event = {**clock, "boot": boot, "process": "app", **known, "member": f"m{number}", "kind": kind}
            lines.append(json.dumps({**event, "reason": "revoked"}, separators=(",", ":")) + "\n")
    (tmp_path / "app-1.jsonl").write_text("".join(lines))
    verdict = check(tmp_path)
    assert (verdict.overlaps, verdict.problems) == (0, ())
    assert any("cannot tell who owned it when m1 started" in line for line in verdict.unclear)


@pytest.mark.parametrize(("with_keys", "clocks", "most_us"), [(True, 3, 60_000), (False, 3, None), (True, 1, 0)])
def test_the_error_of_the_clocks_is_told(with_keys: bool, clocks: int, most_us: int | None, tmp_path: Path) -> None:
    """In `Doubts._insert`, keep the error of the first change, or none; in `document`, another figure."""
    fleet = Fleet(drifting(), with_keys=with_keys).moves(2)
    fleet.lines = dict(list(fleet.lines.items())[:clocks])
    fleet.verdict(tmp_path)
    document = overview(tmp_path).document()
    error_us = document["clock_error_us"]
    assert document["clocks"] == clocks
    assert error_us == most_us if not most_us else (isinstance(error_us, int) and 0 < error_us < most_us)
