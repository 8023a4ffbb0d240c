"""Kafka's message definitions as data: the JSON files in `definitions/`, one for each message.

Field names are Kafka's in snake case. Which fields a message has, and how they are written, depends on its version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any
from uuid import UUID

NUMBERS = {  # kinds of fixed size -> how `struct` names them
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
}
NIL_UUID = UUID(int=0)
DEFINITIONS = files(__package__) / "definitions"
_UNBOUNDED = 1 << 15  # above every version
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, slots=True)
class Versions:
    """A range of versions, both ends included; empty if `last` is below `first`."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        """Whether the version is in the range."""
        return self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    """One field, or with `is_array` many of one kind; `fields` are those of the kind "struct"."""

    name: str
    kind: str
    is_array: bool
    fields: tuple[Field, ...]
    versions: Versions
    nullable: Versions
    flexible: Versions | None  # None: as the message
    tagged: Versions
    tag: int | None
    default: object  # of an array or a struct: None or ()

    def is_tagged(self, version: int) -> bool:
        """Whether the field is among the tagged fields of this version."""
        return self.tag is not None and version in self.tagged

    def element(self) -> Field:
        """Return the field that describes one element of an array."""
        return replace(self, is_array=False, nullable=NO_VERSIONS)


@dataclass(frozen=True, slots=True)
class Message:
    """A request, an answer, a header, or consumer data embedded in requests; `api_key` is None for the last two."""

    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """The format of a message in one version."""

    version: int
    flexible_versions: Versions

    def is_flexible(self, field: Field) -> bool:
        """Whether lengths are varints and structs have tagged fields."""
        return self.version in (self.flexible_versions if field.flexible is None else field.flexible)


@cache  # one entry for each definition
def message(name: str) -> Message:
    """Return the definition of a message, such as `JoinGroupRequest`."""
    definition = json.loads(_COMMENT.sub("", (DEFINITIONS / f"{name}.json").read_text()))
    common = {one["name"]: one["fields"] for one in definition.get("commonStructs", ())}
    return Message(
        definition["name"],
        definition.get("apiKey"),
        _versions(definition["validVersions"]),
        _versions(definition["flexibleVersions"]),
        tuple(_fields(definition["fields"], common)),
    )


@lru_cache(maxsize=1)
def apis() -> Mapping[int, str]:
    """Return API key -> the API's name, such as `JoinGroup`, for the defined ones."""
    names = (entry.name.removesuffix("Request.json") for entry in DEFINITIONS.iterdir())
    keys = {name: message(f"{name}Request").api_key for name in names if not name.endswith(("json", "md"))}
    return {key: name for name, key in keys.items() if key is not None}


def snake_case(name: str) -> str:
    """Return Kafka's name of a field in snake case."""
    return _WORD.sub("_", name).lower()


def _fields(fields: list[dict[str, Any]], common: Mapping[str, list[dict[str, Any]]]) -> Iterator[Field]:
    for field in fields:
        kind = field["type"].removeprefix("[]")
        is_array = field["type"] != kind
        is_struct = kind[0].isupper()
        below = (field.get("fields") or common[kind]) if is_struct else []
        yield Field(
            snake_case(field["name"]),
            "struct" if is_struct else kind,
            is_array,
            tuple(_fields(below, common)),
            _versions(field["versions"]),
            _versions(field.get("nullableVersions", "none")),
            _versions(field["flexibleVersions"]) if "flexibleVersions" in field else None,
            _versions(field.get("taggedVersions", "none")),
            field.get("tag"),
            () if (is_array or is_struct) and field.get("default") != "null" else _default(kind, field.get("default")),
        )


def _default(kind: str, text: object) -> object:
    """Return the default of a primitive field; in the definitions it is a text, a number or missing."""
    if text == "null":
        return None
    if kind == "string":
        return text or ""
    if kind in {"bytes", "records"}:
        return b""
    if kind == "uuid":
        return NIL_UUID
    if kind == "bool":
        return str(text).lower() == "true"
    return int(str(text or 0), 0)


def _versions(text: str) -> Versions:
    if text == "none":
        return NO_VERSIONS
    first, _, last = text.partition("-")
    if first.endswith("+"):
        return Versions(int(first[:-1]), _UNBOUNDED)
    return Versions(int(first), int(last or first))
