"""How often an operator has set a group's offsets: the nodes `lives/<topic>`. Pure.

A sink that keeps offsets of its own ignores those of the group, unless the life of a partition has grown.
"""

from __future__ import annotations

from collections.abc import Mapping

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.cluster_nodes import MAX_COUNTER
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.numbers import decimal

VERSION = 1


def encode(lives: Mapping[int, int]) -> bytes:
    """Encode the life of each partition of a topic; a partition that is not named has the life 0."""
    partitions: dict[str, list[int]] = {}
    for partition, life in sorted(lives.items()):
        partitions.setdefault(str(life), []).append(partition)
    ranges = {life: fields.to_ranges(numbers) for life, numbers in partitions.items()}
    return fields.write_document({"version": VERSION, "lives": ranges})


def decode(content: bytes) -> dict[int, int]:
    """Decode the life of each partition that has one; raises NodeContentError."""
    what = "lives"
    document = fields.read_document(what, content)
    fields.require_version(what, document, VERSION)
    found: dict[int, int] = {}
    for name, partition in fields.topics_from_ranges(what, document.get("lives")):
        life = decimal(name, MAX_COUNTER)
        if life is None:
            raise NodeContentError(f"{what}: {name!r:.80} must be a decimal integer")
        found[partition] = max(life, found.get(partition, 0))
    return found


def following(stored: Mapping[int, int], generation: int | None, first: int) -> int:
    """Return a life above all that this group, or a deleted one of its name, can have had.

    `stored`: the lives of the topic; `generation`: the group's, None if it has none; `first`: the one with which the
    leader would begin. A group that is created again continues with higher generations, and so does a restored one
    (decision 0026).
    """
    return max(max(stored.values(), default=0), first if generation is None else generation) + 1
