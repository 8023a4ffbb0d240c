"""Writers of one message in one version, composed from its definition.

A writer appends a value to what is written so far. Fields that are missing in a dictionary are written as their
defaults; those that a version does not have are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zkrebalancer.kafka_protocol.errors import FrameError
from zkrebalancer.kafka_protocol.readers import ELEMENTS_PER_TURN, default_maker
from zkrebalancer.kafka_protocol.schema import NUMBERS, Field, Form
from zkrebalancer.protocol.fields import MAX_TEXT_BYTES

_pack_int16 = struct.Struct(">h").pack
_pack_int32 = struct.Struct(">i").pack


class Out(bytearray):
    """What is written so far of a message."""

    __slots__ = ("_pause", "_since_pause")

    def __init__(self, pause: Callable[[], None] | None = None) -> None:
        """Begin a message; `pause` is called from time to time."""
        super().__init__()
        self._pause = pause
        self._since_pause = 0

    def note_written(self) -> None:
        """Note that an element of an array was written."""
        self._since_pause += 1
        if self._since_pause >= ELEMENTS_PER_TURN and self._pause is not None:
            self._since_pause = 0
            self._pause()

    def apart(self) -> Out:
        """Return the beginning of a part whose size has to be written first."""
        return Out(self._pause)


Writer = Callable[[Out, Any], None]


def write_varint(out: Out, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def struct_writer(fields: Sequence[Field], form: Form, *, has_tags: bool) -> Writer:
    """Return a writer of a dictionary of fields."""
    here = [field for field in fields if form.version in field.versions]
    plain = tuple(
        (field.name, _field_writer(field, form), default_maker(field))
        for field in here
        if not field.is_tagged(form.version)
    )
    tagged = sorted(
        (field.tag or 0, field.name, _field_writer(field, form), default_maker(field))
        for field in here
        if field.is_tagged(form.version)
    )

    def write(out: Out, fields: Mapping[str, Any]) -> None:
        for name, writer, make_default in plain:
            writer(out, fields[name] if name in fields else make_default())
        if has_tags:
            contents = []
            for tag, name, writer, make_default in tagged:
                default = make_default()
                value = fields.get(name, default)
                if value != default:
                    content = out.apart()
                    writer(content, value)
                    contents.append((tag, content))
            _write_tags(out, contents)

    return write


def _write_tags(out: Out, contents: Sequence[tuple[int, bytearray]]) -> None:
    write_varint(out, len(contents))
    for tag, content in contents:
        write_varint(out, tag)
        write_varint(out, len(content))
        out += content


def _field_writer(field: Field, form: Form) -> Writer:
    flexible = form.is_flexible(field)
    nullable = form.version in field.nullable
    if field.is_array:
        return _array_writer(_field_writer(field.element(), form), _length_writer(flexible, "int32"), nullable=nullable)
    if field.kind == "struct":
        writer = struct_writer(field.fields, form, has_tags=flexible)
        return _nullable(writer) if nullable else writer
    if field.kind == "string":
        return _text_writer(_length_writer(flexible, "int16"), nullable=nullable)
    if field.kind in {"bytes", "records"}:
        return _bytes_writer(_length_writer(flexible, "int32"), nullable=nullable)
    return _write_uuid if field.kind == "uuid" else _number_writer(field.kind)


def _number_writer(kind: str) -> Writer:
    pack = struct.Struct(f">{NUMBERS[kind]}").pack

    def write(out: Out, value: int) -> None:
        out += pack(value)

    return write


def _length_writer(flexible: bool, kind: str) -> Callable[[Out, int], None]:
    """Return a writer of lengths; -1 stands for null."""

    def write(out: Out, length: int) -> None:
        if kind == "int16" and length > MAX_TEXT_BYTES:
            raise FrameError(f"a text of {length} bytes is too long for this version")
        if flexible:
            write_varint(out, length + 1)
        else:
            out += _pack_int32(length) if kind == "int32" else _pack_int16(length)

    return write


def _text_writer(write_length: Callable[[Out, int], None], *, nullable: bool) -> Writer:
    write_content = _bytes_writer(write_length, nullable=nullable)
    return lambda out, value: write_content(out, None if value is None else value.encode())


def _bytes_writer(write_length: Callable[[Out, int], None], *, nullable: bool) -> Writer:
    def write(out: Out, value: bytes | None) -> None:
        if value is None:
            _check_null(nullable)
            write_length(out, -1)
        else:
            write_length(out, len(value))
            out += value

    return write


def _array_writer(write_one: Writer, write_length: Callable[[Out, int], None], *, nullable: bool) -> Writer:
    def write(out: Out, values: Sequence[Any] | None) -> None:
        if values is None:
            _check_null(nullable)
            write_length(out, -1)
            return
        write_length(out, len(values))
        for value in values:
            write_one(out, value)
            out.note_written()

    return write


def _nullable(writer: Writer) -> Writer:
    def write(out: Out, value: Mapping[str, Any] | None) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            writer(out, value)

    return write


def _check_null(nullable: bool) -> None:
    if not nullable:
        raise FrameError("null in a field that cannot be null in this version")


def _write_uuid(out: Out, value: Any) -> None:  # noqa: ANN401  # a UUID
    out += value.bytes
