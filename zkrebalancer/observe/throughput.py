"""Measures how many records a group reads around each step of an experiment, and how far it falls behind. Pure.

For runs with one group. Records that are delivered again do not count. The lag is the number of records that were
acknowledged to the producer and not yet delivered to the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zkrebalancer.observe.measures import END
from zkrebalancer.observe.reading import Event
from zkrebalancer.protocol.fields import TopicPartition

SLICE_US = 100_000
SLICES_BEFORE = 10  # the lag before a step is the highest of the second before it
SLICES_PER_S = 10
USUAL_S = 0.2  # a lag that rises by the records of this time is usual: the producer reports as often
Throughput = dict[str, int | list[int] | None]


@dataclass(slots=True)
class _Window:
    began_us: int
    lag_before: int
    delivered: list[int] = field(default_factory=list)  # records in each slice
    lags: list[int] = field(default_factory=list)  # the highest of each slice
    produced: int = 0


class _Run:
    def __init__(self) -> None:
        self.windows: list[tuple[int, _Window]] = []  # by the number of their step
        self._open: _Window | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}
        self._lag = 0
        self._recent: list[tuple[int, int]] = []  # time, lag: of the last second

    def apply(self, event: Event) -> None:
        match event["kind"]:
            case "step":
                self._step(event)
            case "produced":
                count = self._advance(self._ends, event)
                self._change(count, event["mono_us"])
                if self._open is not None:
                    self._open.produced += count
            case "delivered":
                count = self._advance(self._read, event)
                self._change(-count, event["mono_us"])
                if self._open is not None:
                    self._slice(self._open, event["mono_us"])
                    self._open.delivered[-1] += count

    def _step(self, event: Event) -> None:
        now_us = event["mono_us"]
        if self._open is not None:
            self._slice(self._open, now_us)
        self._forget(now_us)
        lag = max([self._lag, *(lag for _at_us, lag in self._recent)])
        self._open = None if event["name"] == END else _Window(now_us, lag)
        if self._open is not None:
            self._slice(self._open, now_us)
            self.windows.append((event["number"], self._open))

    @staticmethod
    def _advance(known: dict[TopicPartition, int], event: Event) -> int:
        """Return how many records are new."""
        partition, end = (event["topic"], event["partition"]), int(event["last_offset"]) + 1
        begin = known.get(partition, 0)
        known[partition] = max(begin, end)
        return max(0, end - begin)

    def _change(self, by: int, now_us: int) -> None:
        if self._open is not None:
            self._slice(self._open, now_us)
            self._open.lags[-1] = max(self._open.lags[-1], self._lag + by)
        self._lag += by
        self._recent.append((now_us, self._lag))
        if now_us - self._recent[0][0] > 2 * SLICES_BEFORE * SLICE_US:
            self._forget(now_us)

    def _forget(self, now_us: int) -> None:
        since_us = now_us - SLICES_BEFORE * SLICE_US
        self._recent = [(at_us, lag) for at_us, lag in self._recent if at_us >= since_us]

    def _slice(self, window: _Window, now_us: int) -> None:
        """Begin the slices up to now; each begins with the present lag."""
        missing = (now_us - window.began_us) // SLICE_US + 1 - len(window.lags)
        window.lags += [self._lag] * missing
        window.delivered += [0] * missing


def throughput(events: Iterable[Event]) -> dict[int, Throughput]:
    """Return the figures of each step by its number; `events` must be sorted by `mono_us`.

    `delivered_per_s`: records of each full second from the step's begin on; `delivered_per_s_min`: the fewest in any
    second, begun at any tenth of one; `produced_per_s`: on average. `lag_before`, `lag_max`: in records;
    `lag_max_per_s`: the highest of each full second. `lag_back_ms`: from the step until the lag is again what it was
    before, up to the records of USUAL_S, for at least a second; 0 if it did not rise, None if it did not happen.
    """
    run = _Run()
    for event in events:
        run.apply(event)
    return {number: _figures(window) for number, window in run.windows}


def _figures(window: _Window) -> Throughput:
    counts = window.delivered[:-1]  # the last slice is not full
    seconds = [sum(counts[at : at + SLICES_PER_S]) for at in range(len(counts) - SLICES_PER_S + 1)]
    produced_per_s = window.produced * SLICES_PER_S // max(1, len(counts))
    return {
        "delivered_per_s": seconds[::SLICES_PER_S],
        "delivered_per_s_min": min(seconds, default=None),
        "produced_per_s": produced_per_s,
        "lag_before": window.lag_before,
        "lag_max": max(window.lags),
        "lag_max_per_s": [max(window.lags[at : at + SLICES_PER_S]) for at in range(0, len(seconds), SLICES_PER_S)],
        "lag_back_ms": _back_ms([lag > window.lag_before + produced_per_s * USUAL_S for lag in window.lags]),
    }


def _back_ms(is_behind: list[bool]) -> int | None:
    """Return when the group has caught up: from there on, it is not behind in any slice of a second."""
    if not any(is_behind):
        return 0
    begin = is_behind.index(True)
    calm = (at for at in range(begin, len(is_behind)) if not any(is_behind[at : at + SLICES_PER_S]))
    return next((at * SLICE_US // 1_000 for at in calm), None)
