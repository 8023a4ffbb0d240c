"""The contents of a region's nodes (JSON). Foreign bytes are refused with a NodeContentError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zkrebalancer.protocol import fields, paths
from zkrebalancer.protocol.errors import InvalidNameError, NodeContentError
from zkrebalancer.protocol.fields import MAX_PARTITION, TopicPartition
from zkrebalancer.region.limits import DEFAULT_RESET_MS, MAX_MEMBERS, MAX_NAMES, MAX_PIECES, MAX_READ_BYTES

VERSION = 1
RECOVERIES = ("group", "forced")
CHECKPOINT, RESET = "checkpoint", "reset"
ROUND_KINDS = (CHECKPOINT, RESET)
REQUEST_KINDS = ("checkpoint", "reset", "reset-initial", "leave")
UNKNOWN = -1  # a held partition without a position: no record of it was returned yet
MAX_REASON = 200
MAX_CONSUMER_NAME = paths.MAX_NAME_LENGTH + 40  # a client id and a uuid
MAX_EVERY_MS = 86_400_000
MAX_MARK = 400  # bytes of the names of a topic's incarnation
_PARTITION_BYTES = 36  # of one partition in a piece, at most
_MARK_BYTES = MAX_MARK + 20


@dataclass(frozen=True, slots=True)
class Settings:
    """What all members of a region have in common."""

    name: str
    recovery: str
    every_ms: int
    reset_ms: int = DEFAULT_RESET_MS


@dataclass(frozen=True, slots=True)
class Round:
    """A checkpoint or a reset that is under way, and the members that have to answer."""

    id: int
    kind: str
    members: tuple[str, ...]
    leaving: tuple[str, ...] = ()  # of them, those that process nothing more and leave with this checkpoint


@dataclass(frozen=True, slots=True)
class Order:
    """What the leader has decided. Ids of rounds only grow; none is used twice."""

    id: int = 0  # of the last round
    reset: int = 0  # of the last reset; 0: there was none
    complete: int | None = None  # the last complete checkpoint, the start of a reset; None: the initial offsets
    pieces: int = 0  # of its merge
    pending: str | None = None  # why a reset is wanted, until it is ordered
    open: Round | None = None
    members: Mapping[str, int] = field(default_factory=dict)  # name -> id of the transaction that registered it
    leaving: tuple[str, ...] = ()  # of them, those that wait for a last checkpoint
    left: Mapping[str, int] = field(
        default_factory=dict
    )  # registrations that are still there, and will not be admitted

    @property
    def is_resetting(self) -> bool:
        """Whether no record may be processed."""
        return self.open is not None and self.open.kind == RESET


@dataclass(frozen=True, slots=True)
class Contribution:
    """One piece of a member's answer to a round: where it continues with each partition that it holds."""

    round: int
    piece: int
    pieces: int
    consumer: str | None  # its registration in the group; None: an unmodified client
    offsets: Mapping[TopicPartition, int]
    incarnations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Merge:
    """A complete checkpoint, or one piece of it: where each partition continues, and which copy each state is."""

    id: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    incarnations: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, int] = field(default_factory=dict)  # member -> the last checkpoint for which it stored a copy


@dataclass(frozen=True, slots=True)
class Request:
    """What a member or an operator asks of the leader."""

    kind: str
    member: str
    reason: str = ""
    zxid: int = 0  # of the transaction that stored it


@dataclass(frozen=True, slots=True)
class Initial:
    """Where the region has begun to read a partition of one incarnation of its topic."""

    offset: int
    incarnation: str = ""


# ---- settings, requests, initial offsets


def encode_settings(settings: Settings) -> bytes:
    """Encode the content of `region`."""
    return fields.write_document(
        {
            "version": VERSION,
            "name": settings.name,
            "recovery": settings.recovery,
            "every_ms": settings.every_ms,
            "reset_ms": settings.reset_ms,
        }
    )


