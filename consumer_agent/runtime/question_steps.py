"""The methods that ask Kafka something, as generators (see `steps.py`). They may be called beside a poll."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from consumer_agent import arguments
from consumer_agent.errors import KafkaUnavailableError
from consumer_agent.runtime.frontend import Frontend
from consumer_agent.runtime.moving import seek
from consumer_agent.runtime.steps import Steps, until
from zkrebalancer.protocol.fields import TopicPartition

if TYPE_CHECKING:
    from consumer_agent.kafka.questions import Question

RETRY_PAUSE_S = 0.2

Partitions = Iterable[TopicPartition] | None  # None: the assigned ones


def ends(
    frontend: Frontend, method: str, partitions: Partitions, where: str, timeout_s: float
) -> Steps[dict[TopicPartition, int]]:
    """Return where partitions begin ("earliest") or end ("latest")."""
    wanted = frontend.assigned() if partitions is None else arguments.checked_partitions(method, partitions)
    return (yield from _offsets(frontend, method, dict.fromkeys(wanted, where), timeout_s))


def offsets_for_times(
    frontend: Frontend, times: Mapping[TopicPartition, int], timeout_s: float
) -> Steps[dict[TopicPartition, int]]:
    """Return the first offset of each partition at or after its time."""
    wheres = arguments.checked_times("offsets_for_times", times)
    return (yield from _offsets(frontend, "offsets_for_times", wheres, timeout_s))


def seek_to(frontend: Frontend, method: str, partitions: Partitions, where: str, timeout_s: float) -> Steps[None]:
    """Continue where partitions begin or end."""
    frontend.require_machine_thread(method)
    wanted = frontend.assigned() if partitions is None else arguments.checked_partitions(method, partitions)
    frontend.require_assigned(method, wanted)
    seek(frontend, (yield from ends(frontend, method, wanted, where, timeout_s)), method)


def lag(frontend: Frontend, timeout_s: float) -> Steps[dict[TopicPartition, int]]:
    """Return how far the assigned partitions' ends are from their positions."""
    found = yield from ends(frontend, "lag", frontend.positions().keys(), "latest", timeout_s)
    return {tp: max(0, found[tp] - position) for tp, position in frontend.positions().items() if tp in found}


def partitions_for_topic(frontend: Frontend, topic: str, timeout_s: float) -> Steps[set[int] | None]:
    """Return the numbers of a topic's partitions, None if it does not exist."""
    method = "partitions_for_topic"
    arguments.check_timeout(method, timeout_s)
    arguments.check_topic(method, topic)
    from consumer_agent.kafka import questions  # noqa: PLC0415  # imports the admin client

    deadline_s = time.monotonic() + timeout_s
    while True:
        question = questions.about_topic(frontend.queries(method), topic, frontend.shared.changed)
        yield from _answer(frontend, question, deadline_s)
        if question.partitions is not None:
            return set(question.partitions)
        if question.is_over and not question.trouble:
            return None
        yield from _pause(frontend, f"{method}: no answer about topic {topic}", question.trouble, deadline_s)


def _offsets(
    frontend: Frontend, method: str, wheres: Mapping[TopicPartition, str | int], timeout_s: float
) -> Steps[dict[TopicPartition, int]]:
    """Ask for an offset of each partition, until all are known."""
    arguments.check_timeout(method, timeout_s)
    from consumer_agent.kafka import questions  # noqa: PLC0415  # imports the admin client

    deadline_s = time.monotonic() + timeout_s
    found: dict[TopicPartition, int] = {}
    queries = frontend.queries(method)
    while missing := {partition: where for partition, where in wheres.items() if partition not in found}:
        question = questions.about_offsets(queries, missing, frontend.shared.changed)
        yield from _answer(frontend, question, deadline_s)
        found.update(question.offsets)
        if len(found) < len(wheres):
            topic, number = min(wheres.keys() - found.keys())
            what = f"{method}: no answer about {len(wheres) - len(found)} partitions, such as {topic}/{number}"
            yield from _pause(frontend, what, question.trouble, deadline_s)
            queries = frontend.queries(method)  # another one after a replacement; none once the consumer is closed
    return {partition: found[partition] for partition in wheres}


def _answer(frontend: Frontend, question: Question, deadline_s: float) -> Steps[bool]:
    return until(frontend, lambda: question.is_over, deadline_s)


def _pause(frontend: Frontend, what: str, trouble: str, deadline_s: float) -> Steps[None]:
    """Wait before asking again.

    Raises:
        KafkaUnavailableError: there is no time left.

    """
    resumes_s = time.monotonic() + RETRY_PAUSE_S
    if resumes_s >= deadline_s:
        raise KafkaUnavailableError(f"{what}{f' ({trouble})' if trouble else ''}")
    yield from until(frontend, lambda: False, resumes_s)
