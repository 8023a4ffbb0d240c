"""An offset that Kafka does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from consumer_agent.errors import NoOffsetError
from consumer_agent.runtime.record_buffer import RecordBuffer
from zkrebalancer.protocol.fields import TopicPartition


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The wanted offset, Kafka's offsets, and the next position by `auto_offset_reset`; None if that is `none`."""

    partition: TopicPartition
    offset: int
    earliest: int
    latest: int  # the offset after the last record
    goes_on_at: int | None
    is_cut: bool = False  # Kafka has lost what was read from `latest` on; it may have other records there by now

    @property
    def error(self) -> NoOffsetError:
        """What to raise until the application seeks."""
        return NoOffsetError(str(self), self.partition, self.offset, self.earliest, self.latest)

    def __str__(self) -> str:
        """Describe it in one line."""
        topic, number = self.partition
        text = f"{topic}/{number}: Kafka has offsets {self.earliest} to {self.latest}, not {self.offset}"
        if self.is_cut:
            lost = self.offset - self.latest
            text = f"{topic}/{number}: Kafka has lost {lost} offsets that were read, from {self.latest} on"
        if self.goes_on_at is None:
            return f"{text}; auto_offset_reset is none"
        return f"{text}; continuing at {self.goes_on_at}{self._consequence(self.goes_on_at)}"

    def _consequence(self, goes_on_at: int) -> str:
        """Count offsets: some of them may have no record, such as a transaction's marker."""
        if goes_on_at > self.offset:
            return f", which skips {goes_on_at - self.offset} offsets"
        again = min(self.offset, self.latest) - goes_on_at
        return f", which reads {again} offsets again" if again > 0 else ""


class Ends(NamedTuple):
    """Kafka's answer about a partition: its ends, and where `auto_offset_reset` begins. None: no answer, or `none`."""

    earliest: int | None
    latest: int | None
    begins: int | None


def place(
    partition: TopicPartition, position: int, ends: Ends, kept: int | None, *, begins_anywhere: bool
) -> int | OutOfRange:
    """Return where to fetch a partition again, after Kafka has refused to serve `position`.

    `kept`: the log was cut at this offset, and what follows is not what was read. Reading goes on there, unless
    `auto_offset_reset` is `none`: from the beginning, all would be read again, and new records would be skipped at the
    end, or at `position`, which may exist again.
    """
    if kept is not None and kept < position:
        earliest = kept if ends.earliest is None else min(ends.earliest, kept)
        return OutOfRange(partition, position, earliest, kept, kept if begins_anywhere else None, is_cut=True)
    if ends.earliest is None or ends.latest is None or (begins_anywhere and ends.begins is None):
        return position  # no answer
    if ends.earliest <= position <= ends.latest:
        return position  # the refusal belonged to an earlier start
    return OutOfRange(partition, position, ends.earliest, ends.latest, ends.begins)


def due(reported: Mapping[TopicPartition, int | None], buffer: RecordBuffer) -> list[TopicPartition]:
    """Return the partitions whose reports are to be handled now; `reported` says where a log was cut, if it was.

    What was fetched before is returned first, as Kafka had it. If the log was cut, Kafka may have lost some of that.
    """
    wanted = buffer.fetched() if reported else {}
    return [tp for tp, kept in reported.items() if kept is not None or not _is_retained(tp, wanted, buffer)]


def take_due(reported: dict[TopicPartition, int | None], buffer: RecordBuffer) -> dict[TopicPartition, int | None]:
    """Take the reports that are due; drop what was fetched of logs that were cut, to fetch what Kafka has kept again.

    Nothing may be put into the buffer meanwhile.
    """
    taken = {partition: reported.pop(partition) for partition in due(reported, buffer)}
    wanted = buffer.fetched() if taken else {}
    for partition, kept in taken.items():
        if kept is not None and _is_retained(partition, wanted, buffer):
            buffer.reset(partition, wanted[partition])
    return taken


def _is_retained(partition: TopicPartition, wanted: Mapping[TopicPartition, int], buffer: RecordBuffer) -> bool:
    """Whether something of a partition is fetched and not returned; `wanted`: from where, if nothing of it were."""
    return wanted.get(partition) not in {None, buffer.next_offset(partition)}
