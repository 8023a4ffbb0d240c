"""Continuing at another offset, because the application wants to, or cannot read a record."""

from __future__ import annotations

from collections.abc import Mapping

from consumer_agent import arguments
from consumer_agent.records import DeserializationError
from consumer_agent.runtime.frontend import Frontend
from zkrebalancer.protocol.fields import TopicPartition

Fetched = Mapping[TopicPartition, int | None]


def seek(frontend: Frontend, positions: Mapping[TopicPartition, int], method: str = "seek") -> None:
    """Continue from other offsets; buffered records of these partitions are dropped."""
    checked = arguments.checked_positions(method, positions)
    shared, finishes = frontend.shared, frontend.config.enable_auto_commit
    moved: dict[TopicPartition, int] = {}

    def move(there: set[TopicPartition]) -> Fetched:
        shared.got_position(there)
        wanted = {partition: checked[partition] for partition in there}
        moved.update(wanted)
        return shared.buffer.seek(wanted, finishes)

    frontend.change(method, checked.keys(), move)
    frontend.note_repositioned(moved, "seek")


def stay_at(frontend: Frontend, error: DeserializationError) -> None:
    """Return neither this record nor those after it before the application seeks; each poll raises the error."""
    shared, partition = frontend.shared, error.partition
    moved: dict[TopicPartition, int] = {}

    def go_back(_known: set[TopicPartition]) -> Fetched:
        if shared.buffer.generations().get(partition) != error.record.generation:
            return {}  # it was lost meanwhile
        if shared.buffer.generation(partition) is not None:  # otherwise it is being stopped
            shared.need_position(partition, error)
        moved[partition] = error.offset
        return shared.buffer.seek(moved, is_finished=False)

    frontend.change("poll", (), go_back)  # it may be lost already: nothing keeps that from a thread of `run`
    frontend.note_repositioned(moved, "interrupt")
