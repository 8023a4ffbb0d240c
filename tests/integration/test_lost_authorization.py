"""An agent, the topic mirror or the gateway loses a right at the broker: it loses nothing else, and goes on later."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from consumer_agent import CommitFailedError
from consumer_agent.kafka import fetcher
from tests.integration.fake_coordinator import WAIT_S, Application, Stage, assert_stays
from tests.support.waiting import wait_until
from zkrebalancer.gateway import topic_reader
from zkrebalancer.gateway.dialing import Dialer
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.security import Upstream
from zkrebalancer.gateway.topic_reader import TopicReader
from zkrebalancer.group_protocol.topics import Topic
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.topic_mirror.kafka_metadata import read_kafka

GUARDED = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(chroot="/guarded", kafka_properties=GUARDED) as cluster:
        yield cluster


@pytest.fixture
def guarded(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Create a topic and a group, and look for stalls often."""
    monkeypatch.setattr(fetcher, "LOOK_INTERVAL_MS", 300)
    monkeypatch.setattr(fetcher, "ALERT_LOOK_INTERVAL_MS", 300)
    stage = Stage(cluster)
    stage.produce([0], 10)
    yield stage
    stage.close()


@contextmanager
def denied(stage: Stage, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
    """Take a right away from everybody, for a while."""
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
    where, who = (kind, name, ResourcePatternType.LITERAL), ("User:ANONYMOUS", "*")
    allowed = AclBinding(*where, *who, AclOperation.ALL, AclPermissionType.ALLOW)
    admin.create_acls([allowed])[allowed].result(WAIT_S)  # from the first rule on, all need one
    rule = AclBinding(*where, *who, operation, AclPermissionType.DENY)
    admin.create_acls([rule])[rule].result(WAIT_S)
    yield
    filtered = AclBindingFilter(*where, *who, operation, AclPermissionType.DENY)
    assert len(admin.delete_acls([filtered])[filtered].result(WAIT_S)) == 1


def told(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.message for record in caplog.records if record.levelname == "WARNING")


def test_who_may_not_read_any_more_waits_and_loses_nothing(guarded: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka still reports the log end, so it looks as if the client had forgotten the partition."""
    with Application(guarded).start() as application:
        guarded.wait_ack(guarded.start(guarded.wait_member(), 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        with denied(guarded, ResourceType.TOPIC, guarded.topic, AclOperation.READ):
            wait_until(lambda: told(caplog, "the right to READ the topic is missing"), "the refusal")
            guarded.produce([0], 10)
            assert_stays(lambda: "is replaced" not in caplog.text, 3.0)
            assert len(application.records) == 10
        wait_until(lambda: application.offsets(0) == list(range(20)), "the rest")
        assert application.told == [("assign", [(guarded.topic, 0)])]
    assert told(caplog, "the right to READ the topic is missing") == 1


@pytest.mark.parametrize(
    ("storage", "unsaid"),
    [("zookeeper", "Kafka does not say where it begins"), ("kafka", "does not say what is stored")],
)
def test_who_may_not_see_a_topic_any_more_reads_on_and_begins_later(
    guarded: Stage, caplog: pytest.LogCaptureFixture, storage: str, unsaid: str
) -> None:
    """A partition has to be asked for; what is fetched already needs no such right."""
    guarded.produce([1], 10)
    with Application(guarded, offsets_storage=storage).start() as application:
        member = guarded.wait_member()
        guarded.wait_ack(guarded.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        with denied(guarded, ResourceType.TOPIC, guarded.topic, AclOperation.DESCRIBE):
            start = guarded.start(member, 1)
            text = f"topic {guarded.topic}: the right to DESCRIBE the topic is missing"
            wait_until(lambda: told(caplog, text), "the refusal")
            wait_until(lambda: told(caplog, f"{unsaid}; asking again"), "many tries")
            guarded.wait_ack(start)  # no other partition waits for it
        guarded.produce([0], 10)
        wait_until(lambda: application.offsets(0) == list(range(20)), "the rest")
        wait_until(lambda: application.offsets(1) == list(range(10)), "the records of the other partition")
    refused = [line for line in caplog.messages if text in line]
    assert 1 <= len(set(refused)) == len(refused) <= {"zookeeper": 1, "kafka": 2}[storage]  # offsets; ends of logs
    assert told(caplog, f"{unsaid}; asking again") == 1


def test_who_may_not_use_the_group_any_more_says_so_once_and_goes_on_later(
    guarded: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.produce([1], 10)
    with Application(guarded, offsets_storage="kafka", auto_commit_interval_ms=100).start() as application:
        member = guarded.wait_member()
        guarded.wait_ack(guarded.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        group = (ResourceType.GROUP, guarded.group)
        with denied(guarded, *group, AclOperation.READ):
            guarded.produce([0], 5)
            text = f"{guarded.topic}/0: Kafka did not store the offset: the right to READ the group is missing"
            wait_until(lambda: told(caplog, text), "the refusal")
            guarded.wait_ack(guarded.start(member, 2))  # a write without offsets
            application.hold()
            with pytest.raises(CommitFailedError, match="the right to READ the group is missing"):
                application.consumer.commit()
            application.release()
        with denied(guarded, *group, AclOperation.DESCRIBE):
            start = guarded.start(member, 1)
            text_of_read = f"group {guarded.group}: the right to DESCRIBE the group is missing"
            wait_until(lambda: told(caplog, text_of_read), "the refusal")
            wait_until(lambda: told(caplog, "Kafka does not say what is stored; asking again"), "many tries")
            assert guarded.is_pending(start)  # what is stored must never count as missing
        guarded.wait_ack(start)
        wait_until(lambda: len(application.records) == 10 + 5 + 10, "the other partition's records")
        application.hold()
        application.consumer.commit()
        stored = application.consumer.committed()
        application.release()
    assert (stored[guarded.topic, 0], stored[guarded.topic, 1]) == (15, 10)
    assert [told(caplog, one) for one in (text, text_of_read, "what is stored; asking")] == [1, 1, 1]


def test_who_may_not_see_the_group_reads_and_is_told_of_no_partition(
    guarded: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Complaints.note_partition`, skip nothing: "fetching None/0: the right to READ the group is missing"."""
    caplog.set_level(logging.INFO, "consumer_agent")
    with (
        denied(guarded, ResourceType.GROUP, guarded.group, AclOperation.DESCRIBE),
        Application(guarded).start() as application,
    ):
        guarded.wait_ack(guarded.start(guarded.wait_member(), 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        wait_until(lambda: "FindCoordinator" in caplog.text, "the client to tell that it does not find the group")
    assert "fetching None" not in caplog.text


def test_the_mirror_does_not_take_what_it_may_not_see_any_more_for_deleted(guarded: Stage) -> None:
    """In `read_kafka`, ask for listed topics only: Kafka lists no others, as if they did not exist."""
    admin = AdminClient({"bootstrap.servers": guarded.cluster.bootstrap})
    with denied(guarded, ResourceType.TOPIC, guarded.topic, AclOperation.DESCRIBE):
        wait_until(lambda: guarded.topic not in read_kafka(admin, "PLAINTEXT").names, "the broker to know the rule")
        found = read_kafka(admin, "PLAINTEXT", {guarded.topic, "never-made"})
        assert guarded.topic in found.names
        assert found.refused.keys() == {guarded.topic}
        assert "never-made" not in found.names  # nor is it made by asking
    wait_until(lambda: guarded.topic in read_kafka(admin, "PLAINTEXT").topics, "the right to be back")


def test_the_gateway_does_not_take_what_it_may_not_see_any_more_for_deleted(
    guarded: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `TopicReader._read`, look for nothing."""
    monkeypatch.setattr(topic_reader, "MISSING_S", 1e-6)
    host, _, port = guarded.cluster.bootstrap.rpartition(":")
    links, read = Links([(host, int(port))], Dialer(Upstream())), list[Mapping[str, Topic]]()
    reader = TopicReader(links, read.append)

    def undescribed() -> int:
        reader._read()
        return reader.undescribed

    assert not undescribed()
    with denied(guarded, ResourceType.TOPIC, guarded.topic, AclOperation.DESCRIBE):
        wait_until(undescribed, "the broker to know the rule")
    wait_until(lambda: not undescribed(), "the right to be back")
    links.close()
    assert all(guarded.topic in topics for topics in read)
