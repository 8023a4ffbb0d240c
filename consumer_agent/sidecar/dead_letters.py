"""Stores records that the child cannot process, in a file of JSON lines or in a topic.

A letter counts as written when it is safe: synced to disk, or acknowledged by all in-sync replicas.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from consumer_agent.config import ConsumerConfig
from consumer_agent.errors import ConsumerError
from consumer_agent.kafka.client import CONNECT_TIMEOUT_S, KafkaLog
from consumer_agent.sidecar.frames import record_document
from consumer_agent.sidecar.ledger import Letter
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

WRITE_TIMEOUT_MS = 60_000
VANISHED_TIMEOUT_MS = 5_000  # how long the topic, which existed at the start, may be unknown to Kafka's client
CLOSE_TIMEOUT_S = 2.0  # the records of letters that are unconfirmed by then are not finished
MAX_TRIES = 10  # to write a whole line; each failed one ends a part of another agent's
MAX_LETTER_BYTES = 1_000_000_000  # the most that Kafka's client allows: the broker decides
HEADER_PREFIX = "dead_letter."
Place = tuple[TopicPartition, int]


class DeadLetterError(ConsumerError):
    """A dead letter could not be written; its record is not finished."""


class DeadLetters(ABC):
    """A destination of dead letters."""

    def __init__(self) -> None:
        """Begin with nothing written."""
        self._written: list[Place] = []

    @abstractmethod
    def write(self, letter: Letter) -> None:
        """Write a letter, or begin to write it.

        Raises:
            DeadLetterError: it cannot be written.

        """

    def written(self) -> list[Place]:
        """Return the records whose letters are safe since the last call.

        Raises:
            DeadLetterError: one could not be written.

        """
        written, self._written = self._written, []
        return written

    @abstractmethod
    def close(self) -> None:
        """Close the destination, after a short wait for unconfirmed letters."""


def open_dead_letters(target: str, config: ConsumerConfig) -> DeadLetters:
    """Open `file:PATH` or `topic:NAME`.

    Raises:
        ConfigurationError: the file cannot be written, or the topic does not exist.
        DeadLetterError: no broker answered.

    """
    kind, _, name = target.partition(":")
    return LetterFile(Path(name), config.group) if kind == "file" else LetterTopic(name, config)


class LetterFile(DeadLetters):
    """One JSON object per line: `record` as in the frames, `group`, `failures`, `reason`, `failed_at_ms`."""

    def __init__(self, path: Path, group: str) -> None:
        """Open the file for appending; create it if it is missing."""
        super().__init__()
        self._path = path
        self._group = group
        try:
            self._file = self._opened()
        except OSError as error:
            raise ConfigurationError(f"dead_letter: {path} cannot be written: {error.strerror}") from None

    def _opened(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        size_bytes = os.fstat(file).st_size
        if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
            os.write(file, b"\n")  # ends a partial line (the disk was full), or the next one would be lost
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return file

    def write(self, letter: Letter) -> None:
        """Append a line and sync it. Several agents may share the file, also while its disk is full.

        Somebody may move or delete it at any time, as logrotate does: then the next one is begun.
        """
        document = {
            "record": record_document(letter.record),
            "group": self._group,
            "failures": letter.failures,
            "reason": letter.reason,
            "failed_at_ms": time.time_ns() // 1_000_000,
        }
        line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        try:
            self._follow()
            self._put(line)
            if self._follow():  # it was moved at that moment, and may be deleted next
                self._put(line)
        except OSError as error:
            raise DeadLetterError(f"{self._path}: a dead letter cannot be written: {error.strerror}") from None
        record = letter.record
        self._written.append(((record.topic, record.partition), record.offset))

    def _follow(self) -> bool:
        """Begin the next file if this one was moved or deleted; return whether it was."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                return False
        former, self._file = self._file, self._opened()
        os.close(former)
        return True

    def _put(self, line: bytes) -> None:
        if not any(self._append(line) for _ in range(MAX_TRIES)):
            raise DeadLetterError(f"{self._path}: other programs write parts of lines all the time")
        os.fsync(self._file)

    def _append(self, line: bytes) -> bool:
        """Append in one call; return whether the line is whole: it may be glued to a part of another agent's line."""
        if os.write(self._file, line) != len(line):
            raise DeadLetterError(f"{self._path}: a dead letter was written only in part")
        begin = os.lseek(self._file, 0, os.SEEK_CUR) - len(line)  # where the kernel has appended it
        return begin == 0 or os.pread(self._file, 1, begin - 1) == b"\n"

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LetterTopic(DeadLetters):
    """The unchanged record, with headers `dead_letter.…` that say where it came from and why it failed."""

    def __init__(self, topic: str, config: ConsumerConfig) -> None:
        """Connect, and check that the topic exists."""
        super().__init__()
        self._topic = topic
        self._group = config.group
        self._failure: str | None = None
        settings: dict[str, Any] = {
            "message.max.bytes": MAX_LETTER_BYTES,
            **config.kafka_config,
            "bootstrap.servers": config.bootstrap,
            "client.id": f"{config.client_id}-dead-letters",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": WRITE_TIMEOUT_MS,
            "topic.metadata.propagation.max.ms": VANISHED_TIMEOUT_MS,
        }
        try:
            self._producer = Producer(settings, logger=KafkaLog("librdkafka"))
        except KafkaException as error:
            raise ConfigurationError(f"kafka_config: for dead letters in a topic: {error.args[0].str()}") from None
        try:
            found = self._producer.list_topics(topic, timeout=CONNECT_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise DeadLetterError(f"no Kafka broker answered at {config.bootstrap}: {error.args[0].str()}") from None
        if found.error is not None:
            raise ConfigurationError(f"dead_letter: topic {topic} at {config.bootstrap}: {found.error.str()}")

    def write(self, letter: Letter) -> None:
        """Hand a letter to Kafka's client."""
        record = letter.record
        own = {
            "topic": record.topic,
            "partition": str(record.partition),
            "offset": str(record.offset),
            "group": self._group,
            "failures": str(letter.failures),
            "reason": letter.reason,
        }
        headers: list[tuple[str, str | bytes | None]] = [
            *record.headers,
            *((HEADER_PREFIX + key, value.encode()) for key, value in own.items()),
        ]
        place = ((record.topic, record.partition), record.offset)
        try:
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                headers=headers,
                timestamp=record.timestamp_ms or 0,
                on_delivery=partial(self._delivered, place),
            )
        except (KafkaException, BufferError) as error:
            raise DeadLetterError(f"topic {self._topic}: a dead letter cannot be written: {error}") from None

    def written(self) -> list[Place]:
        """Return the records whose letters Kafka has confirmed since the last call."""
        self._producer.poll(0)
        if self._failure is not None:
            raise DeadLetterError(f"topic {self._topic}: a dead letter cannot be written: {self._failure}")
        return super().written()

    def close(self) -> None:
        """Wait briefly for unconfirmed letters."""
        self._producer.flush(CLOSE_TIMEOUT_S)

    def _delivered(self, place: Place, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._written.append(place)
        else:
            self._failure = error.str()
