"""Translates decoded requests into the machine's requests, and its answers into fields, by field names.

Others run between many of them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from zkrebalancer.gateway.turns import in_turns
from zkrebalancer.group_protocol import requests
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.refusals import ONE_MEMBER_UNTIL

T = TypeVar("T")
Makers = tuple[tuple[str, Callable[[Any], Any]], ...]
_makers: dict[type[Any], Makers] = {}  # one entry for each of the machine's dataclasses
_names: dict[type[Any], tuple[str, ...]] = {}  # as above, and one for each kind of value in them, which has none
NULLABLE_PROTOCOL_FROM = 7  # the version of JoinGroup in which the protocol's name may be null
# Errors at which clients end, and what makes all of them try again instead. aiokafka and older Java clients end if a
# join is interrupted, or if offsets are not available; all Java clients if a SyncGroup fails while its group is read.
UNDERSTOOD: dict[str, dict[ErrorCode, ErrorCode]] = {
    "JoinGroup": {ErrorCode.REBALANCE_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    "SyncGroup": {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_MAX_SIZE_REACHED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    },
    "ConsumerGroupHeartbeat": {ErrorCode.REBALANCE_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    "OffsetFetch": {ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
}


def build(kind: type[T], fields: Mapping[str, Any]) -> T:
    """Return an instance of a dataclass, built from the fields with the names of its own."""
    makers = _makers.get(kind)
    if makers is None:
        makers = _makers[kind] = _make_makers(kind)
    return kind(**{name: make(fields[name]) for name, make in makers if name in fields})


def _make_makers(kind: type[Any]) -> Makers:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, _maker(hints[field.name])) for field in dataclasses.fields(kind))


def _maker(hint: Any) -> Callable[[Any], Any]:  # noqa: ANN401  # a type hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        (inner,) = (one for one in arguments if one is not type(None))
        make = _maker(inner)
        return lambda value: None if value is None else make(value)
    if origin in {tuple, frozenset}:
        make_one = _maker(arguments[0])
        return lambda values: origin(make_one(value) for value in in_turns(values))
    if dataclasses.is_dataclass(hint):
        return lambda value: build(typing.cast("type[Any]", hint), value)
    return lambda value: value


def fields_of(answer: Any) -> Any:  # noqa: ANN401  # a dataclass, or a value within one
    """Return a dataclass as fields to encode."""
    kind: type[Any] = type(answer)
    names = _names.get(kind)
    if names is None:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        names = _names[kind] = tuple(field.name for field in fields)
    if names:
        return {name: fields_of(getattr(answer, name)) for name in names}
    if isinstance(answer, tuple | frozenset):
        return [fields_of(one) for one in in_turns(answer)]
    return answer


def leave_group(version: int, fields: Mapping[str, Any]) -> requests.LeaveGroupRequest:
    """Return a LeaveGroup request; old versions name one member."""
    if version <= ONE_MEMBER_UNTIL:
        return requests.LeaveGroupRequest(fields["group_id"], (requests.MemberIdentity(fields["member_id"]),))
    return build(requests.LeaveGroupRequest, fields)


def understood(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with an error that every client understands."""
    if "error_code" not in fields:
        return fields
    return {**fields, "error_code": understood_code(name, fields["error_code"])}


def understood_code(name: str, code: ErrorCode) -> ErrorCode:
    """Return an error that every client understands in an answer to this request."""
    return UNDERSTOOD.get(name, {}).get(code, code)


def join_group_answer(version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a JoinGroup answer whose protocol name can be written in this version."""
    if version < NULLABLE_PROTOCOL_FROM and fields["protocol_name"] is None:
        return {**fields, "protocol_name": ""}
    return fields