def decode_settings(content: bytes) -> Settings:
    """Decode the content of `region`."""
    document = _document("region", content)
    recovery = _one_of("region", document, "recovery", RECOVERIES)
    every_ms = fields.integer("region", document, "every_ms", minimum=1, maximum=MAX_EVERY_MS)
    reset_ms = fields.integer("region", document, "reset_ms", minimum=1, maximum=MAX_EVERY_MS)
    return Settings(_name("region", fields.text("region", document, "name")), recovery, every_ms, reset_ms)


def encode_request(request: Request) -> bytes:
    """Encode the content of `requests/<kind>-<number>`."""
    document = {"version": VERSION, "kind": request.kind, "member": request.member, "reason": request.reason}
    return fields.write_document(document)


def decode_request(content: bytes, zxid: int = 0) -> Request:
    """Decode the content of a request; `zxid`: of the transaction that stored it."""
    document = _document("request", content)
    kind = _one_of("request", document, "kind", REQUEST_KINDS)
    reason = fields.text("request", document, "reason")[:MAX_REASON]
    return Request(kind, _name("request", fields.text("request", document, "member")), reason, zxid)


def encode_initial(initial: Initial) -> bytes:
    """Encode the content of `initial/<topic>/<partition>`."""
    return fields.write_document({"version": VERSION, "offset": initial.offset, "incarnation": initial.incarnation})


def decode_initial(content: bytes) -> Initial:
    """Decode the content of an initial offset."""
    document = _document("initial offset", content)
    mark = fields.text("initial offset", document, "incarnation")
    return Initial(fields.integer("initial offset", document, "offset"), _mark("initial offset", mark))


# ---- the order


def encode_order(order: Order) -> bytes:
    """Encode the content of `order`."""
    open_ = order.open
    return fields.write_document(
        {
            "version": VERSION,
            "id": order.id,
            "reset": order.reset,
            "complete": order.complete,
            "pieces": order.pieces,
            "pending": order.pending,
            "open": open_
            and {"id": open_.id, "kind": open_.kind, "members": list(open_.members), "leaving": list(open_.leaving)},
            "members": dict(order.members),
            "leaving": list(order.leaving),
            "left": dict(order.left),
        }
    )


def decode_order(content: bytes) -> Order:
    """Decode the content of `order`."""
    what = "order"
    document = _document(what, content)
    complete = fields.optional_integer(what, document, "complete", minimum=1, maximum=2**62)
    pending = fields.optional_text(what, document, "pending")
    last, reset = (fields.integer(what, document, key, maximum=2**62) for key in ("id", "reset"))
    open_ = _round(document.get("open"))
    if max(reset, complete or 0, 0 if open_ is None else open_.id) > last:  # members would wait for later orders
        raise NodeContentError(f"{what}: names a later round than its last one, {last}")
    return Order(
        id=last,
        reset=reset,
        complete=complete,
        pieces=fields.integer(what, document, "pieces", maximum=MAX_PIECES),
        pending=pending,
        open=open_,
        members=_registrations(what, document, "members"),
        left=_registrations(what, document, "left"),
        leaving=_names(what, document.get("leaving")),
    )


def _registrations(what: str, document: Mapping[str, Any], key: str) -> dict[str, int]:
    found = fields.mapping(what, document, key)
    if len(found) > MAX_MEMBERS:
        raise NodeContentError(f"{what}: {len(found)} {key}, at most {MAX_MEMBERS} are allowed")
    return {_name(what, name): fields.integer(what, found, name) for name in found}


def _round(found: object) -> Round | None:
    what = "order"
    if found is None:
        return None
    if not isinstance(found, dict):
        raise NodeContentError(f"{what}: open must be an object, not {found!r:.80}")
    members, leaving = (_names(what, found.get(key)) for key in ("members", "leaving"))
    kind = _one_of(what, found, "kind", ROUND_KINDS)
    return Round(fields.integer(what, found, "id", minimum=1, maximum=2**62), kind, members, leaving)


# ---- contributions and merges, in pieces


