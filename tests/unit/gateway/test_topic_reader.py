"""What the gateway makes of the brokers' answers about topics."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

import gevent
import pytest

from zkrebalancer.gateway import topic_reader
from zkrebalancer.gateway.dialing import LinkError
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.rights import TOPIC_AUTHORIZATION_FAILED
from zkrebalancer.gateway.topic_reader import MISSING_S, Memory, TopicReader, partition_counts, topics_of
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.stored import StoredConsumerGroup, StoredTopic
from zkrebalancer.group_protocol.topics import NO_ID, Topic, made_up_id, of_groups
from zkrebalancer.kafka_protocol import codec


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


def test_topics_that_cannot_be_read_are_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `TopicReader.run`, say nothing: nobody can join a KIP-848 or central group, and nobody knows why."""

    class Away:
        def ask_any(self, name: str, _fields: object) -> None:
            raise LinkError(f"{name}: an answer of {64 << 20} bytes")

    monkeypatch.setattr(topic_reader, "INTERVAL_S", 0.001)
    reader = TopicReader(cast("Links", Away()), lambda _topics: None)
    reader.want()
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.05):
        reader.run()
    assert caplog.messages == ["the topics cannot be read: Metadata: an answer of 67108864 bytes"]


class Brokers:
    """Brokers with rules: an answer about all topics leaves out those that may not be described."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self.hidden: set[str] = set()
        self.by_name: list[set[str]] = []  # what was asked for

    def ask_any(self, name: str, fields: dict[str, Any]) -> Brokers.Answer:
        assert name == "Metadata"
        if fields["topics"] is None:
            return Brokers.Answer([topic(one, 3) for one in sorted(self.topics - self.hidden)])
        assert not fields["allow_auto_topic_creation"]
        names = {one["name"] for one in fields["topics"]}
        self.by_name.append(names)
        return Brokers.Answer([topic(one, 3, self._error_of(one)) for one in sorted(names)])

    def _error_of(self, name: str) -> int:
        if name in self.hidden:  # whether it exists or not
            return TOPIC_AUTHORIZATION_FAILED
        return 0 if name in self.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    class Answer:
        """An answer, not yet decoded."""

        def __init__(self, topics: list[dict[str, object]]) -> None:
            self.content = repr(topics).encode()
            self._topics = topics

        def fields(self) -> dict[str, Any]:
            return {"topics": self._topics}


class Reading:
    """A reader of topics, at a time that the test sets."""

    def __init__(self, brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.read: list[set[str]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.reader = TopicReader(cast("Links", brokers), self._note)

    def _note(self, topics: Mapping[str, Topic]) -> None:
        self.read.append(set(topics))

    def until(self, end_s: float) -> None:
        while self.now_s < end_s:
            self.reader._read()
            self.now_s += topic_reader.INTERVAL_S


def test_topics_that_may_no_longer_be_described_are_not_taken_for_deleted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `TopicReader._read`, look for nothing: a rule that was removed stops all members, silently."""
    brokers = Brokers("t", "u", "v")
    one = Reading(brokers, monkeypatch)
    one.until(2.0)
    brokers.hidden |= {"t", "u"}
    with caplog.at_level(logging.WARNING, topic_reader.__name__):
        one.until(2.0 + 5 * MISSING_S)
    assert one.read == [{"t", "u", "v"}]
    assert one.reader.undescribed == 2
    assert caplog.messages[0] == (
        "Kafka does not describe these topics (the right to DESCRIBE them is missing), which stay as they are: t, u"
    )
    assert len(caplog.messages) < 5
    brokers.topics -= {"t", "v"}
    one.until(one.now_s + MISSING_S + 4.0)
    assert one.read[1:] == [{"t", "u"}]
    brokers.hidden.clear()
    one.until(one.now_s + MISSING_S + 4.0)
    assert one.read[2:] == [{"u"}]
    assert one.reader.undescribed == 0
    asked = len(brokers.by_name)
    one.until(one.now_s + MISSING_S)
    assert len(brokers.by_name) == asked  # nothing is missing


def test_topics_of_groups_that_were_read_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Memory.remember`, do not note that they are missing: nothing is looked for while answers stay the same."""
    brokers = Brokers("t", "u")
    brokers.hidden |= {"u"}
    one = Reading(brokers, monkeypatch)
    one.until(2.0)
    stored = {name: Topic(UUID(int=7), 3) for name in "tuv"}
    one.reader.remember(stored)
    one.until(4.0)
    assert (one.read, one.reader.undescribed) == ([{"t"}, {"t", "u", "v"}], 1)
    one.until(4.0 + 2 * MISSING_S)
    assert one.read[2:] == [{"t", "u"}]


def test_a_topic_that_is_described_but_not_listed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `TopicReader._look_for`, return errors only."""
    brokers = Brokers("t")
    one = Reading(brokers, monkeypatch)
    one.until(2.0)
    monkeypatch.setattr(brokers, "_error_of", lambda _name: 0)
    brokers.topics.clear()  # at the broker that lists
    one.until(2.0 + 3 * MISSING_S)
    assert one.read == [{"t"}]
    assert one.reader.undescribed == 0


def test_a_topic_that_may_not_be_described_may_exist() -> None:
    brokers = Brokers("t", "u")
    brokers.hidden |= {"u"}
    assert partition_counts(cast("Links", brokers), ["t", "u", "v"]) == {"t": 3, "u": None}


class Encoding(Brokers):
    """Brokers that get what a link can write."""

    def ask_any(self, name: str, fields: dict[str, Any]) -> Brokers.Answer:
        codec.encode(f"{name}Request", 9, fields)
        return super().ask_any(name, fields)


@pytest.mark.parametrize("name", ["n" * 40_000, "a/b", ""])
def test_names_that_no_topic_can_have_are_not_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `of_groups`, return all names: one that is too long ends each gateway that reads this group."""
    topics = [StoredTopic(one, UUID(int=number).bytes, 3) for number, one in enumerate(("t", name), 1)]
    brokers = Encoding("t")
    one = Reading(brokers, monkeypatch)
    one.reader.remember(of_groups([StoredConsumerGroup(3, 3, tuple(topics), ())]))
    one.until(2 * MISSING_S)
    assert one.read == [{"t"}]
    assert brokers.by_name == []
