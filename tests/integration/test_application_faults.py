"""Applications that raise in callbacks, fork, or die in `on_revoke`; servers that go away or refuse a consumer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types do not say what it exports
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kazoo.client import KazooClient
from kazoo.security import make_acl

from consumer_agent import AuthorizationError, CommitFailedError, Consumer, TopicPartition
from tests.integration.fake_coordinator import SESSION_TIMEOUT_MS, WAIT_S, Application, Stage, assert_stays, wait_until
from tests.integration.scenario import Scenario
from zkrebalancer.localcluster import faults
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import Program
from zkrebalancer.protocol import paths

pytestmark = pytest.mark.timeout(240)

OUTAGE_S = 10.0
CALLBACKS = ("on_assign", "on_revoke", "on_lost")
AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
PROGRAM = """
import os, signal, sys
from consumer_agent import AuthorizationError, CommitFailedError, Consumer, ConsumerStateError

def die(partitions):
    print("dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

zookeeper, bootstrap, group, topic, events, name = sys.argv[1:]
with Consumer(zookeeper=zookeeper, bootstrap=bootstrap, group=group, client_id=name, session_timeout_ms=2000,
              events_directory=events) as consumer:
"""
DIES = """
    consumer.subscribe([topic], on_revoke=die)
    for batch in consumer:
        pass
"""
FORKS = """
    signal.signal(signal.SIGTERM, lambda *_: consumer_ends.append(1))
    consumer_ends = []
    consumer.subscribe([topic])
    while not consumer.poll():
        pass
    child = os.fork()
    if child == 0:
        try:
            consumer.poll()
        except ConsumerStateError as error:
            print("child:", error, flush=True)
        sys.exit(3)  # leaves by the end of `with`
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    while not consumer_ends:
        consumer.poll(0.1)
"""


def start(scenario: Scenario, group: str, body: str) -> Program:
    """Begin a program that consumes the scenario's topic."""
    lab = scenario.lab
    name = f"{group}-own"
    (topic,) = scenario.topics
    arguments = [lab.cluster.zookeeper, lab.cluster.bootstrap, group, topic, str(lab.events), name]
    program = lab.programs[name] = lab.cluster.program(name, [sys.executable, "-c", PROGRAM + body, *arguments])
    program.spawn()
    scenario.groups[group].append(name)
    return program


def has_logged(program: Program, text: str) -> bool:
    return text in program.log.read_text()


def test_an_application_that_is_killed_in_on_revoke(scenario: Scenario) -> None:
    """Nobody gets its partitions before its session is over; nothing is lost."""
    scenario.begin(members=0)
    doomed = {group: start(scenario, group, DIES) for group in scenario.groups}
    scenario.settle()
    scenario.join_all()
    for group, program in doomed.items():
        scenario.wait_end(program.name)
        assert "dies" in program.log.read_text()
        scenario.groups[group].remove(program.name)
    scenario.verify()


def test_an_application_that_forks(scenario: Scenario) -> None:
    """The child is told that it has no consumer, and its end costs the parent nothing."""
    scenario.begin(members=1)
    forking = {group: start(scenario, group, FORKS) for group in scenario.groups}
    scenario.settle()
    for program in forking.values():
        scenario.lab.wait_for("the child's end", partial(has_logged, program, "child ended with 3"))
        assert "child: poll: the consumer belongs to the process before the fork" in program.log.read_text()
    verdict = scenario.verify()
    assert verdict.duplicated == 0


@pytest.mark.parametrize("raising", CALLBACKS)
def test_a_callback_that_raises_raises_from_poll_and_the_consumer_goes_on(stage: Stage, raising: str) -> None:
    stage.produce([0], 10)
    told: list[str] = []

    def callback(name: str) -> Any:
        def call(_partitions: list[TopicPartition]) -> None:
            told.append(name)
            if name == raising and told.count(name) == 1:
                raise ValueError(name)

        return call

    consumer = Consumer(
        zookeeper=stage.cluster.zookeeper,
        bootstrap=stage.cluster.bootstrap,
        group=stage.group,
        session_timeout_ms=SESSION_TIMEOUT_MS,
    )
    errors: list[str] = []
    offsets: list[int] = []
    ended: list[bool] = []

    def consume() -> None:
        with consumer:
            consumer.subscribe(
                [stage.topic], **{name: callback(name) for name in ("on_assign", "on_revoke", "on_lost")}
            )
            while not ended:
                try:
                    offsets.extend(record.offset for record in consumer.poll(0.05))
                except ValueError as error:
                    errors.append(str(error))

    with ThreadPoolExecutor(1) as executor:
        consuming = executor.submit(consume)
        try:
            member = stage.wait_member()
            stage.wait_ack(stage.start(member, 0))
            wait_until(lambda: offsets == list(range(10)), "the records")
            if raising == "on_lost":
                stage.evict(member)
                member = stage.wait_member(member)
            else:
                stage.wait_ack(stage.stop(member, 0))
                wait_until(lambda: "on_revoke" in told, "on_revoke")
            stage.wait_ack(stage.start(member, 0))
            stage.produce([0], 5)
            wait_until(lambda: offsets[-5:] == list(range(10, 15)), "records after it")
        finally:
            ended.append(True)
            consuming.result(WAIT_S)
    assert errors == [raising]


@pytest.fixture
def own_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Make a stage on servers of its own, which the test may break."""
    with LocalCluster(kafka_properties=getattr(request, "param", {})) as cluster:
        stage = Stage(cluster)
        yield stage
        stage.close()


def is_connected(consumer: Consumer) -> bool:
    engine = consumer._core.engine
    return engine is not None and engine._machine.member is not None and engine._machine.member.connected


@pytest.mark.parametrize(("policy", "goes_on"), [("pause", False), ("continue", True)])
def test_zookeeper_is_gone_for_ten_seconds(own_stage: Stage, policy: str, goes_on: bool) -> None:
    """`pause` returns nothing once the lease is in doubt, `continue` all that comes; neither loses or doubles any."""
    stage = own_stage
    with Application(stage, suspended_policy=policy).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        stage.produce([0], 10)
        wait_until(lambda: len(application.records) == 10, "records before")
        server = stage.cluster.zookeeper_servers[0]
        faults.stop_zookeeper(server)
        wait_until(lambda: not is_connected(application.consumer), "the outage to be seen")
        stage.produce([0], 10)
        if goes_on:
            wait_until(lambda: len(application.records) == 20, "records meanwhile")
        assert_stays(lambda: len(application.records) == (20 if goes_on else 10), OUTAGE_S)
        server.start()
        stage.produce([0], 10)
        wait_until(lambda: application.offsets(0) == list(range(30)), "all records, once")
    assert application.told[0][0] == "assign"
    assert "lost" not in [what for what, _ in application.told]


@pytest.mark.parametrize("own_stage", [AUTHORIZER], indirect=True)
def test_the_right_to_read_a_topic_is_lost_and_comes_back(own_stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage = own_stage
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap})
    denied = (ResourceType.TOPIC, stage.topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.READ)
    with Application(stage).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        stage.produce([0], 10)
        wait_until(lambda: len(application.records) == 10, "records before")
        binding = AclBinding(*denied, AclPermissionType.DENY)
        admin.create_acls([binding])[binding].result(WAIT_S)
        wait_until(lambda: "authorization failed" in caplog.text, "a line of log")
        filter_ = AclBindingFilter(*denied, AclPermissionType.DENY)
        admin.delete_acls([filter_])[filter_].result(WAIT_S)
        stage.produce([0], 10)
        wait_until(lambda: application.offsets(0) == list(range(20)), "records after")


def test_the_right_to_write_an_offset_is_lost(stage: Stage) -> None:
    """The application is told which node it is; it is out of the group until it polls again."""
    stage.produce([0], 10)
    with Application(stage, enable_auto_commit=False).start() as application:
        member = stage.wait_member()
        stage.wait_ack(stage.start(member, 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        application.hold()
        application.consumer.commit({(stage.topic, 0): 5})
        path = paths.offsets(stage.group, stage.topic, 0)
        operator = KazooClient(stage.cluster.zookeeper)
        operator.start()
        operator.set_acls(path, [make_acl("world", "anyone", read=True)])
        operator.stop()
        operator.close()
        with pytest.raises(CommitFailedError, match="ZooKeeper does not allow it to write"):
            application.consumer.commit()
        with pytest.raises(AuthorizationError, match=path):
            application.consumer.poll(WAIT_S)
        assert application.told[-1][0] == "lost"
        assert stage.offset(0) == 5
        application.release()
        stage.wait_member(member)
