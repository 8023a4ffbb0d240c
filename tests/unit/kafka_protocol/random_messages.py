"""Random fields for any message and version, drawn from its definition."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from zkrebalancer.kafka_protocol.schema import Field, Message, apis, message

RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=8) | st.text(min_size=130, max_size=130),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
    "bool": st.booleans(),
    "uuid": st.uuids(),
}
MAX_ELEMENTS = 3
KNOWN_ERRORS = 100
SIDES = ("Request", "Response")
FORMS = [
    (f"{name}{side}", version)
    for _key, name in sorted(apis().items())
    for side in SIDES
    for version in range(message(f"{name}{side}").versions.first, message(f"{name}{side}").versions.last + 1)
]


def fields_of(one: Message, version: int) -> st.SearchStrategy[dict[str, Any]]:
    return _struct(one.fields, version)


def _struct(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({each.name: _value(each, version) for each in fields if version in each.versions})


def _value(field: Field, version: int) -> st.SearchStrategy[Any]:
    value = _some(field, version)
    return st.none() | value if version in field.nullable else value


def _some(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.is_array:
        return st.lists(_value(field.element(), version), max_size=MAX_ELEMENTS)
    if field.kind == "struct":
        return _struct(field.fields, version)
    if field.kind not in RANGES:
        return OTHERS[field.kind]
    least, most = RANGES[field.kind]
    if field.name == "error_code" or field.name.endswith("_ms"):  # kio makes other types of these
        return st.integers(0, min(most, KNOWN_ERRORS))
    return st.integers(least, most)
