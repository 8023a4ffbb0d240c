"""kio, whose classes are generated from the same definitions by another program, reads what is written here."""

from __future__ import annotations

import importlib
import io
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka_protocol.random_messages import FORMS, fields_of
from zkrebalancer.kafka_protocol import codec
from zkrebalancer.kafka_protocol.schema import message, snake_case

SIDE = re.compile(r"(.*)(Request|Response)")


def kio_class(name: str, version: int) -> Any:
    found = SIDE.fullmatch(name)
    assert found is not None
    module = importlib.import_module(f"kio.schema.{snake_case(found[1])}.v{version}.{found[2].lower()}")
    return getattr(module, name)


@given(st.sampled_from(FORMS).flatmap(lambda form: st.tuples(st.just(form), fields_of(message(form[0]), form[1]))))
def test_both_write_the_same_bytes(drawn: tuple[tuple[str, int], dict[str, Any]]) -> None:
    (name, version), fields = drawn
    serial = importlib.import_module("kio.serial")
    one = kio_class(name, version)
    content = codec.encode(name, version, fields)
    read, size = serial.entity_reader(one)(content, 0)
    assert size == len(content)
    out = io.BytesIO()
    serial.entity_writer(one)(out, read)
    assert out.getvalue() == content
    _compare(read, fields)


def _compare(read: Any, fields: dict[str, Any]) -> None:
    """Compare values of fields that both call alike; kio has types of its own for times, errors and empty UUIDs."""
    for name, value in fields.items():
        other = getattr(read, name, None)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            assert other is not None
            for one, expected in zip(other, value, strict=True):
                _compare(one, expected)
        elif isinstance(value, str | bytes | bool) or (isinstance(value, int) and type(other) is int):
            assert other == value, name