def encode_contribution(part: Contribution) -> bytes:
    """Encode one piece of a contribution."""
    return fields.write_document(
        {
            "version": VERSION,
            "round": part.round,
            "piece": part.piece,
            "pieces": part.pieces,
            "consumer": part.consumer,
            "incarnations": dict(part.incarnations),
            "offsets": _by_topic(part.offsets),
        }
    )


def decode_contribution(content: bytes) -> Contribution:
    """Decode one piece of a contribution."""
    what = "contribution"
    document = _document(what, content)
    consumer = fields.optional_text(what, document, "consumer")
    pieces = fields.integer(what, document, "pieces", minimum=1, maximum=MAX_PIECES)
    return Contribution(
        round=fields.integer(what, document, "round", minimum=1, maximum=2**62),
        piece=fields.integer(what, document, "piece", maximum=pieces - 1),
        pieces=pieces,
        consumer=None if consumer is None else _name(what, consumer, limit=MAX_CONSUMER_NAME),
        offsets=_offsets(what, document),
        incarnations=_marks(what, document),
    )


def encode_merge(part: Merge) -> bytes:
    """Encode one piece of a merge."""
    return fields.write_document(
        {
            "version": VERSION,
            "id": part.id,
            "states": dict(part.states),
            "incarnations": dict(part.incarnations),
            "offsets": _by_topic(part.offsets),
        }
    )


def decode_merge(content: bytes) -> Merge:
    """Decode one piece of a merge."""
    what = "merge"
    document = _document(what, content)
    states = fields.mapping(what, document, "states")
    if len(states) > MAX_NAMES:
        raise NodeContentError(f"{what}: {len(states)} states, at most {MAX_NAMES} are allowed")
    return Merge(
        id=fields.integer(what, document, "id", minimum=1, maximum=2**62),
        offsets=_offsets(what, document),
        incarnations=_marks(what, document),
        states={_name(what, name): fields.integer(what, states, name, minimum=1, maximum=2**62) for name in states},
    )


def merge_pieces(merge: Merge, max_bytes: int) -> list[bytes]:
    """Return a merge as the contents of its nodes, each at most `max_bytes` long unless one entry is longer."""
    parts: list[Merge] = [
        Merge(merge.id, states=dict(some)) for some in _portions(sorted(merge.states.items()), max_bytes, _state_bytes)
    ]
    parts += [
        Merge(merge.id, dict(some), _marks_of(merge.incarnations, some))
        for some in _topic_portions(merge.offsets, max_bytes)
    ]
    return [encode_merge(part) for part in parts or [Merge(merge.id)]]


def joined_merge(parts: Iterable[Merge]) -> Merge:
    """Return the pieces of a merge as one; raises NodeContentError if they are of several."""
    found = list(parts)
    if len({part.id for part in found}) != 1:
        raise NodeContentError(f"merge: pieces of {len({part.id for part in found})} checkpoints")
    offsets: dict[TopicPartition, int] = {}
    states: dict[str, int] = {}
    marks: dict[str, str] = {}
    for part in found:
        offsets.update(part.offsets)
        states.update(part.states)
        marks.update(part.incarnations)
    return Merge(found[0].id, offsets, marks, states)


def contribution_pieces(
    number: int,
    consumer: str | None,
    offsets: Mapping[TopicPartition, int],
    marks: Mapping[str, str],
    max_bytes: int,
    first: int = 0,
) -> list[bytes]:
    """Return an answer to a round as the contents of its nodes; `first`: how many pieces were sent before."""
    some = list(_topic_portions(offsets, max_bytes)) or [[]]
    return [
        encode_contribution(
            Contribution(number, first + index, first + len(some), consumer, dict(one), _marks_of(marks, one))
        )
        for index, one in enumerate(some)
    ]


def _portions(
    entries: Sequence[tuple[Any, int]], max_bytes: int, size: Callable[[Any], int]
) -> Iterator[list[tuple[Any, int]]]:
    """Yield at most MAX_NAMES entries in a list, of an estimated size of at most `max_bytes`, unless one is longer."""
    some: list[tuple[Any, int]] = []
    left = max_bytes
    for entry in entries:
        needed = size(entry)
        if some and (needed > left or len(some) == MAX_NAMES):
            yield some
            some, left = [], max_bytes
        some.append(entry)
        left -= needed
    if some:
        yield some


