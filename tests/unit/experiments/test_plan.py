"""Every setting of a run is in its result: those that its programs get, but for addresses, names and folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from consumer_agent.config import ConsumerConfig
from consumer_agent.kafka import fetcher
from consumer_agent.kafka_config import LOGGER
from zkrebalancer.experiments import bulk_producer, java_programs, producer
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.experiments.members import central, kafka, reader
from zkrebalancer.experiments.members.reader import Membership
from zkrebalancer.experiments.plan import COORDINATOR_SESSION_TIMEOUT_MS, Plan
from zkrebalancer.experiments.play import Play, known_load
from zkrebalancer.experiments.protocols import PROTOCOLS
from zkrebalancer.experiments.scenarios import SCENARIOS
from zkrebalancer.localcluster import jars, slow_disk
from zkrebalancer.localcluster.programs import IN_PRODUCTION, ProgramFactory
from zkrebalancer.observe.events import EventLog
from zkrebalancer.protocol.calls import Content

WHERE = {  # servers are: addresses, ids and folders
    *("dataDir", "clientPort", "clientPortAddress", "server.1", "server.2", "server.3"),
    *("broker.id", "listeners", "advertised.listeners", "zookeeper.connect", "log.dirs", "process.roles", "node.id"),
    *("controller.listener.names", "listener.security.protocol.map", "controller.quorum.voters"),
}
WHO = {  # members, coordinators and gateways are
    *("--zookeeper", "--bootstrap", "--events", "--broker-id", "--listen", "--upstream", "--http"),
    *("--kind", "--group", "--topic", "--pattern", "bootstrap.servers", "group.id", "client.id", "on_commit"),
    *("zookeeper", "bootstrap", "group", "client_id", "group_instance_id"),
}
READING = {"--record-work-us", "--max-poll-records", "--delays"}
COMMANDS = {
    "java": java_programs.java_consumer_command,
    "zookeeper": java_programs.old_consumer_command,
    "helix": java_programs.helix_consumer_command,
}
PLANS = [
    Plan(protocol, SCENARIOS[scenario], tuning, SCENARIOS[scenario].cast(4, 24, 1), protocol.brokers[-1], 5)
    for protocol in PROTOCOLS.values()
    for scenario, tuning in (("scale-out-three", "tuned"), ("backlog", "default"), ("new-topic", "tuned"))
]
every_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.protocol.name}, {plan.scenario.name}")


class Client:
    """Takes the settings of any client."""

    def __init__(self, settings: Mapping[str, object] | None = None, **more: object) -> None:
        self.taken = {**(settings or {}), **more}

    def __getattr__(self, _name: str) -> Any:
        return mock.Mock()


def options_of(command: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of a command, and the settings in its options `--config`."""
    words = iter(command)
    pairs = [(word, next(words)) for word in words if word.startswith("--")]
    configs = [value for word, value in pairs if word == "--config"]
    return (
        {word: value for word, value in pairs if word != "--config"},
        dict(config.split("=", 1) for config in configs),
    )


def without(found: Mapping[str, object], names: set[str]) -> dict[str, str]:
    return {name: str(value) for name, value in found.items() if name not in names}


def of_lab(plan: Plan) -> tuple[Lab, mock.Mock]:
    """Return a lab and its cluster, which runs nothing."""
    cluster = mock.Mock(zookeeper="z:1", bootstrap="b:1")
    return Lab(cluster, Path("events"), COORDINATOR_SESSION_TIMEOUT_MS), cluster


@every_plan
def test_servers_get_what_is_listed(plan: Plan, tmp_path: Path) -> None:
    """In `kafka.settings`, leave a setting to `render_kraft_mode`: it is in no result."""
    class_paths = {jars.KAFKA_3: "3", jars.KAFKA_4: "4"}
    factory = ProgramFactory.in_folder(
        tmp_path, "java", class_paths, lambda: None, range(1, 40), None, jvm_options=plan.cluster()._jvm_options
    )
    cluster, details = plan.cluster(), plan.details()
    servers = factory.zookeepers(
        cluster._ensemble_size, cluster._tick_ms, cluster._zookeeper_heap_mb, cluster._zookeeper_properties
    )
    for number in cluster._broker_numbers():
        properties = cluster._properties_of(factory.broker_port(number))
        if plan.broker == "kafka-4":
            servers.append(factory.kraft_broker(number, "id", cluster._kafka_heap_mb, properties)[1])
        else:
            servers.append(factory.zookeeper_mode_broker(number, "z:1", cluster._kafka_heap_mb, properties))
    assert len(servers) == 2 * plan.scenario.servers
    assert " ".join(cluster._jvm_options) == details["run"]["options of each JVM"] == "-XX:+UseSerialGC"
    for server in servers:
        listed = details["zookeeper" if server.name.startswith("zookeeper") else "broker"]
        text = (tmp_path / f"{server.name}.properties").read_text()
        found = dict(line.split("=", 1) for line in text.splitlines())
        assert without(found, WHERE) == without(listed, {"kind", "-Xmx"})
        assert f"-Xmx{listed['-Xmx']}" in server._command
        assert {*cluster._jvm_options} <= {*server._command}
        assert not [word for word in server._command if "Tiered" in word], "it runs as in production"
    if plan.protocol.is_central and plan.broker == "kafka-4":
        options, _none = options_of(factory.mirror("b:1", "z:1", cluster._mirror_interval_s)._command)
        assert without(options, WHO) == details["topic_mirror"]
    else:
        assert details["topic_mirror"] is None


