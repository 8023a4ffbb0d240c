"""Readers of one message in one version, composed from its definition.

A reader takes a buffer, a position and a budget, and returns the value and the position after it. If the buffer has no
such value, it raises FrameError, struct.error, IndexError or UnicodeDecodeError; `codec` turns all into FrameError.
Fields that a version does not have are read as their defaults.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.schema import NIL_UUID, NUMBERS, Field, Form
from zkrebalancer.protocol.fields import MAX_TEXT_BYTES

Reader = Callable[[bytes, int, "Budget"], tuple[Any, int]]
Length = Callable[[bytes, int], tuple[int, int]]
ELEMENTS_PER_TURN = 1_000  # that are read or written between two pauses: about 2 ms
MAX_VARINT_SHIFT = 28  # five bytes
_UUID_BYTES = 16


class Budget:
    """How many elements of arrays and tagged fields a message may still have; they cost far more than their bytes."""

    __slots__ = ("_left", "_limit", "_pause", "_since_pause", "_take")

    def __init__(
        self, limit: int, pause: Callable[[], None] | None = None, take: Callable[[int], None] | None = None
    ) -> None:
        """Begin a message; `pause` is called from time to time, `take` with the number of elements to come."""
        self._pause = pause
        self._since_pause = 0
        self._limit = limit
        self._left = limit
        self._take = take

    def spend(self, count: int) -> None:
        """Count elements; raises FrameError if that is more than the message may have."""
        self._left -= count
        if self._left < 0:
            raise FrameError(f"more than {self._limit} elements")
        if self._take is not None:
            self._take(count)

    def note_read(self) -> None:
        """Note that an element was read."""
        self._since_pause += 1
        if self._since_pause >= ELEMENTS_PER_TURN and self._pause is not None:
            self._since_pause = 0
            self._pause()


def read_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits."""
    value = shift = 0
    while True:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > MAX_VARINT_SHIFT:
            raise FrameError("a varint of more than five bytes")


def struct_reader(fields: Sequence[Field], form: Form, *, has_tags: bool) -> Reader:
    """Return a reader of a struct, as a dictionary of all its fields."""
    here = [field for field in fields if form.version in field.versions]
    plain = tuple((field.name, _field_reader(field, form)) for field in here if not field.is_tagged(form.version))
    tagged = {field.tag: (field.name, _field_reader(field, form)) for field in here if field.is_tagged(form.version)}
    others = {name for name, _reader in plain}
    defaults = tuple((field.name, default_maker(field)) for field in fields if field.name not in others)

    def read(buffer: bytes, at: int, budget: Budget) -> tuple[dict[str, Any], int]:
        found = {}
        for name, reader in plain:
            found[name], at = reader(buffer, at, budget)
        for name, make in defaults:
            found[name] = make()
        if has_tags:
            at = _read_tags(buffer, at, budget, (tagged, found))
        return found, at

    return read


def default_maker(field: Field) -> Callable[[], Any]:
    """Return a function that makes the field's default; every call makes a new list or dictionary."""
    default = field.default
    if default is None:
        return lambda: None
    if field.is_array:
        return list
    if field.kind == "struct":
        makers = tuple((each.name, default_maker(each)) for each in field.fields)
        return lambda: {name: make() for name, make in makers}
    return lambda: default


def _read_tags(
    buffer: bytes, at: int, budget: Budget, into: tuple[Mapping[int | None, tuple[str, Reader]], dict[str, Any]]
) -> int:
    tagged, found = into
    count, at = read_varint(buffer, at)
    if count:
        budget.spend(count)
    for _ in range(count):
        tag, at = read_varint(buffer, at)
        size, at = read_varint(buffer, at)
        end = at + size
        if end > len(buffer):
            raise FrameError(f"a tagged field of {size} bytes is announced, {len(buffer) - at} are left")
        if tag in tagged:
            name, reader = tagged[tag]
            found[name], at = reader(buffer, at, budget)
            if at != end:
                raise FrameError(f"the tagged field {name} has another size than announced")
        at = end  # a tag of a newer version is skipped
    return at


