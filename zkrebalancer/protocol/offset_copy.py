"""A copy of offsets that the coordinator deleted, in `deleted_offsets/<copy>`, from which an operator can restore them.

The copy and the deletion are one transaction. Its name has the time, for people, and the number that ZooKeeper appends.
Only that number tells which copies are older: a clock that jumps must neither hide a copy nor remove one. In a restored
tree, ZooKeeper counts anew, while copies keep their names: those with numbers that are still to come are the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.numbers import decimal

VERSION = 1
MAX_COPIES = 200  # per group; each has the offsets of at most 500 partitions


@dataclass(frozen=True, slots=True)
class OffsetCopy:
    """Offsets of one topic that were deleted together."""

    topic: str
    incarnation: str  # of the topic that they belong to
    deleted_at_ms: int
    offsets: Mapping[int, int]  # partition -> next offset to read


def encode(copy: OffsetCopy) -> bytes:
    """Encode a copy."""
    return fields.write_document(
        {
            "version": VERSION,
            "topic": copy.topic,
            "incarnation": copy.incarnation,
            "deleted_at_ms": copy.deleted_at_ms,
            "offsets": {str(partition): copy.offsets[partition] for partition in sorted(copy.offsets)},
        }
    )


def decode(content: bytes) -> OffsetCopy:
    """Decode a copy.

    Raises:
        NodeContentError: the message names the key and the fault.

    """
    what = "deleted offsets"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    offsets: dict[int, int] = {}
    for name, offset in fields.mapping(what, document, "offsets").items():
        partition = decimal(name, fields.MAX_PARTITION)
        if partition is None:
            raise NodeContentError(f"{what}: {name!r:.80} is not a partition")
        offsets[partition] = fields.integer(f"{what}: partition {name}", {"offset": offset}, "offset")
    return OffsetCopy(
        topic=fields.topic_name(what, document.get("topic")),
        incarnation=fields.text(what, document, "incarnation"),
        deleted_at_ms=fields.integer(what, document, "deleted_at_ms", maximum=fields.MAX_EPOCH_MS),
        offsets=offsets,
    )


def name_prefix(deleted_at_ms: int) -> str:
    """Return the beginning of a copy's name; ZooKeeper appends a number."""
    return f"{deleted_at_ms}-"


def number_of(name: str) -> int | None:
    """Return ZooKeeper's number in a copy's name; None: not a copy's name."""
    time, dash, number = name.partition("-")
    return decimal(number) if dash and decimal(time) is not None else None


def oldest_first(names: Iterable[str], next_number: int) -> list[str]:
    """Return the names of copies in the order in which they were made; other names are ignored.

    `next_number`: that of the next copy. Those with higher ones were restored from another tree, before all others.
    """
    known = ((number < next_number, number, name) for name in names if (number := number_of(name)) is not None)
    return [name for _is_of_this_tree, _number, name in sorted(known)]


def superfluous(names: Iterable[str], next_number: int) -> list[str]:
    """Return the copies that are too many, oldest first; for the arguments, see `oldest_first`."""
    known = oldest_first(names, next_number)
    return known[: max(0, len(known) - MAX_COPIES)]