def test_zookeeper_is_tuned_as_brokers_are() -> None:
    """In `Plan.cluster`, always take `TICK_MS`: sessions of tuned members end up to 2 s late."""
    for tuning, tick_ms in (("default", "2000"), ("tuned", "500"), ("heartbeat-50", "500")):
        plan = replace(PLANS[0], protocol=PROTOCOLS["kip848"], tuning=tuning)
        assert plan.cluster().server_settings["zookeeper"]["tickTime"] == tick_ms
        assert plan.details()["zookeeper"]["tickTime"] == tick_ms


@every_plan
def test_coordinators_and_gateways_get_what_is_listed(plan: Plan) -> None:
    lab, cluster = of_lab(plan)
    details, gateway = plan.details(), plan.protocol.settings[plan.tuning].gateway
    started = []
    if plan.protocol.is_central:
        lab.start_coordinator(1)
        started.append((details["coordinator"], cluster.program.call_args.args[1]))
    if gateway is not None:
        lab.start_gateway("gateway", 9, gateway)
        started.append((details["gateway"], cluster.program.call_args.args[1]))
    for listed, command in started:
        options, _none = options_of(command)
        assert without(options, WHO) == without(listed, set())
    assert (details["coordinator"] is not None) is plan.protocol.is_central
    assert (details["gateway"] is not None) is plan.protocol.has_gateway


@pytest.mark.parametrize("tuning", ["default", "tuned"])
@pytest.mark.parametrize("scenario", ["new-topic", "rolling-deploy-static", "skewed-load", "skewed-load-weights"])
def test_helix_controllers_get_what_is_listed_and_weights(scenario: str, tuning: str, tmp_path: Path) -> None:
    """In `Play._start_controllers`, leave the weights: the listed rebalancer would balance numbers of partitions."""
    plan = Plan(PROTOCOLS["helix"], SCENARIOS[scenario], tuning, SCENARIOS[scenario].cast(4, 24, 1), "kafka-4", 5)
    started = dict[str, list[str]]()
    lab, cluster = of_lab(plan)
    lab.events = tmp_path

    def program(name: str, command: list[str], *_environment: object, **_more: object) -> mock.Mock:
        started[name] = command
        (tmp_path / f"{name}-1.jsonl").touch()  # it is ready
        running = mock.Mock(pid=1)
        running.name = name
        return running

    cluster.program.side_effect = program
    lab._zk = mock.Mock(perform=lambda *_call: Content(json.dumps({"id": "coordinator-1"}).encode(), mock.Mock()))
    about = (plan.protocol, plan.tuning, plan.scenario, plan.cast)
    Play(lab, mock.Mock(), *about, {}, [], [], mock.Mock(), print)._start_controllers()
    assert list(started) == ["coordinator-1", "coordinator-2"]
    for command in started.values():
        options, config = options_of(command)
        assert config == plan.details()["controller"]
        topic, _colon, weights = options.get("--weights", "").partition(":")
        assert bool(topic) is ("rebalancer" in config) is ((scenario, tuning) == ("skewed-load-weights", "tuned"))
        if topic:
            rates = [1_000 * rate for [rate] in known_load(plan.scenario, plan.cast).rates[topic]]
            assert [int(weight) for weight in weights.split(",")] == pytest.approx(rates, abs=0.5)


@every_plan
def test_members_get_what_is_listed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `KafkaReader`, `CentralReader` or a command of Java's members, add a setting: it is in no result."""
    kind, listed = plan.protocol.kind, plan.details()["member"]
    for name in ("_command", "find_java", "_source"):
        monkeypatch.setattr(java_programs, name, lambda *_arguments: ["java"])
    for name in ("class_path", "helix_class_path"):
        monkeypatch.setattr(jars, name, lambda *_arguments: "")
    command = COMMANDS[kind](print) if kind in COMMANDS else ["program"]
    lab, cluster = of_lab(plan)
    about = (plan.protocol, plan.tuning, plan.scenario, plan.cast)
    Play(lab, mock.Mock(), *about, {}, command, [], mock.Mock(), print)._start_process("members-01")
    options, config = options_of(cluster.program.call_args.args[1])
    found = without(options, {*WHO, "--process"}) | config
    if kind in {"central", "kafka"}:
        membership = Membership("z:1", "b:1", "g", "m", ("t",), None, None, config, 1)
        read: Any = (central.CentralReader if kind == "central" else kafka.KafkaReader)(membership, mock.Mock())
        found |= without(read._consumer.taken, {*WHO, "max_poll_records"})
    if kind == "central":  # the agent itself has those of its client
        found |= {**given_by_the_agent(membership), "commits of the application, ms": str(reader.COMMIT_INTERVAL_MS)}
    assert found.keys() > READING
    assert without(listed, {"-Xmx"}) == found
    assert ("-Xmx" in listed) is (kind in COMMANDS)


