"""A state of each member's own, counted and stored as copies; and what the copies of a checkpoint have together."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from consumer_agent.region import Checkpoint
from tests.exactly_once.fates import Fates
from tests.exactly_once.judging import Judgement, Log
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order
from zkrebalancer.runtime.zk import BlockingZk

READINGS = 20  # a copy may be retired while it is read
PAUSE_S = 0.1


class Count(NamedTuple):
    """What was counted of a partition's records."""

    records: int = 0
    total: int = 0  # the sum of their numbers
    last: int = -1  # the last number
    out_of_order: int = 0  # numbers that were not above the one before

    def with_record(self, number: int) -> Count:
        """Return this count and one more record."""
        return Count(self.records + 1, self.total + number, number, self.out_of_order + (number <= self.last))

    def with_other(self, other: Count) -> Count:
        """Return the counts of two members together."""
        out_of_order = self.out_of_order + other.out_of_order
        return Count(self.records + other.records, self.total + other.total, max(self.last, other.last), out_of_order)


Counts = dict[int, Count]  # by partition


@dataclass(slots=True)
class CountedState:
    """The counts of one member, whose copies are files `NAME-NUMBER.json`."""

    folder: Path
    name: str
    fates: Fates
    counts: Counts = field(default_factory=dict)

    def add(self, partition: int, number: int) -> None:
        """Count a record."""
        self.counts[partition] = self.counts.get(partition, Count()).with_record(number)

    def store(self, checkpoint: Checkpoint) -> None:
        """Store the counts under the number of a checkpoint."""
        self.fates.reach("contribute")
        file = self._file(checkpoint)
        file.with_suffix(".new").write_text(json.dumps(self.counts))
        file.with_suffix(".new").replace(file)
        self.fates.reach("contributed")

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Become as in a checkpoint, None: as at the beginning."""
        self.fates.reach("reset")
        self.counts = {} if checkpoint is None else _read(self._file(checkpoint))
        self.fates.reach("restored")

    def retire(self, checkpoint: Checkpoint) -> None:
        """Delete earlier copies."""
        self.fates.reach("retire")
        for file in self.folder.glob(f"{self.name}-*.json"):
            name, _dash, number = file.stem.rpartition("-")
            if name == self.name and int(number) < (checkpoint.number or 0):
                file.unlink()
        self.fates.reach("retired")

    def _file(self, checkpoint: Checkpoint) -> Path:
        return self.folder / f"{self.name}-{checkpoint.number}.json"


class NeverReset(CountedState):
    """A control: a process that has counted something keeps it in a reset."""

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Begin as in a checkpoint."""
        if not self.counts:
            super().restore(checkpoint)


def _read(file: Path) -> Counts:
    return {int(partition): Count(*count) for partition, count in json.loads(file.read_text()).items()}


def read_order(zk: BlockingZk, group: str) -> Order:
    """Return what the leader has decided for the group's region."""
    reply = zk.perform(Get(paths.region(group, "order")), ABSENT)
    return documents.decode_order(reply.content) if isinstance(reply, Content) else Order()


@dataclass(frozen=True, slots=True)
class OwnStates:
    """The copies of the members of all groups, in one folder."""

    zk: BlockingZk
    folder: Path

    @property
    def address(self) -> str:
        """The folder."""
        return str(self.folder)

    def next_offsets(self, group: str) -> dict[int, int]:
        """Return how many records of each partition are counted in the last complete checkpoint."""
        with suppress(RebalancerError):  # ZooKeeper is away
            return {number: count.records for number, count in self.total(group).items()}
        return {}

    def has_doubles(self, group: str) -> bool:
        """Whether a member has counted a record again."""
        with suppress(RebalancerError):  # ZooKeeper is away
            return any(count.out_of_order for count in self.total(group).values())
        return False

    def judge(self, group: str, log: Log) -> Judgement:
        """Compare the last complete checkpoint with the log."""
        found, left = self.total(group), READINGS
        while not found and left:
            time.sleep(PAUSE_S)
            found, left = self.total(group), left - 1
        return judge(log, found)

    def total(self, group: str) -> Counts:
        """Return the counts of the last complete checkpoint; nothing if it is retired meanwhile."""
        order = read_order(self.zk, group)
        names = [f"{order.complete}.{piece}" for piece in range(order.pieces)]
        replies = [self.zk.perform(Get(paths.region(group, "merged", name)), ABSENT) for name in names]
        pieces = [documents.decode_merge(reply.content) for reply in replies if isinstance(reply, Content)]
        if not names or len(pieces) < len(names):
            return {}
        sums: Counts = {}
        for name, number in documents.joined_merge(pieces).states.items():
            try:
                copy = _read(self.folder / f"{name}-{number}.json")
            except FileNotFoundError:
                return {}
            for partition, count in copy.items():
                sums[partition] = sums.get(partition, Count()).with_other(count)
        return sums


def judge(log: Log, found: Mapping[int, Count]) -> Judgement:
    """Compare the counts of a state with the log of a topic. Pure."""
    judgement = Judgement(
        expected=sum(map(len, log.values())),
        stored=sum(count.records for count in found.values()),
        out_of_order=sum(count.out_of_order for count in found.values()),
    )
    for partition in log.keys() | found.keys():
        numbers, count = log.get(partition, ()), found.get(partition, Count())
        judgement.lost += max(0, len(numbers) - count.records)
        judgement.doubled += max(0, count.records - len(numbers))
        judgement.wrong += count.records == len(numbers) and count.total != sum(numbers)
    return judgement
