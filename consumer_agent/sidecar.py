"""An application in a child process, spoken to in JSON lines: records go in, acks come out.

A batch is sent and then waited for, record by record, so at most one batch is in flight. What was not acknowledged is
not finished: it will be read again. The frames are written down in `docs/consumer.md`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from consumer_agent.batch import Record
from consumer_agent.errors import ConsumerError
from zkrebalancer.protocol import fields
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.fields import TopicPartition

MAX_LINE_BYTES = 1_000_000
MAX_WAITING_FRAMES = 10_000
QUOTED_CHARACTERS = 200
LOOK_INTERVAL_S = 0.1  # between two looks at whether the agent is to stop
DRAIN_TIMEOUT_S = 5.0  # for the child to take and acknowledge the last batch, when the agent is to stop
REVOKE_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0  # for the child to end after its input was closed


class ChildError(ConsumerError):
    """The child ended, failed, or said something that is not a frame."""


class StoppedInFlightError(ConsumerError):
    """The agent was stopped before the child had acknowledged its last batch."""


@dataclass(frozen=True, slots=True)
class Ack:
    """All records of the partition up to and with `offset` are done."""

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
    """The child has let go of the partitions."""

    partitions: frozenset[TopicPartition]


Frame = Ack | Fail | Revoked


def record_document(record: Record) -> dict[str, Any]:
    """Describe a record as a JSON object."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "generation": record.generation,
        "key_base64": _base64(record.key),
        "value_base64": _base64(record.value),
        "headers": [[name, _base64(value)] for name, value in record.headers],
    }


def read_frame(line: bytes) -> Frame:
    """Read a line of the child.

    Raises:
        ChildError: it is no frame; the text quotes it.

    """
    try:
        document = fields.read_document("frame", line)
        match document:
            case {"ack": _}:
                body = fields.mapping("frame", document, "ack")
                return Ack(_partition("ack", body), fields.integer("ack", body, "offset"))
            case {"fail": _}:
                body = fields.mapping("frame", document, "fail")
                reason = fields.text("fail", body, "reason")
                return Fail(_partition("fail", body), fields.integer("fail", body, "offset"), reason)
            case {"revoked": _}:
                body = fields.mapping("frame", document, "revoked")
                return Revoked(frozenset(_revoked(body)))
    except NodeContentError as error:
        raise ChildError(f"the child wrote a line that is no frame ({error}): {_quote(line)}") from None
    raise ChildError(f"the child wrote a line that is no frame (neither ack, fail nor revoked): {_quote(line)}")


