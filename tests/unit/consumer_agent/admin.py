"""Kafka's admin client as `OffsetQueries` uses it; the test says what it answers, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any
from unittest import mock

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # it is its public name

Answers = Callable[[tuple[str, int], str | int], int]  # an offset; or it raises
NO_ANSWER = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Admin:
    """Answers at once, or with `holds` when `release` is called."""

    def __init__(self, answers: Answers, *, holds: bool = False) -> None:
        self.asked: list[list[int]] = []  # the partitions of each request
        self.described: list[str] = []
        self._answers = answers
        self._holds = holds
        self._held: list[Callable[[], None]] = []

    def list_offsets(self, request: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Future[Any]]:
        self.asked.append([tp.partition for tp in request])
        futures: dict[TopicPartition, Future[Any]] = {}
        for tp, spec in request.items():
            futures[tp] = Future()
            self._held.append(lambda tp=tp, spec=spec, future=futures[tp]: self._resolve(tp, spec, future))  # type: ignore[misc]
        if not self._holds:
            self.release()
        return futures

    def release(self) -> None:
        held, self._held = self._held, []
        for answer in held:
            answer()

    def describe_topics(self, topics: Any, **_: object) -> None:
        self.described += topics.topic_names

    def _resolve(self, tp: TopicPartition, spec: Any, future: Future[Any]) -> None:
        where = {OffsetSpec.earliest(): "earliest", OffsetSpec.latest(): "latest"}.get(spec, 1)  # type: ignore[no-untyped-call]
        try:
            future.set_result(mock.Mock(offset=self._answers((tp.topic, tp.partition), where)))
        except KafkaException as error:
            future.set_exception(error)
