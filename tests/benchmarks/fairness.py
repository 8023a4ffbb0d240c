"""`python -m tests.benchmarks.fairness [PICTURE.svg]`: effect and cost of the polling heuristics under skewed rates.

The real buffer runs in virtual time, between a model of Kafka's client and an application that takes time for each
record. In the model, up to 16 MB of fetched records wait in one queue in the order of the answers; an answer has up to
1 MB of each fetched partition; pausing a partition drops its queued records. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import mean, median

import matplotlib as mpl
from matplotlib.figure import Figure

from consumer_agent.kafka.fetcher import MAX_ROUND_RECORDS
from consumer_agent.kafka.messages import MESSAGE_OVERHEAD_BYTES
from consumer_agent.runtime.buffer_limits import MANY_RECORDS, MAX_BUFFERED_BYTES, MIN_BUFFERED_RECORDS
from consumer_agent.runtime.record_buffer import BufferSettings, Fairness, Prefetch, RecordBuffer
from zkrebalancer.protocol.fields import TopicPartition

QUEUE_BYTES = 16 * 1024 * 1024
ANSWER_BYTES = 1024 * 1024  # per partition
ANSWER_S = 0.005
RECORD_BYTES = 1_000
PARTITIONS = 12
LIMIT = 500
DURATION_S = 60.0
BACKLOG = 10_000_000
HARMONIC = sum(1 / n for n in range(1, PARTITIONS + 1))
DRAWN_S = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """The rate of records per partition; a cold partition needs less than an equal share of the application's time."""

    name: str
    rates: tuple[float, ...]
    application_rate: float = 5_000.0

    @property
    def cold(self) -> frozenset[int]:
        return frozenset(n for n, rate in enumerate(self.rates) if rate < self.application_rate / PARTITIONS)


LOADS = (
    Load("one backlog", (inf, *[20.0] * (PARTITIONS - 1))),
    Load("four backlogs", (*[inf] * 4, *[20.0] * (PARTITIONS - 4))),
    Load(
        "rates of 1, 1/2, 1/3 …, overloaded",
        tuple(7_500 / HARMONIC / n for n in range(1, PARTITIONS + 1)),
    ),
)


@dataclass(frozen=True, slots=True)
class Produced:
    """A record, as the buffer needs it."""

    number: int
    at_s: float

    def offset(self) -> int:
        return self.number


