"""Causes and effects are found in any order of events, and piece by piece."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.observe.test_several_hosts import COORDINATOR, FIRST, SECOND, Clock, Fleet
from zkrebalancer.observe import hosts
from zkrebalancer.observe.clocks import Evidence
from zkrebalancer.observe.hosts import ClockNames, Witness

Found = set[tuple[tuple[str, str], tuple[int, int]]]


def events_of(seed: int) -> list[dict[str, Any]]:
    clocks = {COORDINATOR: Clock(), FIRST: Clock(7_000_000, 200), SECOND: Clock(-40_000_000, -150)}
    fleet = Fleet(clocks, seed=seed).moves(6)
    return [event for lines in fleet.lines.values() for event in lines]


def witness_of(events: list[dict[str, Any]]) -> Witness:
    names = ClockNames()
    for event in events:
        names.note(event)
    return Witness(names)


def pairs(evidence: Evidence) -> Found:
    return {(clocks, times) for clocks, found in evidence.pairs.items() for times in found}


def test_no_order_of_events_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Witness.add`, follow no more offsets when there are too many, instead of fewer."""
    events, found = events_of(1), dict[int, list[Found]]()
    for most in (hosts.MAX_SAMPLES, 5):
        monkeypatch.setattr(hosts, "MAX_SAMPLES", most)
        for seed in range(5):
            witness = witness_of(events)
            for event in random.Random(seed).sample(events, len(events)):
                witness.add(event)
            found.setdefault(most, []).append(pairs(witness.evidence()))
        assert all(each == found[most][0] for each in found[most])
    assert found[5][0] < next(iter(found.values()))[0]


