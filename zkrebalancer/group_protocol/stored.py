"""The stored form of a group, as data and as bytes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import chain
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgpack

from zkrebalancer.group_protocol.requests import JoinGroupProtocol
from zkrebalancer.protocol.fields import MAX_TEXT_BYTES

VERSION = 1
MAX_WRITTEN_BYTES = 128 * 1024 * 1024  # of one group, uncompressed; compressing this many takes a quarter of a second
INT32 = range(-(2**31), 2**31)  # all numbers in answers of Kafka's protocol
MAX_CONTENT_BYTES = 2 * MAX_WRITTEN_BYTES  # of a stored group; a guard against a damaged node


class StoredGroupError(Exception):
    """The stored form of a group cannot be read; the text says why."""


class TooLargeGroupError(Exception):
    """A group is too large to be stored."""


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a classic group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A classic group: its generation and, once the leader has assigned (`is_assigned`), what each member got."""

    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    is_assigned: bool
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class StoredPartitions:
    """Partitions of one topic."""

    topic_id: bytes
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredClassicSide:
    """The additional data of a classic member of a KIP-848 group."""

    session_timeout_ms: int
    protocols: tuple[JoinGroupProtocol, ...]


@dataclass(frozen=True, slots=True)
class StoredConsumerMember:
    """A member of a KIP-848 group; `state` is the value of its `ConsumerMemberState`."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    topic_regex: str
    server_assignor: str | None
    epoch: int
    previous_epoch: int
    state: str
    assigned: tuple[StoredPartitions, ...]
    revoking: tuple[StoredPartitions, ...]
    target: tuple[StoredPartitions, ...]
    classic: StoredClassicSide | None
    packed: bytes | None = field(default=None, init=False, repr=False, compare=False)  # made by the first `to_bytes`


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic as it was when the target was computed."""

    name: str
    topic_id: bytes
    partition_count: int


@dataclass(frozen=True, slots=True)
class StoredConsumerGroup:
    """A KIP-848 group: its epoch, that of its target, and each member's position."""

    group_epoch: int
    target_epoch: int
    topics: tuple[StoredTopic, ...]
    members: tuple[StoredConsumerMember, ...]


StoredContent = StoredGroup | StoredConsumerGroup
TYPES: dict[str, type[StoredGroup | StoredConsumerGroup]] = {"classic": StoredGroup, "consumer": StoredConsumerGroup}


def to_bytes(group: StoredContent) -> bytes:
    """Return the content of a group's node. Members' subscriptions are alike, so compression pays.

    A member of a KIP-848 group is packed once: each write has all members, and few of them have changed.

    Raises:
        TooLargeGroupError: it is too large, however well it could be compressed.

    """
    name = next(name for name, kind in TYPES.items() if isinstance(group, kind))
    found = {"version": VERSION, "type": name, **_fields(group)}
    del found["members"]
    packer: Any = msgpack.Packer(default=_fields, autoreset=False)  # type: ignore[attr-defined]  # a C extension
    packer.pack_map_header(len(found) + 1)
    for key, value in found.items():
        packer.pack(key)
        packer.pack(value)
    packer.pack("members")
    packer.pack_array_header(len(group.members))
    parts, left = list[bytes](), MAX_WRITTEN_BYTES
    for part in chain((packer.bytes(),), map(_packed, group.members)):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise TooLargeGroupError(f"more than {MAX_WRITTEN_BYTES} bytes")
    return zlib.compress(b"".join(parts), level=1)


def _packed(member: StoredMember | StoredConsumerMember) -> bytes:
    if isinstance(member, StoredConsumerMember) and member.packed is not None:
        return member.packed
    packed: bytes = msgpack.packb(member, default=_fields)
    if isinstance(member, StoredConsumerMember):
        object.__setattr__(member, "packed", packed)  # not a field of what is stored
    return packed


def _fields(value: Any) -> dict[str, object]:  # noqa: ANN401 -- any class of this module
    """Return the fields of an instance of this module's classes; `asdict` would also copy everything below them."""
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _hints(kind)}


def from_bytes(content: bytes) -> StoredContent:
    """Return the group that `to_bytes` wrote. Unknown keys are ignored.

    Raises:
        StoredGroupError: it cannot be read.

    """
    try:
        found = _unpack(content)
        kind: Any = TYPES[found["type"]]
        group: StoredContent = _reader(kind)(found)
    except (zlib.error, AttributeError, KeyError, TypeError, ValueError) as error:  # msgpack's own are ValueErrors
        raise StoredGroupError(f"the stored group cannot be read: {error!r:.200}") from None
    return group


def _unpack(content: bytes) -> dict[str, Any]:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(content, MAX_CONTENT_BYTES)
    if not inflater.eof:
        raise ValueError("it is truncated, or too large")
    found: dict[str, Any] = msgpack.unpackb(plain)
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r:.20} is not known")
    return found


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.init}


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 -- the types of the fields decide
    """Return what reads a value as `kind`: a class of this module, a tuple of one kind, a kind or None, or plain."""
    if isinstance(kind, type) and is_dataclass(kind):
        fields = [(name, _reader(hint)) for name, hint in _hints(kind).items()]
        return lambda value: kind(**{name: read(value[name]) for name, read in fields})
    if get_origin(kind) is tuple:
        read_part = _reader(get_args(kind)[0])
        return lambda value: tuple(map(read_part, value))
    if get_origin(kind) is UnionType:
        read_present = _reader(get_args(kind)[0])
        return lambda value: None if value is None else read_present(value)

    def read_plain(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, kind):
            raise TypeError(f"{value!r:.40} is no {kind.__name__}")
        if kind is int and value not in INT32:
            raise ValueError(f"{value} fits into no answer")
        if kind is str and len(value.encode()) > MAX_TEXT_BYTES:
            raise ValueError(f"a text of {len(value)} characters fits into no answer")
        return value

    return read_plain