@dataclass(slots=True)
class Client:
    """Model of Kafka's client and the logs it reads."""

    load: Load
    queue: deque[tuple[int, list[Produced]]] = field(default_factory=deque)
    queued: int = 0
    fetched: int = 0
    positions: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    held_back: frozenset[TopicPartition] = frozenset()
    answer_at_s: float = 0.0

    def fetch(self, now_s: float) -> None:
        """Receive an answer if one is due and the queue has room."""
        if now_s < self.answer_at_s or self.queued * RECORD_BYTES >= QUEUE_BYTES:
            return
        self.answer_at_s = now_s + ANSWER_S
        for number in range(PARTITIONS):
            if ("t", number) not in self.held_back:
                begin = self.positions[number]
                end = min(self._end(number, now_s), begin + ANSWER_BYTES // RECORD_BYTES)
                if end > begin:
                    self.queue.append((number, [self._record(number, offset) for offset in range(begin, end)]))
                    self.positions[number] = end
                    self.queued += end - begin
                    self.fetched += end - begin

    def _end(self, number: int, now_s: float) -> int:
        return int(min(BACKLOG, now_s * self.load.rates[number])) if now_s else 0

    def _record(self, number: int, offset: int) -> Produced:
        return Produced(offset, (offset + 1) / self.load.rates[number])

    def hold_back(self, partitions: frozenset[TopicPartition]) -> None:
        for number in (number for _, number in partitions - self.held_back):
            dropped = [records for queued, records in self.queue if queued == number]
            if dropped:
                self.positions[number] = dropped[0][0].number
            self.queue = deque(entry for entry in self.queue if entry[0] != number)
            self.queued -= sum(map(len, dropped))
        self.held_back = partitions

    def consume(self, count: int) -> Iterator[tuple[int, list[Produced]]]:
        while self.queue and count:
            number, records = self.queue.popleft()
            if len(records) > count:
                self.queue.appendleft((number, records[count:]))
                records = records[:count]
            count -= len(records)
            self.queued -= len(records)
            yield number, records


@dataclass(slots=True)
class Measured:
    """One run: samples over time, and the waits of cold partitions' records until they were returned."""

    times_s: list[float] = field(default_factory=list)
    retained: list[int] = field(default_factory=list)
    longest_waits_s: list[float] = field(default_factory=list)  # in each batch
    waits_s: list[float] = field(default_factory=list)
    returned: int = 0
    fetched: int = 0
    partition_counts: list[int] = field(default_factory=list)  # in each batch

    def drawn(self, samples: Sequence[float]) -> list[float]:
        """Return the highest sample of each interval."""
        highest = [0.0] * (int(max(self.times_s) / DRAWN_S) + 1)
        for time_s, sample in zip(self.times_s, samples, strict=True):
            highest[int(time_s / DRAWN_S)] = max(highest[int(time_s / DRAWN_S)], sample)
        return highest


def run(load: Load, fairness: Fairness, prefetch: Prefetch, duration_s: float) -> Measured:
    """Poll for `duration_s` of virtual time."""
    least = MIN_BUFFERED_RECORDS if prefetch is Prefetch.TOTAL else MANY_RECORDS
    buffer = RecordBuffer(BufferSettings(LIMIT, least, MAX_BUFFERED_BYTES, fairness, prefetch))
    for number in range(PARTITIONS):
        buffer.admit(("t", number), 1, 0)
    client, measured, now_s = Client(load), Measured(), 0.0
    while now_s < duration_s:
        client.fetch(now_s)
        _fill(buffer, client, now_s)
        measured.times_s.append(now_s)
        measured.retained.append(buffer.record_count)
        runs = buffer.take(LIMIT)
        count = sum(len(part.messages) for part in runs)
        waits_s = [now_s - record.at_s for part in runs if part.partition in load.cold for record in part.messages]
        measured.waits_s += waits_s
        measured.longest_waits_s.append(max(waits_s, default=0.0))
        measured.partition_counts.append(len(runs))
        measured.returned += count
        now_s += count / load.application_rate if count else ANSWER_S
    measured.fetched = client.fetched
    return measured


def _fill(buffer: RecordBuffer, client: Client, now_s: float) -> None:
    """Fetch in rounds while there are room and records."""
    while True:
        client.hold_back(buffer.held_back())
        client.fetch(now_s)
        came = list(client.consume(min(buffer.room, MAX_ROUND_RECORDS)))
        if not came:
            return
        for number, records in came:
            buffer.put(("t", number), records, len(records) * (RECORD_BYTES + MESSAGE_OVERHEAD_BYTES))


COLUMNS = (
    "load",
    "fairness",
    "prefetch",
    "wait in cold partitions, median",
    "longest",
    "partitions in a batch",
    "retained, mean",
    "max",
    "fetched per returned record",
)
COLOURS = {
    (Fairness.GREEDY, Prefetch.TOTAL): "tab:blue",
    (Fairness.PROPORTIONAL, Prefetch.TOTAL): "tab:cyan",
    (Fairness.GREEDY, Prefetch.PER_PARTITION): "tab:red",
    (Fairness.PROPORTIONAL, Prefetch.PER_PARTITION): "tab:orange",
}


def draw(results: dict[tuple[Load, Fairness, Prefetch], Measured], path: Path) -> None:
    """Draw, over time, the longest waits of returned records and the number of retained records."""
    mpl.rcParams["svg.hashsalt"] = "zkrebalancer"  # equal figures give equal files
    figure = Figure(figsize=(13, 8))
    panels = figure.subplots(2, len(LOADS), sharex=True, sharey="row")
    for column, load in enumerate(LOADS):
        for (fairness, prefetch), colour in COLOURS.items():
            measured = results[load, fairness, prefetch]
            label = f"{fairness.value}, {prefetch.value}"
            times_s = [step * DRAWN_S for step in range(int(max(measured.times_s) / DRAWN_S) + 1)]
            style = "-" if fairness is Fairness.GREEDY else "--"
            panels[0, column].plot(
                times_s, measured.drawn(measured.longest_waits_s), style, color=colour, label=label, lw=0.8
            )
            panels[1, column].plot(times_s, measured.drawn(measured.retained), style, color=colour, label=label, lw=0.8)
        panels[0, column].set(title=load.name)
        panels[1, column].set(xlabel="seconds", yscale="log")
    panels[0, 0].set_ylabel("longest wait of a cold partition's record, s")
    panels[1, 0].set_ylabel("retained records")
    panels[0, 0].legend()
    figure.suptitle(f"{PARTITIONS} partitions, limit {LIMIT}, records of 1 kB, an application of 5,000 records/s")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Run all combinations, print the table, and draw if a path is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, nargs="?", metavar="PICTURE.svg")
    parser.add_argument("--seconds", type=float, default=DURATION_S, help="virtual time per row")
    arguments = parser.parse_args()
    results: dict[tuple[Load, Fairness, Prefetch], Measured] = {}
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for load in LOADS:
        for fairness, prefetch in COLOURS:
            measured = results[load, fairness, prefetch] = run(load, fairness, prefetch, arguments.seconds)
            amplification = measured.fetched / measured.returned
            print(
                f"| {load.name} | {fairness.value} | {prefetch.value} | {median(measured.waits_s):.2f} s "
                f"| {max(measured.waits_s):.2f} s | {mean(measured.partition_counts):.1f} "
                f"| {mean(measured.retained):,.0f} | {max(measured.retained):,} | {amplification:.2f} |"
            )
    if arguments.picture is not None:
        draw(results, arguments.picture)


if __name__ == "__main__":
    main()
