"""Whether a run can be trusted: not if the machine stood still, other programs used it, or records were sent late.

Nor if what a scenario is about was not so: a backlog, a slow disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zkrebalancer.observe.measures import BEFORE, END, REST
from zkrebalancer.observe.reading import Event

DOUBTFUL_OTHERS = 0.2  # share of the processors, used by other programs
DOUBTFUL_GAP_MS = 500  # at any measured time: delays of records are of this order
DOUBTFUL_PAUSE = 0.1  # share of the time in which a group settled
LEAST_UNREAD = 500_000  # records of a backlog, in the second before the first change: about what is read in a second


def find_doubts(events: Iterable[Event], steps: Iterable[Mapping[str, object]]) -> list[str]:
    """Return why the figures between the first and the last step are doubtful, one line for each reason.

    `steps`: the figures of each step, as `observe.measures` returns them.
    """
    settled_ms = {
        step["number"]: ms
        for step in steps
        if step["name"] not in {BEFORE, REST} and isinstance(ms := step["settled_ms"], int | float)
    }
    late: dict[str, list[int]] = {}
    pauses: dict[int, int] = {}  # step -> the longest pause while its group settled
    left_out_count = 0
    step: Event | None = None
    loads = list[Event]()
    for event in events:
        if event["kind"] == "step":
            step = event if event["name"] != END else None
        elif step is None:
            continue
        elif event["kind"] == "busy":
            loads = [*loads[:1], event]
        elif event["kind"] == "stalled":
            left_out_count += event.get("left_out_count", 0)
            if event["gap_ms"] >= DOUBTFUL_GAP_MS:
                late.setdefault(event["role"], []).append(event["gap_ms"])
            began_ms = (event["mono_us"] - step["mono_us"]) / 1_000 - event["gap_ms"]
            is_settling = step["number"] in settled_ms and began_ms < settled_ms[step["number"]]
            if event["role"] == "machine" and is_settling:
                pauses[step["number"]] = max(event["gap_ms"], pauses.get(step["number"], 0))
    doubts = [
        f"the {role} stalled {len(gaps)} times for at least {DOUBTFUL_GAP_MS} ms, up to {max(gaps)} ms"
        for role, gaps in late.items()
    ]
    doubts += [
        f"the machine stood still for {gap_ms} ms while step {number} settled in {settled_ms[number]:g} ms"
        for number, gap_ms in pauses.items()
        if gap_ms > DOUBTFUL_PAUSE * settled_ms[number]
    ]
    others = _share_of_others(*loads) if len(loads) > 1 else 0.0
    if others > DOUBTFUL_OTHERS:
        doubts.append(f"other programs used {others:.0%} of the machine's processors")
    if left_out_count:
        doubts.append(f"the producer could not send {left_out_count} records that were due")
    return doubts


def find_doubts_of_backlog(steps: Iterable[Mapping[str, object]]) -> list[str]:
    """Return that the first change did not come while the group read a backlog, or that a later one did."""
    doubts = list[str]()
    is_first = True
    for step in steps:
        unread = step["lag_before"]
        if step["name"] == BEFORE or not isinstance(unread, int):
            continue
        if is_first and unread < LEAST_UNREAD:
            left = f"{max(0, unread):,} records were left"
            doubts.append(f"the group had nearly read the backlog before the first change: {left}")
        if not is_first and unread >= LEAST_UNREAD:
            doubts.append(
                f"the group still read the backlog before step {step['number']}: {unread:,} records were left"
            )
        is_first = False
    return doubts


def find_doubts_of_disk(sync_ms: float, write_ms: float, quick_servers: Iterable[str]) -> list[str]:
    """Return that the disk of servers is not as slow as the scenario says.

    `write_ms`: the shortest time of a write to ZooKeeper. `quick_servers`: those whose syncs nothing makes slow.
    """
    doubts = [f"nothing made the syncs of {name} slow" for name in quick_servers]
    if write_ms < sync_ms:
        doubts.append(f"ZooKeeper wrote within {write_ms:g} ms, although a sync takes {sync_ms:g} ms")
    return doubts


def _share_of_others(first: Event, last: Event) -> float:
    """Return the share of all processors that other programs used between two `busy` events."""
    others_us = (last["busy_us"] - first["busy_us"]) - (last["own_us"] - first["own_us"])
    return float(others_us / (last["processors"] * (last["mono_us"] - first["mono_us"])))
