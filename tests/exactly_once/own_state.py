"""A state of each member's own, counted and stored as copies; and what the copies of a checkpoint have together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumer_agent.region import Checkpoint
from tests.exactly_once.fates import Fates
from tests.exactly_once.judging import Judgement, Log
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order
from zkrebalancer.runtime.zk import BlockingZk

Counts = dict[int, list[int]]  # of each partition: how many records, and the sum of their numbers


@dataclass(slots=True)
class CountedState:
    """The counts of one member, whose copies are files `NAME-NUMBER.json`."""

    folder: Path
    name: str
    fates: Fates
    counts: Counts = field(default_factory=dict)

    def add(self, partition: int, number: int) -> None:
        """Count a record."""
        count = self.counts.setdefault(partition, [0, 0])
        count[0] += 1
        count[1] += number

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
        found = {} if checkpoint is None else json.loads(self._file(checkpoint).read_text())
        self.counts = {int(partition): count for partition, count in found.items()}
        self.fates.reach("restored")

    def retire(self, checkpoint: Checkpoint) -> None:
        """Delete earlier copies."""
        for file in self.folder.glob(f"{self.name}-*.json"):
            if int(file.stem.rpartition("-")[2]) < (checkpoint.number or 0):
                file.unlink()

    def _file(self, checkpoint: Checkpoint) -> Path:
        return self.folder / f"{self.name}-{checkpoint.number}.json"


def read_order(zk: BlockingZk, group: str) -> Order:
    """Return what the leader has decided for the group's region."""
    reply = zk.perform(Get(paths.region(group, "order")), ABSENT)
    return documents.decode_order(reply.content) if isinstance(reply, Content) else Order()


def total(zk: BlockingZk, group: str, folder: Path) -> Counts:
    """Return the sums of all members' copies of the last complete checkpoint; nothing if it is retired meanwhile."""
    order = read_order(zk, group)
    names = [f"{order.complete}.{piece}" for piece in range(order.pieces)]
    replies = [zk.perform(Get(paths.region(group, "merged", name)), ABSENT) for name in names]
    pieces = [documents.decode_merge(reply.content) for reply in replies if isinstance(reply, Content)]
    if not names or len(pieces) < len(names):
        return {}
    sums: Counts = {}
    for name, number in documents.joined_merge(pieces).states.items():
        try:
            copy = json.loads((folder / f"{name}-{number}.json").read_text())
        except FileNotFoundError:
            return {}
        for partition, (count, numbers) in copy.items():
            before = sums.setdefault(int(partition), [0, 0])
            before[0] += count
            before[1] += numbers
    return sums


def wanted(log: Log) -> Counts:
    """Return the counts of all records."""
    return {partition: [len(numbers), sum(numbers)] for partition, numbers in log.items() if numbers}


def judge(log: Log, found: Mapping[int, list[int]]) -> Judgement:
    """Compare the counts of a state with the log of a topic. Pure."""
    expected = wanted(log)
    judgement = Judgement(expected=sum(map(len, log.values())), stored=sum(count for count, _ in found.values()))
    for partition in expected.keys() | found.keys():
        (count, numbers), (records, right) = found.get(partition, [0, 0]), expected.get(partition, [0, 0])
        judgement.lost += max(0, records - count)
        judgement.doubled += max(0, count - records)
        judgement.wrong += count == records and numbers != right
    return judgement
