"""Frames of Kafka's protocol to dictionaries and back.

Every error in a frame is a FrameError. Tagged fields that the definitions do not have are skipped, so newer clients are
understood.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.readers import Budget, Reader, struct_reader
from zkrebalancer.kafka_protocol.schema import Field, Form, Message, apis, message
from zkrebalancer.kafka_protocol.writers import Out, Writer, struct_writer

API_VERSIONS = 18
Fields = dict[str, Any]  # of a message, by name
MAX_ELEMENTS = 1 << 30  # as many as fit into any frame
_BEGIN = struct.Struct(">hhi")
_INT32 = struct.Struct(">i")
Pause = Callable[[], None] | None  # what is called between elements of a long message
Take = Callable[[int], None] | None


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def decode(
    name: str,
    version: int,
    content: bytes,
    max_elements: int = MAX_ELEMENTS,
    *,
    pause: Pause = None,
    take: Take = None,
) -> Fields:
    """Return the fields of a message, such as `JoinGroupRequest`; raises FrameError.

    `max_elements`: how many elements its arrays may have together. `take` gets how many each of them has, before they
    are read, and may raise FrameError.
    """
    fields, end = _checked(_reader(name, version, None), content, name, Budget(max_elements, pause, take))
    if end != len(content):
        raise FrameError(f"{name} v{version} has {len(content) - end} bytes too many")
    return fields


def decode_first(name: str, version: int, content: bytes, last: str) -> tuple[Fields, int]:
    """Return the fields of a message up to `last`, and the position after them; raises FrameError."""
    return _checked(_reader(name, version, last), content, name)


def encode(name: str, version: int, fields: Mapping[str, Any], *, pause: Pause = None) -> bytes:
    """Return a message; fields that are missing have their defaults. Raises FrameError if a value cannot be written."""
    return _written(_writer(name, version, None), f"{name} v{version}", fields, pause)


def encode_first(name: str, version: int, fields: Mapping[str, Any], last: str) -> bytes:
    """Return the part of a message up to the field `last`; raises FrameError."""
    return _written(_writer(name, version, last), f"{name} v{version}", fields)


def decode_header(content: bytes) -> tuple[Header, int]:
    """Return a request's header and the position after it; raises FrameError.

    For undefined requests, only the part up to the client id is read.
    """
    try:
        api_key, version, _correlation_id = _BEGIN.unpack_from(content)
    except struct.error:
        raise FrameError(f"a request of {len(content)} bytes has no header") from None
    form = request_header_version(api_key, version)
    fields, end = _checked(_reader("RequestHeader", form, None), content, "request header")
    return Header(api_key, version, fields["correlation_id"], fields["client_id"]), end


def encode_header(header: Header) -> bytes:
    """Return a request's header."""
    fields = {
        "request_api_key": header.api_key,
        "request_api_version": header.version,
        "correlation_id": header.correlation_id,
        "client_id": header.client_id,
    }
    return encode("RequestHeader", request_header_version(header.api_key, header.version), fields)


def request_header_version(api_key: int, version: int) -> int:
    """Return 2 if the request is defined and flexible, else 1."""
    name = apis().get(api_key)
    return 2 if name is not None and version in message(f"{name}Request").flexible else 1


def answer_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Return the header of an answer to a defined API, without tagged fields."""
    begin = _INT32.pack(correlation_id)
    return begin + b"\0" if _has_tagged_answer_header(api_key, version) else begin


def answer_body(api_key: int, version: int, content: bytes) -> int:
    """Return the position after the header of an answer to a defined API; raises FrameError."""
    form = 1 if _has_tagged_answer_header(api_key, version) else 0
    _fields, end = _checked(_reader("ResponseHeader", form, None), content, "answer header")
    return end


def _has_tagged_answer_header(api_key: int, version: int) -> bool:
    """Whether tagged fields follow the correlation id; never with ApiVersions, whose version a client has to guess."""
    return api_key != API_VERSIONS and version in message(f"{apis()[api_key]}Response").flexible


def _written(writer: Writer, name: str, fields: Mapping[str, Any], pause: Pause = None) -> bytes:
    out = Out(pause)
    try:
        writer(out, fields)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise FrameError(f"{name} cannot be written: {error}") from error
    return bytes(out)


def _checked(reader: Reader, content: bytes, name: str, budget: Budget | None = None) -> tuple[Fields, int]:
    try:
        return reader(content, 0, budget or Budget(MAX_ELEMENTS))
    except FrameError as error:
        raise FrameError(f"{name}: {error}") from None
    except (struct.error, IndexError):
        raise FrameError(f"{name}: {len(content)} bytes, more are expected") from None
    except UnicodeDecodeError:
        raise FrameError(f"{name}: a text is not UTF-8") from None


@cache  # bounded by the definitions and their versions
def _reader(name: str, version: int, last: str | None) -> Reader:
    one, form = _form(name, version)
    has_tags = last is None and version in one.flexible
    return struct_reader(_until(one, last), form, has_tags=has_tags)


@cache  # as above
def _writer(name: str, version: int, last: str | None) -> Writer:
    one, form = _form(name, version)
    has_tags = last is None and version in one.flexible
    return struct_writer(_until(one, last), form, has_tags=has_tags)


def _form(name: str, version: int) -> tuple[Message, Form]:
    one = message(name)
    if version not in one.versions:
        raise FrameError(f"{name} has no version {version}")
    return one, Form(version, one.flexible)


def _until(one: Message, last: str | None) -> tuple[Field, ...]:
    if last is None:
        return one.fields
    names = [field.name for field in one.fields]
    return one.fields[: names.index(last) + 1]