class Sidecar:
    """The child process; a context manager that ends it."""

    def __init__(self, command: str, is_stopping: Callable[[], bool]) -> None:
        """Start `command` (split as a shell would, but not run by one).

        Raises:
            ChildError: it cannot be started.

        """
        self._is_stopping = is_stopping
        self._has_failed = False
        self._give_up_s: float | None = None  # known once the agent is to stop
        self._frames: queue.Queue[Frame | ChildError] = queue.Queue(MAX_WAITING_FRAMES)
        try:
            self._process = subprocess.Popen(  # the user's own command
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except (OSError, ValueError, IndexError) as error:
            raise ChildError(f"--exec {command!r:.200} cannot be started: {error}") from None
        self._input: int = self._stdin.fileno()
        os.set_blocking(self._input, False)
        self._input_has_room = select.poll()
        self._input_has_room.register(self._input, select.POLLOUT)
        self._reader = threading.Thread(target=self._read, name="consumer-agent-sidecar", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        """Return the sidecar."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the child's input and wait for its end; after END_TIMEOUT_S it is killed."""
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def process(self, batch: Sequence[Record]) -> None:
        """Give a batch to the child and wait until all of it is acknowledged.

        Raises:
            ChildError: the child failed or ended.
            StoppedInFlightError: the agent is to stop and the child was not done within DRAIN_TIMEOUT_S.

        """
        waiting: dict[TopicPartition, int] = {}
        for record in batch:
            waiting[record.topic, record.partition] = record.offset
            self._write({"record": record_document(record)})
            self._settle(waiting)
        while waiting:
            self._require_time()
            self._settle(waiting, LOOK_INTERVAL_S)

    def revoke(self, partitions: list[TopicPartition]) -> None:
        """Tell the child to let go of partitions and wait until it has.

        Raises:
            ChildError: the child failed, ended, or did not answer within REVOKE_TIMEOUT_S.

        """
        if self._has_failed:
            return  # it holds nothing any more
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        self._write({"revoke": by_topic})
        open_partitions = set(partitions)
        give_up_s = time.monotonic() + REVOKE_TIMEOUT_S
        while open_partitions:
            frame = self._next(LOOK_INTERVAL_S)
            if isinstance(frame, Revoked):
                open_partitions -= frame.partitions
            elif time.monotonic() > give_up_s:
                raise ChildError(f"the child did not answer a revoke within {REVOKE_TIMEOUT_S:g} s")

    def _settle(self, waiting: dict[TopicPartition, int], timeout_s: float = 0.0) -> None:
        """Take in one frame, if one comes in time; a partition whose last record is acknowledged is done."""
        frame = self._next(timeout_s)
        if isinstance(frame, Fail):
            topic, partition = frame.partition
            raise ChildError(f"the child failed at {topic}/{partition} offset {frame.offset}: {frame.reason}")
        if isinstance(frame, Ack) and frame.offset >= waiting.get(frame.partition, frame.offset + 1):
            del waiting[frame.partition]

    def _next(self, timeout_s: float) -> Frame | None:
        try:
            frame = self._frames.get(timeout=timeout_s) if timeout_s else self._frames.get_nowait()
        except queue.Empty:
            return None
        if isinstance(frame, ChildError):
            self._has_failed = True
            raise frame
        return frame

    def _require_time(self) -> None:
        if self._give_up_s is None and self._is_stopping():
            self._give_up_s = time.monotonic() + DRAIN_TIMEOUT_S
        if self._give_up_s is not None and time.monotonic() > self._give_up_s:
            raise StoppedInFlightError("stopped before the child had acknowledged its last batch")

    def _write(self, document: dict[str, Any]) -> None:
        """Write a line; a child that does not read holds the agent up until it is to stop, and no longer."""
        left = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        try:
            while left:
                if self._input_has_room.poll(LOOK_INTERVAL_S * 1_000):
                    left = left[os.write(self._input, left) :]
                else:
                    self._require_time()
        except BrokenPipeError:
            raise ChildError(self._end()) from None

    def _read(self) -> None:
        """Run in a thread: hand over frames until the child ends or says something else."""
        while line := self._stdout.readline(MAX_LINE_BYTES):
            try:
                self._frames.put(read_frame(line))
            except ChildError as error:
                self._frames.put(error)
                return
        self._frames.put(ChildError(self._end()))

    def _end(self) -> str:
        try:
            return f"the child ended with exit status {self._process.wait(END_TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            return "the child closed its input or output"

    @property
    def _stdin(self) -> Any:  # noqa: ANN401  # typeshed's optional pipe, which Popen has opened here
        return self._process.stdin

    @property
    def _stdout(self) -> Any:  # noqa: ANN401  # as above
        return self._process.stdout


def _partition(what: str, body: dict[str, Any]) -> TopicPartition:
    return fields.text(what, body, "topic"), fields.integer(what, body, "partition")


def _revoked(body: dict[str, Any]) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for topic, partitions in body.items():
        if not isinstance(partitions, list) or not all(type(partition) is int for partition in partitions):
            raise NodeContentError(f"revoked: {topic:.80} must be a list of partitions")
        found.extend((topic, partition) for partition in partitions)
    return found


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _quote(line: bytes) -> str:
    text = line.decode(errors="backslashreplace").rstrip("\n")
    return repr(text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "…")