def test_a_witness_that_is_asked_again_tells_what_is_new_or_that_it_has_erred(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `Witness`, forget that a plan, a record or offsets that are no longer followed were told."""
    events = events_of(2)
    whole, parts = witness_of(events), witness_of(events)
    told = set[Any]()
    for number, event in enumerate(events):
        whole.add(event)
        parts.add(event)
        if number % 7 == 0:
            told |= pairs(parts.evidence())
    told |= pairs(parts.evidence())
    assert told == pairs(whole.evidence())
    had_erred = parts.has_erred
    again = next(event for event in events if event["kind"] == "produced")
    parts.add(again)
    parts.evidence()
    assert (had_erred, parts.has_erred) == (False, True)  # the topic was made anew, or the event is there twice
    fewer = witness_of(events)
    for event in events:
        fewer.add(event)
    fewer.evidence()
    monkeypatch.setattr(hosts, "MAX_SAMPLES", 3)
    fewer.add(again)
    assert fewer.has_erred


def test_a_plan_that_is_there_twice_is_no_cause() -> None:
    plan: dict[str, Any] = {"kind": "rebalance_planned", "group": "g", "generation": 1, "cause_id": "c", "host": "k"}
    start = {**plan, "kind": "fetcher_started", "host": "a", "mono_us": 70}
    witness = witness_of([{**plan, "mono_us": 0}, start])
    for event in ({**plan, "mono_us": 50}, start):
        witness.add(event)
    assert pairs(witness.evidence()) == {(("k", "a"), (50, 70))}
    witness.add({**plan, "mono_us": 60})
    assert pairs(witness.evidence()) == set()
    assert witness.has_erred


def test_a_command_may_be_written_after_what_it_did_and_a_start_after_its_acknowledgement() -> None:
    """In `Witness._add_command`, take the time of `command_sent`; in `_Command.tell`, let any event cause the ack."""
    command: dict[str, Any] = {"group": "g", "member": "m", "command_id": "i", "ts_us": 0}
    sent = {**command, "kind": "command_sent", "host": "k", "mono_us": 90, "asked_us": 10}
    acked = {**command, "kind": "command_acked", "host": "k", "mono_us": 40}
    asked = (("k", "a"), (10, 70))
    for kind, found in (("fetcher_started", {asked}), ("fetcher_stopped", {asked, (("a", "k"), (70, 40))})):
        events = [sent, acked, {**command, "kind": kind, "reason": "revoked", "host": "a", "mono_us": 70}]
        witness = witness_of(events)
        for event in events:
            witness.add(event)
        assert pairs(witness.evidence()) == found


def test_a_member_that_was_found_dead_may_have_stopped_later() -> None:
    """In `Witness._tell_end`, do not look how it ended."""
    of_member: dict[str, Any] = {"group": "g", "member": "m", "ts_us": 0}
    stopped = {**of_member, "kind": "fetcher_stopped", "reason": "closed", "host": "a", "mono_us": 70}
    ended = {**of_member, "kind": "ownership_ended", "reason": "expired", "host": "k", "mono_us": 60}
    for reason, found in (("expired", set()), ("closed", {(("a", "k"), (70, 60)), (("a", "k"), (70, 65))})):
        left = {**ended, "kind": "member_left", "reason": reason, "mono_us": 65}
        witness = witness_of([stopped, ended])
        for event in (stopped, ended, left):
            witness.add(event)
        assert pairs(witness.evidence()) == found


def test_a_pod_that_has_come_back_to_its_former_node_ties_no_boots() -> None:
    """In `Witness._tell_boots`, do not look whether one boot was over before the next began."""
    times = (("one", 0), ("one", 100), ("two", 200), ("two", 300), ("one", 400))
    *events, later = ({"kind": "step", "host": "app-0", "boot": boot, "mono_us": us, "ts_us": us} for boot, us in times)
    witness = witness_of(events)
    for event in events:
        witness.add(event)
    assert (pairs(witness.evidence()), witness.has_erred) == ({(("one", "two"), (100, 200))}, False)
    witness.add(later)
    assert (pairs(witness.evidence()), witness.has_erred) == (set(), True)


HOUR_US = 3_600_000_000


def named(*boots: str | None, apart_us: int = HOUR_US) -> tuple[ClockNames, list[str]]:
    """Return the names of the clocks of one host's events, which it was started before `apart_us` from each other."""
    events = [
        {"host": "h", "mono_us": 0, "ts_us": 10**15 + apart_us * number, **({"boot": boot} if boot else {})}
        for number, boot in enumerate(boots)
    ]
    names = ClockNames()
    for event in events:
        names.note(event)
    return names, [names.of(event) for event in events]


def test_events_of_an_earlier_version_may_be_of_an_earlier_boot() -> None:
    """In `ClockNames._unnamed`, let all of them count to the one boot that is named: its clock began anew."""
    names, found = named(None, "two")
    assert (found, names.count, names.depend_on_walls) == (["h", "two"], 2, True)
    assert names.of({"host": "h", "mono_us": 0}) == "two"
    names, found = named(None, None, "three")
    assert (found, names.count) == (["h#1", "h#2", "three"], 3)
    names, found = named(None, "one", apart_us=1_000)
    assert (found, names.count, names.depend_on_walls) == (["one", "one"], 1, False)


def test_events_that_name_no_boot_are_of_none_of_two() -> None:
    names, found = named("one", None, "two", apart_us=1_000)
    assert (found, names.count, names.depend_on_walls) == (["one", "h", "two"], 3, False)


def test_a_number_that_is_no_time_ties_no_clocks() -> None:
    """In `hosts._time`, take any integer: bounds so far away cannot be computed with."""
    far, record = 10**30, {"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 0}
    events: list[dict[str, Any]] = [
        {"kind": "produced", "host": "k", "mono_us": 1, "sent_us": far, "ts_us": far, **record},
        {"kind": "command_sent", "host": "k", "mono_us": 1, "asked_us": far, "command_id": "i"},
        {"kind": "delivered", "host": "a", "mono_us": 2, **record},
        {"kind": "fetcher_started", "host": "a", "mono_us": 2, "command_id": "i"},
    ]
    witness = witness_of(events)
    for event in events:
        witness.add(event)
    evidence = witness.evidence()
    assert (pairs(evidence), evidence.wall_us) == (set(), {})
