"""A process that asks a group's coordinator, also while it is away.

It says "answered", waits for a line of input, says how the same requests ended after LIMIT_S without a coordinator,
waits again, and says "answered" when it has come back.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from consumer_agent.kafka.client import RECONNECT
from consumer_agent.kafka.group_admin import GroupAdmin
from tests.support.deadlines import WITHIN_S

GROUP = "asks"
LIMIT_S = 0.5
AGAIN_S = 2.0  # librdkafka may never answer what it asks of a coordinator that is loading the group
TIMED_OUT = " ".join(3 * [str(KafkaError._TIMED_OUT)])
WHERE = ("orders", 0)
REQUESTS: list[tuple[str, list[Any]]] = [
    ("describe_consumer_groups", [GROUP]),
    ("alter_consumer_group_offsets", [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(*WHERE, 7)])]),
    ("list_consumer_group_offsets", [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(*WHERE)])]),
]


@contextmanager
def asking(bootstrap: str) -> Iterator[Callable[[], str]]:
    """Begin the process, which has its first answers; each call lets it go on, and returns what it says then."""
    command = [sys.executable, "-m", "tests.integration.away_coordinator", bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def go_on() -> str:
            stdin.write("go on\n")
            return stdout.readline().strip()

        try:
            assert stdout.readline() == "answered\n"
            yield go_on
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()


def main(bootstrap: str) -> None:
    admins = [GroupAdmin({"bootstrap.servers": bootstrap, "log_level": 0, **RECONNECT}) for _ in REQUESTS]
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
        while _end(admin.ask(*request, AGAIN_S)) not in {"answered", KafkaError.GROUP_ID_NOT_FOUND}:
            pass
    _say("answered")


def _end(answer: Future[Any]) -> object:
    error = answer.exception(2 * WITHIN_S)
    return error.args[0].code() if isinstance(error, KafkaException) else error or "answered"


def _say(*what: object) -> None:
    print(*what, flush=True)  # noqa: T201  # for the test


if __name__ == "__main__":
    main(*sys.argv[1:])
