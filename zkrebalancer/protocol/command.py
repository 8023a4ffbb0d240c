"""The two commands and their strict msgpack codec (`docs/reference/protocol.md`, Commands).

A start adds partitions to those that a consumer owns, a stop removes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import CommandError, NodeContentError
from zkrebalancer.protocol.fields import Bound, TopicPartition

MAX_COMMAND_BYTES = 64 * 1024
SURE_TO_FIT = 200  # so many partitions always fit: each needs at most MAX_TOPIC_LENGTH bytes and two numbers
VERSION = 1
START_FETCHER = "start-fetcher"
STOP_FETCHER = "stop-fetcher"
INSTANCE_FENCED = "instance-fenced"  # kind of cause: a newer consumer has the same instance id: stop all and leave


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rebalance runs: an id shared by all its events, and the kind of trigger."""

    id: str
    kind: str


@dataclass(frozen=True, slots=True)
class StartFetcher:
    """Adds partitions to those that the consumer owns: partition -> consumer thread."""

    command_id: str
    coordinator_epoch: int
    generation: int
    cause: Cause
    partitions: Mapping[TopicPartition, int]

    option = START_FETCHER


@dataclass(frozen=True, slots=True)
class StopFetcher:
    """Revokes partitions; None revokes all (eager mode)."""

    command_id: str
    coordinator_epoch: int
    generation: int
    cause: Cause
    partitions: frozenset[TopicPartition] | None

    option = STOP_FETCHER


Command = StartFetcher | StopFetcher


def encode(command: Command) -> bytes:
    """Encode a command.

    Raises:
        CommandError: the command exceeds MAX_COMMAND_BYTES; split it.

    """
    ownership_map: object
    if isinstance(command, StartFetcher):
        ownership_map = fields.threads_to_ranges(command.partitions)
    else:
        ownership_map = None if command.partitions is None else fields.topics_to_ranges(command.partitions)
    content = msgpack.packb(
        {
            "version": VERSION,
            "command_id": command.command_id,
            "option": command.option,
            "coordinator_epoch": command.coordinator_epoch,
            "generation": command.generation,
            "cause": {"id": command.cause.id, "kind": command.cause.kind},
            "ownership_map": ownership_map,
        }
    )
    if len(content) > MAX_COMMAND_BYTES:
        raise CommandError(f"command {command.command_id}: {len(content)} bytes, at most {MAX_COMMAND_BYTES}")
    return bytes(content)


def decode(content: bytes, bound: Bound | None = None) -> Command:
    """Decode a command.

    Raises:
        CommandError: too large, not msgpack, extension types, or a violation of the schema.

    """
    if len(content) > MAX_COMMAND_BYTES:
        raise CommandError(f"command: {len(content)} bytes, at most {MAX_COMMAND_BYTES}")
    document = _unpack(content)
    try:
        fields.require_version("command", document, VERSION)
        command_id = fields.text("command", document, "command_id")
        epoch = fields.integer("command", document, "coordinator_epoch")
        generation = fields.integer("command", document, "generation")
        cause_fields = fields.mapping("command", document, "cause")
        cause = Cause(fields.text("cause", cause_fields, "id"), fields.text("cause", cause_fields, "kind"))
        option = fields.text("command", document, "option")
        if "ownership_map" not in document:
            raise CommandError("command: ownership_map is missing")
        ownership_map = document["ownership_map"]
        if option == START_FETCHER:
            partitions = fields.threads_from_ranges("command", ownership_map, bound)
            return StartFetcher(command_id, epoch, generation, cause, partitions)
        if option == STOP_FETCHER:
            stopped = None
            if ownership_map is not None:
                stopped = frozenset(fields.topics_from_ranges("command", ownership_map, bound))
            return StopFetcher(command_id, epoch, generation, cause, stopped)
    except CommandError:
        raise
    except NodeContentError as error:
        raise CommandError(str(error)) from None
    raise CommandError(f"command: option {option!r:.80} is neither {START_FETCHER} nor {STOP_FETCHER}")


def fitting_start(
    command_id: str, epoch: int, generation: int, cause: Cause, partitions: Mapping[TopicPartition, int]
) -> StartFetcher:
    """Return a start of the first partitions, in order, that fit in one command."""
    wanted = sorted(partitions)
    count = _may_fit(wanted)
    while True:  # ends because one partition always fits
        command = StartFetcher(command_id, epoch, generation, cause, {tp: partitions[tp] for tp in wanted[:count]})
        if count <= 1 or fits(command):
            return command
        count = (count + 1) // 2


def fitting_stop(
    command_id: str, epoch: int, generation: int, cause: Cause, partitions: frozenset[TopicPartition]
) -> StopFetcher:
    """Return a stop of the first partitions, in order, that fit in one command."""
    wanted = sorted(partitions)
    count = _may_fit(wanted)
    while True:  # ends as above
        command = StopFetcher(command_id, epoch, generation, cause, frozenset(wanted[:count]))
        if count <= 1 or fits(command):
            return command
        count = (count + 1) // 2


def _may_fit(partitions: Sequence[TopicPartition]) -> int:
    """Return how many of these partitions at most fit in one command, by the names of their topics alone."""
    left, last = MAX_COMMAND_BYTES, ""
    for count, (topic, _partition) in enumerate(partitions):
        if topic != last:
            left, last = left - len(topic), topic
        if left < 0:
            return count
    return len(partitions)


def fits(command: Command) -> bool:
    """Whether the encoded command stays within MAX_COMMAND_BYTES."""
    if len(command.partitions or ()) <= SURE_TO_FIT:
        return True
    try:
        encode(command)
    except CommandError:
        return False
    return True


def applied(partitions: Mapping[TopicPartition, int], command: Command) -> dict[TopicPartition, int]:
    """Return the partitions (-> consumer thread) that a consumer owns after the command."""
    if isinstance(command, StartFetcher):
        return {**partitions, **command.partitions}
    if command.partitions is None:
        return {}
    return {tp: thread for tp, thread in partitions.items() if tp not in command.partitions}


def _unpack(content: bytes) -> dict[str, Any]:
    def refuse_extension(code: int, _data: bytes) -> None:
        raise CommandError(f"command: extension type {code} is not allowed")

    try:
        document = msgpack.unpackb(content, raw=False, strict_map_key=True, ext_hook=refuse_extension, timestamp=0)
    except CommandError:
        raise
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise CommandError(f"command: not msgpack ({type(error).__name__}: {error})") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise CommandError(f"command: must be a map with text keys, not {type(document).__name__}")
    return document
