"""What the checkpoints of the examples' regions have counted, in all members' copies together."""

from __future__ import annotations

import json
from pathlib import Path

from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import ABSENT, Content, Get
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Order
from zkrebalancer.runtime.zk import BlockingZk

Counts = dict[str, list[int]]  # by partition: the number of records, and the sum of their offsets


class RegionCounts:
    """A region whose members keep copies in a folder."""

    def __init__(self, zk: BlockingZk, group: str, folder: Path) -> None:
        self.zk, self.group, self.folder = zk, group, folder

    def content(self, kind: str, name: str | None = None) -> bytes:
        reply = self.zk.perform(Get(paths.region(self.group, kind, name)), ABSENT)
        return reply.content if isinstance(reply, Content) else b""

    def order(self) -> Order:
        content = self.content("order")
        return documents.decode_order(content) if content else Order()

    def counts(self) -> Counts:
        """Return the sums of all members' copies of the last complete checkpoint."""
        order = self.order()
        pieces = [self.content("merged", f"{order.complete}.{piece}") for piece in range(order.pieces)]
        if not pieces or not all(pieces):
            return {}
        total: Counts = {}
        for name, number in documents.joined_merge(map(documents.decode_merge, pieces)).states.items():
            file = self.folder / f"{name}-{number}.json"
            if not file.exists():
                return {}  # retired meanwhile
            for partition, (count, offsets) in json.loads(file.read_text()).items():
                before = total.get(partition, [0, 0])
                total[partition] = [before[0] + count, before[1] + offsets]
        return total


def counts_of(partitions: int, records: int) -> Counts:
    """Return what is counted once each partition has this many records."""
    return {str(number): [records, sum(range(records))] for number in range(partitions)}
