"""The agent loses the right to read at the broker: its client is not replaced, and continues when the right is back."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from consumer_agent.kafka import fetcher
from tests.integration.fake_coordinator import WAIT_S, Application, Stage, assert_stays, wait_until
from zkrebalancer.localcluster.cluster import LocalCluster

GUARDED = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def allow(bootstrap: str, topic: str, operation: AclOperation) -> None:
    """Allow an operation to all; from the first rule on, others without a rule are refused."""
    where = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL)
    rule = AclBinding(*where, "User:ANONYMOUS", "*", operation, AclPermissionType.ALLOW)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its end would end its request
    admin.create_acls([rule])[rule].result(WAIT_S)


def test_who_may_not_read_any_more_waits_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka still reports the log end, so it looks as if the client had forgotten the partition."""
    monkeypatch.setattr(fetcher, "LOOK_INTERVAL_MS", 300)
    with LocalCluster(chroot="/guarded", kafka_properties=GUARDED) as cluster:
        stage = Stage(cluster)
        stage.produce([0], 10)
        with Application(stage).start() as application:
            stage.wait_ack(stage.start(stage.wait_member(), 0))
            wait_until(lambda: len(application.records) == 10, "the records")
            for operation in (AclOperation.DESCRIBE, AclOperation.WRITE):
                allow(cluster.bootstrap, stage.topic, operation)
            wait_until(lambda: "TOPIC_AUTHORIZATION_FAILED" in caplog.text, "the refusal")
            stage.produce([0], 10)
            assert_stays(lambda: "takes its place" not in caplog.text, 3.0)
            assert len(application.records) == 10
            allow(cluster.bootstrap, stage.topic, AclOperation.READ)
            wait_until(lambda: application.offsets(0) == list(range(20)), "the rest")
            assert application.told == [("assign", [(stage.topic, 0)])]
        stage.close()
