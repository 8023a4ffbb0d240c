"""Histories written as event files: random ones with every kind of violation, and one with plans."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.unit.observe.history import History

MEMBERS = ("a", "b", "c")
PROCESSES = 3


def chaos(seed: int) -> History:
    """Return random events: starts, deliveries, stops and deaths follow no rule."""
    chance, history = random.Random(seed), History()
    for number in range(chance.randrange(2, 60)):
        member, partition = chance.choice(MEMBERS), chance.randrange(2)
        first = chance.randrange(0, 20)
        last = first + chance.choice((0, 0, 1, 3, 9))
        what = chance.randrange(16)
        if what < 2:
            history.produced(first, last, partition)
        elif what < 5:
            history.started(member, first, partition=partition)
        elif what < 8:
            history.delivered(member, first, last, partition)
            history.events[-1]["delays_us"] = [chance.randrange(1, 1_000_000) for _ in range(last - first + 1)]
        elif what < 9:
            history.committed(member, first, partition)
        elif what < 11:
            history.stopped(member, first, chance.choice(("revoked", "lost", "closed")), partition)
        elif what < 12:
            history.ended(member)
        elif what < 13:
            history.left(member, chance.choice(("closed", "expired", "evicted")))
        elif what < 14:
            history.repositioned(member, first, partition)
        else:
            _add_run_event(history, chance, member, number)
    return history


def crowded(seed: int) -> History:
    """Return random events of two members and few records, so that most events concern the same ones."""
    chance, history = random.Random(seed), History().produced(0, 11)
    for _ in range(chance.randrange(4, 25)):
        member, first = chance.choice(MEMBERS[:2]), chance.randrange(0, 10)
        what = chance.randrange(12)
        if what < 3:
            history.started(member, first)
        elif what < 7:
            history.delivered(member, first, min(11, first + chance.choice((0, 1, 3))))
        elif what < 8:
            history.committed(member, first)
        elif what < 9:
            history.stopped(member, first, chance.choice(("revoked", "lost", "closed")))
        elif what < 10:
            history.ended(member)
        elif what < 11:
            history.left(member, chance.choice(("closed", "expired", "evicted")))
        else:
            history.repositioned(member, first)
    return history


def unplaced(seed: int) -> History:
    """Return such events in which no start has a position; most partitions begin soon after."""
    chance, history = random.Random(seed), History()
    for event in crowded(seed).events:
        is_start = event["kind"] == "fetcher_started"
        history.events.append({**event, "positions": [-1]} if is_start else event)
        if is_start and chance.randrange(4):
            begins = {"kind": "repositioned", "reason": "begin", "mono_us": event["mono_us"] + 1}
            history.events.append({**event, **begins})
    return history


def _add_run_event(history: History, chance: random.Random, member: str, number: int) -> None:
    if chance.random() < 0.2:
        history.add("topic_deleted", topic="t", group=None)
    else:
        history.add("step", name="change", target=member, number=number)


def planned() -> History:
    """Return plans that finished, were superseded, and are under way; one ends a gap. Seven events are missing."""
    history = History().requested("c1", "member-joined").planned(1, "c1").started("a", 0).finished(1, "c1")
    history.planned(2, "c2").stopped("a", 0).requested("c3", "member-left").planned(3, "c3")
    history.add("fetcher_started", member="b", topic="t", partitions=[0], positions=[0], generation=3, cause_id="c3")
    for count in (3, 4):
        history.add("events_dropped", group=None, process="agent-1", dropped_count=count)
    return history.planned(4, "c4")


def write_run(folder: Path, history: History) -> None:
    """Write a history as the event files of several processes."""
    folder.mkdir(parents=True)
    for process in range(PROCESSES):
        lines = [json.dumps(event) + "\n" for event in history.events[process::PROCESSES]]
        (folder / f"{process}.jsonl").write_text("".join(lines))