def _topic_portions(
    offsets: Mapping[TopicPartition, int], max_bytes: int
) -> Iterator[list[tuple[TopicPartition, int]]]:
    """Yield offsets in lists that fit into one piece; each topic's name and incarnation count for each of its lists."""
    some: list[tuple[TopicPartition, int]] = []
    topic, left = None, max_bytes
    for partition, offset in sorted(offsets.items()):
        overhead = 2 * len(partition[0]) + _MARK_BYTES
        needed = _PARTITION_BYTES + (overhead if partition[0] != topic else 0)
        if some and needed > left:
            yield some
            some, left, needed = [], max_bytes, _PARTITION_BYTES + overhead
        some.append((partition, offset))
        topic, left = partition[0], left - needed
    if some:
        yield some


def _state_bytes(entry: tuple[str, int]) -> int:
    return len(entry[0]) + 24


def _marks_of(marks: Mapping[str, str], some: Iterable[tuple[TopicPartition, int]]) -> dict[str, str]:
    return {topic: marks[topic] for topic in sorted({tp[0] for tp, _offset in some}) if topic in marks}


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, []).append([number, offset])
    return found


# ---- what all of them have


def _document(what: str, content: bytes) -> dict[str, Any]:
    document = fields.read_document(what, content, MAX_READ_BYTES)
    fields.require_version(what, document, VERSION)
    return document


def _one_of(what: str, document: Mapping[str, Any], key: str, allowed: Sequence[str]) -> str:
    value = fields.text(what, document, key)
    if value not in allowed:
        raise NodeContentError(f"{what}: {key} is {value!r:.80}, must be one of {', '.join(allowed)}")
    return value


def _name(what: str, name: str, limit: int = paths.MAX_NAME_LENGTH) -> str:
    try:
        return paths.validate_name(what, name, limit)
    except InvalidNameError as error:
        raise NodeContentError(str(error)) from None


def _names(what: str, found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found) or len(found) > MAX_MEMBERS:
        raise NodeContentError(f"{what}: a list of at most {MAX_MEMBERS} names is expected, not {found!r:.80}")
    return tuple(_name(what, name) for name in found)


def _mark(what: str, mark: str) -> str:
    if len(mark) > MAX_MARK:
        raise NodeContentError(f"{what}: an incarnation of {len(mark)} characters, at most {MAX_MARK} are allowed")
    return mark


def _marks(what: str, document: Mapping[str, Any]) -> dict[str, str]:
    found = fields.mapping(what, document, "incarnations")
    return {fields.topic_name(what, name): _mark(what, fields.text(what, found, name)) for name in found}


def _offsets(what: str, document: Mapping[str, Any]) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for name, pairs in fields.mapping(what, document, "offsets").items():
        topic = fields.topic_name(what, name)
        if not isinstance(pairs, list):
            raise NodeContentError(f"{what}: {topic}: a list is expected, not {pairs!r:.80}")
        for pair in pairs:
            number, offset = _pair(what, topic, pair)
            if (topic, number) in offsets:
                raise NodeContentError(f"{what}: {topic}/{number} is named twice")
            offsets[topic, number] = offset
    return offsets


def _pair(what: str, topic: str, pair: object) -> tuple[int, int]:
    if not isinstance(pair, list) or len(pair) != 2 or not all(type(value) is int for value in pair):
        raise NodeContentError(f"{what}: {topic}: [partition, offset] is expected, not {pair!r:.80}")
    number, offset = pair
    if not 0 <= number <= MAX_PARTITION or not UNKNOWN <= offset < 2**63:
        raise NodeContentError(f"{what}: {topic}: [{number!r:.30}, {offset!r:.30}] is not a partition with an offset")
    return number, offset
