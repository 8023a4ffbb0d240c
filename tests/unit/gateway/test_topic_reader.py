"""What the gateway makes of the brokers' answers about topics."""

from __future__ import annotations

from uuid import UUID

from zkrebalancer.gateway.topic_reader import MISSING_S, Memory, topics_of
from zkrebalancer.group_protocol.topics import NO_ID, Topic, made_up_id


def topic(name: str | None, partitions: int, error_code: int = 0) -> dict[str, object]:
    return {"name": name, "topic_id": UUID(int=7), "partitions": [{}] * partitions, "error_code": error_code}


def test_topics_with_an_error_or_without_a_name_are_left_out() -> None:
    """In `topics_of`, keep them: a topic that is loading would have no partitions, and members lose theirs."""
    found = [topic("t", 3), topic("loading", 0, error_code=5), topic(None, 2)]
    assert topics_of({"topics": found}) == {"t": Topic(UUID(int=7), 3)}


def test_topics_without_ids_are_told_apart() -> None:
    """In `topics_of`, keep the id that all of them have: a group's partitions were taken for those of another topic."""
    found = topics_of({"topics": [{**topic(name, 3), "topic_id": NO_ID} for name in ("t", "u")]})
    assert found["t"].topic_id != found["u"].topic_id
    assert not any(one.has_id for one in found.values())
    assert found == {name: Topic(made_up_id(name), 3) for name in found}


def test_an_id_that_one_broker_does_not_show_stays() -> None:
    """In `Memory.update`, believe each answer: while brokers get a new version, ids would come and go."""
    memory, known, later = Memory(), Topic(UUID(int=1), 6), Topic.of("t", NO_ID, 8)
    assert memory.update({"t": known}, 0.0) == {"t": known}
    assert memory.update({"t": later}, 2.0) == {"t": Topic(known.topic_id, 8)}
    assert Memory().update({"t": later}, 2.0) == {"t": later}


def test_a_broker_that_has_just_started_takes_nothing_from_anybody() -> None:
    """In `Memory.update`, believe each answer: a restart of the only broker took all partitions from all members."""
    memory, t, u = Memory(), Topic(UUID(int=1), 6), Topic(UUID(int=2), 3)
    assert memory.update({"t": t, "u": u}, 0.0) == {"t": t, "u": u}
    assert memory.update({}, 2.0) == {"t": t, "u": u}
    assert memory.update({"t": Topic(t.topic_id, 2), "new": u}, 4.0) == {"t": t, "u": u, "new": u}
    assert memory.misses
    assert memory.update({"t": t, "u": u}, 6.0) == {"t": t, "u": u, "new": u}
    assert memory.update({"t": t, "u": u}, 6.0 + MISSING_S) == {"t": t, "u": u}
    assert not memory.misses


def test_a_topic_that_stays_missing_is_gone_and_one_created_again_is_another_one() -> None:
    """In `Memory.update`, count from the last answer, or compare names alone: it would never be gone, or never new."""
    memory, t, again = Memory(), Topic(UUID(int=1), 6), Topic(UUID(int=9), 2)
    memory.update({"t": t}, 0.0)
    assert memory.update({"t": again}, 2.0) == {"t": again}
    for now_s in (4.0, 6.0, 4.0 + MISSING_S - 0.1):
        assert memory.update({}, now_s) == {"t": again}
    assert memory.update({}, 4.0 + MISSING_S) == {}
