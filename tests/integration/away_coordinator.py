"""`python -m tests.integration.away_coordinator BOOTSTRAP`: asks a group's coordinator, also while it is away.

Says "answered", waits for a line of input, says how the same requests ended after LIMIT_S without a coordinator, waits
again, and says "answered" when it has come back.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from consumer_agent.kafka.group_admin import GroupAdmin
from tests.support.deadlines import WITHIN_S

GROUP = "asks"
LIMIT_S = 0.5
STORED = [ConsumerGroupTopicPartitions(GROUP, [TopicPartition("orders", 0, 7)])]
REQUESTS: list[tuple[str, list[Any]]] = [
    ("describe_consumer_groups", [GROUP]),
    ("alter_consumer_group_offsets", STORED),
    ("list_consumer_group_offsets", STORED),
]


def main(bootstrap: str) -> None:
    admins = [GroupAdmin({"bootstrap.servers": bootstrap, "log_level": 0}) for _ in REQUESTS]
    for admin in admins:
        admin.open()
    _until_answered(admins)
    sys.stdin.readline()
    ends = [_end(admin.ask(*request, LIMIT_S)) for admin, request in zip(admins, REQUESTS, strict=True)]
    _say(*ends)
    sys.stdin.readline()
    _until_answered(admins)


def _until_answered(admins: list[GroupAdmin]) -> None:
    """Repeat each request until the coordinator has loaded the group."""
    for admin, request in zip(admins, REQUESTS, strict=True):
        while _end(admin.ask(*request, WITHIN_S)) not in {"answered", KafkaError.GROUP_ID_NOT_FOUND}:
            pass
    _say("answered")


def _end(answer: Future[Any]) -> object:
    error = answer.exception(2 * WITHIN_S)
    return error.args[0].code() if isinstance(error, KafkaException) else error or "answered"


def _say(*what: object) -> None:
    print(*what, flush=True)  # noqa: T201  # for the test


if __name__ == "__main__":
    main(*sys.argv[1:])
