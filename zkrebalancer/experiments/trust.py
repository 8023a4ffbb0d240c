"""Whether a run can be trusted: not if the machine stalled, other programs used it, or records were sent late."""

from __future__ import annotations

import time
from collections.abc import Iterable

from zkrebalancer.experiments.repeating import Repeating
from zkrebalancer.observe.events import EventLog
from zkrebalancer.observe.reading import Event

BEAT_S = 0.05
STALL_S = 0.25  # longer pauses become events
DOUBTFUL_SHARE = 0.2  # of the processors, used by other programs
DOUBTFUL_GAP_MS = 500  # the measured times are of the same order


class Heartbeat(Repeating):
    """A thread that wakes up periodically and writes an event when it woke up late; a context manager."""

    def __init__(self, log: EventLog) -> None:
        """Write to `log`."""
        super().__init__(self._beat, BEAT_S)
        self._log = log
        self._last_s = time.monotonic()

    def _beat(self) -> None:
        gap_s = time.monotonic() - self._last_s
        self._last_s += gap_s
        if gap_s > STALL_S:
            self._log.write("stalled", role="machine", gap_ms=round(gap_s * 1_000), left_out_count=0)


def find_doubts(events: Iterable[Event]) -> list[str]:
    """Return why the figures between the first and the last step are doubtful, one line for each reason."""
    late: dict[str, list[int]] = {}
    left_out_count = 0
    is_measured = False
    loads = list[Event]()
    for event in events:
        if event["kind"] == "step":
            is_measured = event["name"] != "end"
        elif event["kind"] == "busy" and is_measured:
            loads = [*loads[:1], event]
        elif event["kind"] == "stalled" and is_measured:
            left_out_count += event.get("left_out_count", 0)
            if event["gap_ms"] >= DOUBTFUL_GAP_MS:
                late.setdefault(event["role"], []).append(event["gap_ms"])
    doubts = [
        f"the {role} stalled {len(gaps)} times for at least {DOUBTFUL_GAP_MS} ms, up to {max(gaps)} ms"
        for role, gaps in late.items()
    ]
    others = _share_of_others(*loads) if len(loads) > 1 else 0.0
    if others > DOUBTFUL_SHARE:
        doubts.append(f"other programs used {others:.0%} of the machine's processors")
    if left_out_count:
        doubts.append(f"the producer could not send {left_out_count} records that were due")
    return doubts


def _share_of_others(first: Event, last: Event) -> float:
    """Return the share of all processors that other programs used between two `busy` events."""
    others_us = (last["busy_us"] - first["busy_us"]) - (last["own_us"] - first["own_us"])
    return float(others_us / (last["processors"] * (last["mono_us"] - first["mono_us"])))
