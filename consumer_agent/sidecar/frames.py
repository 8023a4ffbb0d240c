"""The frames between the agent and its child, as JSON lines or length-prefixed msgpack. Pure.

`docs/how-to/sidecar.md` describes the frames. A codec keeps the beginning of an incomplete frame, so each child needs
its own codec.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack

from consumer_agent.errors import ConsumerError
from consumer_agent.records import Record
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition

MAX_FRAME_BYTES = 1_000_000  # of a frame that the child writes; others are as large as their records
LENGTH_BYTES = 4  # big-endian, unsigned, without itself
QUOTED_CHARACTERS = 200
MAX_REASON_CHARACTERS = 1_000  # of a failure, which goes into the log and into a header of the dead letter


class FrameError(ConsumerError):
    """The child wrote something that is not a frame; the text quotes it."""


@dataclass(frozen=True, slots=True)
class Ack:
    """All records of the partition up to `offset`, inclusive, are done."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A record could not be processed."""

    partition: TopicPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Revoked:
    """The child has released the partitions."""

    partitions: frozenset[TopicPartition]


Frame = Ack | Fail | Revoked


class Codec(Protocol):
    """A format of frames; keeps what a child has written of the next frame."""

    _rest: bytes = b""

    def record(self, record: Record) -> bytes:
        """Encode a record for the child."""
        return self._written({"record": self._document(record)})

    def revoke(self, partitions: Iterable[TopicPartition]) -> bytes:
        """Encode the notice that the child is about to lose partitions."""
        return self._written({"revoke": _by_topic(partitions)})

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add what the child has written; yield the complete frames.

        Raises:
            FrameError: something is not a frame.

        """
        return self._frames(self._rest + data)

    def _written(self, document: dict[str, Any]) -> bytes: ...

    def _document(self, record: Record) -> dict[str, Any]: ...

    def _frames(self, data: bytes) -> Iterator[Frame]: ...


class JsonLines(Codec):
    """One JSON object per line; keys, values and headers in base64."""

    def _written(self, document: dict[str, Any]) -> bytes:
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    def _document(self, record: Record) -> dict[str, Any]:
        return record_document(record)

    def _frames(self, data: bytes) -> Iterator[Frame]:
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            try:
                document = fields.read_document("frame", line)
            except NodeContentError as error:
                raise _no_frame("line", str(error), line) from None
            yield _frame("line", document, line)
        if len(self._rest) > MAX_FRAME_BYTES:
            raise _no_frame("line", f"longer than {MAX_FRAME_BYTES} bytes", self._rest)


class LengthPrefixed(Codec):
    """The length of a frame, then the frame as a msgpack map; keys, values and headers are bytes."""

    def _written(self, document: dict[str, Any]) -> bytes:
        body: bytes = msgpack.packb(document)
        return len(body).to_bytes(LENGTH_BYTES, "big") + body

    def _document(self, record: Record) -> dict[str, Any]:
        return {**_place(record), "key": record.key, "value": record.value, "headers": list(record.headers)}

    def _frames(self, data: bytes) -> Iterator[Frame]:
        begin = 0
        while len(data) - begin >= LENGTH_BYTES:
            length = int.from_bytes(data[begin : begin + LENGTH_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise _no_frame("frame", f"its length would be {length}, at most {MAX_FRAME_BYTES}", data[begin:])
            end = begin + LENGTH_BYTES + length
            if len(data) < end:
                break
            yield _frame("frame", _unpacked(data[begin + LENGTH_BYTES : end]), data[begin:end])
            begin = end
        self._rest = data[begin:]


CODECS: dict[str, Callable[[], Codec]] = {"json": JsonLines, "msgpack": LengthPrefixed}


def record_document(record: Record) -> dict[str, Any]:
    """Describe a record as a JSON object."""
    return {
        **_place(record),
        "key_base64": _base64(record.key),
        "value_base64": _base64(record.value),
        "headers": [[name, _base64(value)] for name, value in record.headers],
    }


def _place(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "generation": record.generation,
    }


def _frame(unit: str, document: dict[str, Any], source: bytes) -> Frame:
    try:
        match document:
            case {"ack": _}:
                body = fields.mapping("frame", document, "ack")
                return Ack(_partition("ack", body), fields.integer("ack", body, "offset"))
            case {"fail": _}:
                body = fields.mapping("frame", document, "fail")
                reason = fields.text("fail", body, "reason")
                place = _partition("fail", body), fields.integer("fail", body, "offset")
                return Fail(*place, reason[:MAX_REASON_CHARACTERS])
            case {"revoked": _}:
                return Revoked(frozenset(_revoked(fields.mapping("frame", document, "revoked"))))
    except NodeContentError as error:
        raise _no_frame(unit, str(error), source) from None
    raise _no_frame(unit, "neither ack, fail nor revoked", source)


def _partition(what: str, body: dict[str, Any]) -> TopicPartition:
    return fields.text(what, body, "topic"), fields.integer(what, body, "partition")


def _revoked(body: dict[str, Any]) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for topic, partitions in body.items():
        if not isinstance(topic, str):  # msgpack also has bytes
            raise NodeContentError(f"revoked: {topic!r:.80} is not a topic")
        if not isinstance(partitions, list) or not all(type(partition) is int for partition in partitions):
            raise NodeContentError(f"revoked: {topic!r:.80} must be a list of partitions")
        found.extend((topic, partition) for partition in partitions)
    return found


def _unpacked(packed: bytes) -> dict[str, Any]:
    try:
        document = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise _no_frame("frame", "not msgpack", packed) from None
    if not isinstance(document, dict):
        raise _no_frame("frame", f"a map is expected, not {type(document).__name__}", packed)
    return document


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _no_frame(unit: str, why: str, source: bytes) -> FrameError:
    text = source[: 2 * QUOTED_CHARACTERS].decode(errors="backslashreplace")
    quoted = repr(text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "…")
    return FrameError(f"the child wrote a {unit} that is not a valid frame ({why}): {quoted}")
