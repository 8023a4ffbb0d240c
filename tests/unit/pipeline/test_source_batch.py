"""A batch query of a group that is read, and whose topics are written, meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

import pytest

from zkrebalancer.pipeline.source import batch
from zkrebalancer.pipeline.source.batch import ConsumerGroupReader
from zkrebalancer.pipeline.source.options import parse
from zkrebalancer.pipeline.source.stream import RangesPartition
from zkrebalancer.protocol.fields import TopicPartition

PARTITION = ("t", 0)


class GrowingLogs:
    """A log that has a record more whenever it is asked."""

    end = 10

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partitions(self, _topics: Collection[str]) -> list[TopicPartition]:
        return [PARTITION]

    def offsets(self, partitions: Collection[TopicPartition], _moment: int) -> dict[TopicPartition, int]:
        self.end += bool(partitions)
        return dict.fromkeys(partitions, self.end)


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_comes_while_a_batch_is_planned_is_no_loss(monkeypatch: pytest.MonkeyPatch, *, is_stored: bool) -> None:
    """In `ConsumerGroupReader.partitions`, ask for the ends first: members may commit beyond them meanwhile."""
    logs = GrowingLogs()
    monkeypatch.setattr(batch, "Logs", lambda _options: logs)
    monkeypatch.setattr(
        ConsumerGroupReader, "_stored", lambda _self, _logs, asked: logs.offsets(asked, 0) if is_stored else {}
    )
    required = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g", "topics": "t"}
    given = {"startingOffsets": "latest", "ignoreKafkaOffsets": "true", "minPartitions": "1"}
    (task,) = ConsumerGroupReader(parse({**required, **given})).partitions()
    assert isinstance(task, RangesPartition)
    assert [(one.begin, one.end) for one in task.ranges] == [(11, 12)]