def _field_reader(field: Field, form: Form) -> Reader:
    flexible, nullable = form.is_flexible(field), form.version in field.nullable
    if field.is_array:
        return _array_reader(field, form, _length_reader(flexible, "int32"), nullable=nullable)
    if field.kind == "struct":
        reader = struct_reader(field.fields, form, has_tags=flexible)
        return _nullable(reader) if nullable else reader
    if field.kind in {"string", "bytes", "records"}:
        is_text = field.kind == "string"
        return _text_reader(
            _length_reader(flexible, "int16" if is_text else "int32"), is_text=is_text, nullable=nullable
        )
    return _read_uuid if field.kind == "uuid" else _number_reader(field.kind)


def _number_reader(kind: str) -> Reader:
    layout = struct.Struct(f">{NUMBERS[kind]}")
    unpack_from, size = layout.unpack_from, layout.size
    return lambda buffer, at, _budget: (unpack_from(buffer, at)[0], at + size)


def _length_reader(flexible: bool, kind: str) -> Length:
    """Return a reader of a length or count, which is a number of this kind before flexible versions."""
    if not flexible:
        layout = struct.Struct(f">{NUMBERS[kind]}")
        return lambda buffer, at: (layout.unpack_from(buffer, at)[0], at + layout.size)

    def read(buffer: bytes, at: int) -> tuple[int, int]:
        byte = buffer[at]
        if byte < 0x80:
            return byte - 1, at + 1
        length, at = read_varint(buffer, at)
        return length - 1, at

    return read


def _text_reader(read_length: Length, *, is_text: bool, nullable: bool) -> Reader:
    def read(buffer: bytes, at: int, _budget: Budget) -> tuple[str | bytes | None, int]:
        size, at = read_length(buffer, at)
        end = at + size
        if size < 0:
            if size == -1 and nullable:
                return None, at
            raise FrameError(f"a length of {size}")
        if end > len(buffer):
            raise FrameError(f"{size} bytes are announced, {len(buffer) - at} are left")
        if is_text and size > MAX_TEXT_BYTES:  # brokers end a connection that sends more, which the gateway may share
            raise FrameError(f"a text of {size} bytes, at most {MAX_TEXT_BYTES} are allowed")
        content = buffer[at:end]
        return (content.decode() if is_text else content), end

    return read


def _array_reader(field: Field, form: Form, read_length: Length, *, nullable: bool) -> Reader:
    element = _field_reader(field.element(), form)
    number = NUMBERS.get(field.kind)
    size = struct.calcsize(f">{number}") if number else 1

    def read(buffer: bytes, at: int, budget: Budget) -> tuple[list[Any] | None, int]:
        count, at = read_length(buffer, at)
        if count == -1 and nullable:
            return None, at
        # An array that cannot fit is refused before allocating anything of its size.
        if count < 0 or count * size > len(buffer) - at:
            raise FrameError(f"{count} elements are announced, {len(buffer) - at} bytes are left")
        budget.spend(count)
        if number:
            return list(struct.unpack_from(f">{count}{number}", buffer, at)), at + count * size
        found = []
        for _ in range(count):
            one, at = element(buffer, at, budget)
            found.append(one)
            budget.note_read()
        return found, at

    return read


def _nullable(reader: Reader) -> Reader:
    def read(buffer: bytes, at: int, budget: Budget) -> tuple[Any, int]:
        mark = buffer[at]
        if mark == 0xFF:
            return None, at + 1
        if mark != 1:
            raise FrameError(f"a struct that begins with {mark}, neither null nor present")
        return reader(buffer, at + 1, budget)

    return read


def _read_uuid(buffer: bytes, at: int, _budget: Budget) -> tuple[UUID, int]:
    end = at + _UUID_BYTES
    content = buffer[at:end]
    if len(content) < _UUID_BYTES:
        raise FrameError(f"{_UUID_BYTES} bytes are expected, {len(buffer) - at} are left")
    return (UUID(bytes=content) if any(content) else NIL_UUID), end
