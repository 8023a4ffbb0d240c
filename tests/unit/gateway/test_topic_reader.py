"""What the gateway makes of the brokers' answers about topics."""

from __future__ import annotations

from uuid import UUID

from zkrebalancer.gateway.topic_reader import topics_of
from zkrebalancer.group_protocol.topics import Topic


def topic(name: str | None, partitions: int, error_code: int = 0) -> dict[str, object]:
    return {"name": name, "topic_id": UUID(int=7), "partitions": [{}] * partitions, "error_code": error_code}


def test_topics_with_an_error_or_without_a_name_are_left_out() -> None:
    """In `topics_of`, keep them: a topic that is loading would have no partitions, and members lose theirs."""
    found = [topic("t", 3), topic("loading", 0, error_code=5), topic(None, 2)]
    assert topics_of({"topics": found}) == {"t": Topic(UUID(int=7), 3)}