def given_by_the_agent(membership: Membership) -> dict[str, str]:
    """Return what its client of Kafka gets, without functions."""
    config = ConsumerConfig(zookeeper=membership.zookeeper, bootstrap=membership.bootstrap, group=membership.group)
    with mock.patch.object(fetcher, "KafkaConsumer") as client, mock.patch.object(fetcher, "OffsetQueries"):
        fetcher.Fetcher(config, ("t",), mock.Mock(now_ms=lambda: 0))
    return {
        name: str(value).lower()
        for name, value in client.call_args.args[0].items()
        if name not in WHO and not name.endswith("_cb") and name != LOGGER
    }


@pytest.fixture(autouse=True)
def _clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (central, kafka):
        monkeypatch.setattr(module, "Consumer", Client)
    for module in (producer, bulk_producer):
        monkeypatch.setattr(module, "Producer", Client)
    monkeypatch.setattr(bulk_producer, "AdminClient", Client)


@pytest.mark.parametrize("scenario", ["scale-out", "backlog"])
def test_producers_get_what_is_listed(scenario: str) -> None:
    plan = Plan(PROTOCOLS["kip848"], SCENARIOS[scenario], "tuned", SCENARIOS[scenario].cast(4, 24, 1), "kafka-4", 5)
    partitions = [("t", 0)]
    made: Any = (
        producer.NumberedProducer("b:1", partitions, EventLog(None, "p"))
        if scenario == "scale-out"
        else bulk_producer.BulkProducer("b:1", partitions, 100)
    )
    assert without(made._producer.taken, WHO) == without(plan.details()["producer"], set())


def test_programs_of_java_have_the_optimizing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `java_programs.OPTIONS`, take QUICK_START: Java's members compile worse than their result says."""
    monkeypatch.setattr(java_programs, "find_java", lambda: "java")
    monkeypatch.setattr(java_programs, "compiled", lambda *_arguments: Path("classes"))
    for name in ("class_path", "helix_class_path"):
        monkeypatch.setattr(jars, name, lambda *_arguments: "")
    for command in (*COMMANDS.values(), java_programs.helix_controller_command):
        words = command(print)
        assert {*IN_PRODUCTION} < {*words}
        assert not [word for word in words if "Tiered" in word]


def test_java_members_add_only_who_they_are() -> None:
    """In one of them, add a setting: it is in no result."""
    java = Path(java_programs.__file__).parent / "java"
    sources = "".join(file.read_text() for file in java.glob("*.java"))
    names = set(re.findall(r'(?:settings|own)\.(?:put|setProperty)\(\s*"([a-z.]+)"', sources))
    assert names == {
        *("bootstrap.servers", "group.id", "client.id", "group.instance.id", "zookeeper.connect", "consumer.id"),
        "max.poll.records",  # the option of the same name
        "allow.auto.create.topics",  # of what warms up
        "interceptor.classes",  # of the recorder, which sees commits so
    }


@pytest.mark.parametrize(("scenario", "sync_ms"), [("slow-disk-5ms", 5.0), ("scale-out", None)])
def test_a_slow_disk_is_listed_and_given_to_the_servers(scenario: str, sync_ms: float | None) -> None:
    """In `Plan.cluster`, leave out `sync_ms`: the scenario would be another `scale-out`."""
    plan = Plan(PROTOCOLS["kip848"], SCENARIOS[scenario], "tuned", SCENARIOS[scenario].cast(4, 24, 1), "kafka-4", 5)
    details, slowed = plan.details(), "what makes syncs of servers slow"
    assert details["sync_ms"] == sync_ms
    assert (slowed in details["run"]) is bool(sync_ms)
    assert plan.cluster()._sync_ms == (sync_ms or 0.0)


@pytest.mark.parametrize("plan", PLANS[::3], ids=lambda plan: plan.protocol.name)
def test_every_server_has_the_slow_disk(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `ProgramFactory.zookeeper_mode_broker`, leave out the environment: its disk would be quicker."""
    given = {"LD_PRELOAD": "slow"}
    monkeypatch.setattr(slow_disk, "environment", lambda _directory, sync_ms: {5.0: given}[sync_ms])
    class_paths = {jars.KAFKA_3: "3", jars.KAFKA_4: "4"}
    factory = ProgramFactory.in_folder(tmp_path, "java", class_paths, lambda: None, range(1, 40), None, 5.0)
    servers = factory.zookeepers(3, 500, 256, {})
    if plan.broker == "kafka-4":
        servers.append(factory.kraft_broker(1, "id", 256, {})[1])
    else:
        servers.append(factory.zookeeper_mode_broker(1, "z:1", 256, {}))
    assert [server._environment for server in servers] == [given] * 4
