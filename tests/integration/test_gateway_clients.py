"""Unmodified clients of every kind behind a gateway: alone and together, on brokers of both versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.gateway_process import GatewayProcess
from tests.integration.kafka_clients import (
    AIOKAFKA,
    JAVA,
    JAVA_848,
    KIP_848,
    ProcessReader,
    close_in_turn,
    committed,
    produce,
)
from tests.support.brokers import REPLICATED, start_broker
from tests.support.kafka_tools import CONSOLE_CONSUMER, CONSUMER_GROUPS, GROUPS, Tools
from tests.support.waiting import wait_until
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import BrokerKind, LocalCluster
from zkrebalancer.localcluster.jars import KAFKA_4
from zkrebalancer.localcluster.ports import free_ports
from zkrebalancer.localcluster.server import Program
from zkrebalancer.observe import checker
from zkrebalancer.protocol.settings import GroupSettings

PARTITIONS = 6
WAIT_S = 30.0
SESSION_848_MS = 20_000  # clients report every 5 s, and forty processes start at once
GATEWAY_SESSION_MS = 10_000
RECORDS = 60  # of one step
ALONE = ("confluent", "kafka-python", AIOKAFKA, JAVA, KIP_848, JAVA_848)
OF_EACH_MAKER = ("confluent", "kafka-python", AIOKAFKA, JAVA)
OF_BOTH_PROTOCOLS = (JAVA, KIP_848, AIOKAFKA, JAVA_848)


@dataclass
class Team:
    """A group with a topic of its own."""

    name: str
    kinds: tuple[str, ...]
    bootstrap: str
    readers: list[ProcessReader] = field(default_factory=list)
    former: list[ProcessReader] = field(default_factory=list)
    unsteady: list[ProcessReader] = field(default_factory=list)  # were killed or suspended
    expected: int = 0

    def add(self, kind: str) -> None:
        self.readers.append(ProcessReader(kind, self.bootstrap, self.name, self.name))

    def share(self) -> bool:
        """Whether the members have all partitions, each some."""
        assert all(reader.is_running for reader in self.readers), [r.kind for r in self.readers if not r.is_running]
        held = [partition for reader in self.readers for partition in reader.assigned]
        return sorted(held) == list(range(PARTITIONS)) and all(reader.assigned for reader in self.readers)

    def have_read(self) -> bool:
        return len(self.counted()) == self.expected

    def progress(self, what: str) -> str:
        """Describe for a failed wait what was read, and who has what."""
        readers = [(one.kind, one.assigned) for one in self.readers]
        return f"{self.name}: {what}: {len(self.counted())} of {self.expected} records, {readers}"

    def counted(self) -> Counter[str]:
        return Counter(value for reader in (*self.readers, *self.former) for value in reader.values)

    def read_twice(self) -> set[str]:
        return {value for value, count in self.counted().items() if count > 1}

    def may_be_read_twice(self) -> set[str]:
        return {value for reader in self.unsteady for value in reader.values}


class Play:
    """Everybody behind one gateway."""

    def __init__(self, cluster: LocalCluster, gateway: GatewayProcess, teams: list[Team], folder: Path) -> None:
        self.folder = folder
        self.cluster = cluster
        self.gateway = gateway
        self.teams = teams

    def share(self, what: str, does: Callable[[Team], None]) -> None:
        """Do something to each group, and wait until its members share the partitions and read everything."""
        for team in self.teams:
            does(team)
        for team in self.teams:
            wait_until(team.share, partial(team.progress, what))
        self.read(what)

    def count(self, team: Team) -> None:
        """Write down how many records were read twice; a killed or suspended client had not committed them."""
        line = f"{team.name}: {len(team.read_twice())} of {team.expected} records were read twice\n"
        with (self.folder / "read-twice.txt").open("a") as file:
            file.write(line)

    def read(self, what: str) -> None:
        for team in self.teams:
            values = [f"{number}" for number in range(team.expected, team.expected + RECORDS)]
            produce(self.cluster.bootstrap, team.name, values)
            team.expected += RECORDS
        for team in self.teams:
            wait_until(team.have_read, partial(team.progress, what))
            assert team.read_twice() <= team.may_be_read_twice(), (team.name, what)


def leave(team: Team) -> None:
    one = team.readers.pop(1)
    one.close()
    team.former.append(one)


def crash_of_the_first(team: Team) -> None:
    one = team.readers.pop(0)
    one.kill()
    team.former.append(one)
    team.unsteady.append(one)


def suspend(team: Team) -> None:
    one = team.readers.pop()
    one.suspend()
    team.former.append(one)
    team.unsteady.append(one)


def resume(team: Team) -> None:
    one = team.former.pop()
    one.resume()
    team.readers.append(one)


def join(team: Team) -> None:
    """Let each kind of client come."""
    for kind in team.kinds:
        team.add(kind)


def rejoin(team: Team) -> None:
    while len(team.readers) < 2:
        team.add(team.kinds[-1])


def make_topics(cluster: LocalCluster, teams: list[Team], replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(team.name, PARTITIONS, replicas) for team in teams]).values():
        made.result(WAIT_S)


def end_all(teams: list[Team]) -> None:
    """End what is left after a failure."""
    for team in teams:
        for reader in (*team.readers, *team.former):
            reader.kill()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """Start a JVM for Kafka's own tools."""
    one = Tools(KAFKA_4, tmp_path_factory.mktemp("tools") / "log")
    yield one
    one.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_clients_of_four_makers_share_a_group_that_kafkas_tools_see(
    shared_cluster: LocalCluster, folder: Path, tools: Tools
) -> None:
    gateway = GatewayProcess(shared_cluster, folder)
    gateway.start()
    team = Team("four-makers", OF_EACH_MAKER, gateway.bootstrap)
    make_topics(shared_cluster, [team], 1)

    def asked(*arguments: object) -> str:
        return tools.run(CONSUMER_GROUPS, "--bootstrap-server", gateway.bootstrap, *arguments)

    with ExitStack() as stack:
        stack.callback(gateway.kill)
        stack.callback(end_all, [team])
        play = Play(shared_cluster, gateway, [team], folder)
        play.share("join", join)
        group = ("--group", team.name)
        assert rows(asked("--list", "--state"), team.name) == [["Stable"]]
        listed = tools.run(GROUPS, "--bootstrap-server", gateway.bootstrap, "--list")
        assert rows(listed, team.name) == [["Classic", "consumer"]]
        described = rows(asked("--describe", *group, "--state"), team.name)
        assert described == [[gateway.bootstrap, described[0][1], "range", "Stable", "4"]]
        clients = [words[2] for words in rows(asked("--describe", *group, "--members", "--verbose"), team.name)]
        names = sorted(one.rstrip("-.0123456789") for one in clients)  # without versions
        assert names == ["aiokafka", "consumer-four-makers", "kafka-python", "rdkafka"]
        for described in (rows(asked("--describe", *chosen), team.name) for chosen in (group, ("--all-groups",))):
            assert sorted(int(words[1]) for words in described) == list(range(PARTITIONS))
            assert {words[7] for words in described} == set(clients)
        play.share("the first one, the group's leader, is killed", crash_of_the_first)
        play.share("one hangs", suspend)
        play.share("it is back", resume)
        close_in_turn(team.readers)
        assert committed(shared_cluster.bootstrap, team.name) == team.expected
        of_topic = (*group, "--topic", team.name)
        assert asked("--reset-offsets", *of_topic, "--to-offset", 5, "--execute").count(" 5") >= PARTITIONS
        assert committed(shared_cluster.bootstrap, team.name) == 5 * PARTITIONS
        assert [words[2] for words in rows(asked("--describe", *group), team.name)] == ["5"] * PARTITIONS
        assert asked("--delete-offsets", *of_topic).count("Successful") == PARTITIONS
        assert committed(shared_cluster.bootstrap, team.name) == 0
        assert "was successful" in asked("--delete", *group)
        assert team.name not in asked("--list")
    assert gateway.troubles() == []


def rows(table: str, first: str) -> list[list[str]]:
    """Return the words of the rows that begin with this word, without it."""
    return [line.split()[1:] for line in table.splitlines() if line.startswith(f"{first} ")]


@pytest.mark.long
def test_the_console_consumer_continues_in_the_other_protocol(
    shared_cluster: LocalCluster, folder: Path, tools: Tools
) -> None:
    gateway = GatewayProcess(shared_cluster, folder)
    gateway.start()
    team = Team("console", (), gateway.bootstrap)
    make_topics(shared_cluster, [team], 1)
    where = ("--bootstrap-server", gateway.bootstrap, "--topic", team.name, "--group", team.name, "--from-beginning")
    for begin, protocol in ((0, "classic"), (RECORDS, "consumer"), (2 * RECORDS, "classic")):
        values = [f"{number}" for number in range(begin, begin + RECORDS)]
        produce(gateway.bootstrap, team.name, values)
        how = ("--max-messages", RECORDS, "--command-property", f"group.protocol={protocol}")
        printed = tools.run(CONSOLE_CONSUMER, *where, *how).splitlines()
        assert sorted((line for line in printed if line.isdecimal()), key=int) == values, protocol
    gateway.kill()
    assert gateway.troubles() == []


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("assign", ["client", "central"])
@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("kind", ["kafka-3.9", "kafka-4"])
def test_every_client_alone_and_together(folder: Path, kind: BrokerKind, brokers: int, assign: str) -> None:
    with ExitStack() as stack:
        properties = REPLICATED if brokers > 1 else {}
        cluster = stack.enter_context(
            LocalCluster(broker=kind, chroot="/clients", kafka_properties=properties, kafka_heap_mb=384)
        )
        others = [
            start_broker(cluster, number, port)
            for number, port in zip((2, 3)[: brokers - 1], free_ports(2), strict=False)
        ]
        lab = stack.enter_context(Lab(cluster, folder / "events"))
        options: list[object] = ["--assign", assign, "--consumer-session-timeout-ms", SESSION_848_MS]
        options += ["--session-timeout-ms", GATEWAY_SESSION_MS]
        if assign == "central":
            lab.start_coordinator(1)
            lab.wait_leader()
            options += ["--events", lab.events]
        gateway = GatewayProcess(cluster, folder, *options)
        gateway.start()
        stack.callback(gateway.kill)
        kinds: dict[str, tuple[str, ...]] = {one.replace(", ", "-"): (one, one) for one in ALONE}
        kinds |= {"makers": OF_EACH_MAKER, "protocols": OF_BOTH_PROTOCOLS}
        teams = [Team(name, chosen, gateway.bootstrap) for name, chosen in kinds.items()]
        make_topics(cluster, teams, brokers)
        stack.callback(end_all, teams)
        play_all(Play(cluster, gateway, teams, folder), others, lab if assign == "central" else None)
        if assign == "central":
            verdict = checker.check(lab.events)
            assert verdict.overlaps == 0, verdict


def play_centrally(play: Play, lab: Lab) -> None:
    """Freeze the groups while somebody joins each; then the leader dies while somebody leaves each."""
    for team in play.teams:
        lab.configure(team.name, GroupSettings(frozen=True))
    frozen = [[reader.assigned for reader in team.readers] for team in play.teams]
    counts = [len(team.readers) + 1 for team in play.teams]
    for team in play.teams:
        team.add(team.kinds[0])
    for team, count in zip(play.teams, counts, strict=True):
        registered = partial(lambda name, count: len(lab.group(name).members) == count, team.name, count)
        wait_until(registered, f"{team.name}: the newcomer does not register")
    play.read("frozen")
    assert [[reader.assigned for reader in team.readers[:-1]] for team in play.teams] == frozen
    for team in play.teams:
        lab.configure(team.name, GroupSettings())
    play.share("unfrozen", lambda _team: None)
    lab.start_coordinator(2)
    lab.kill("coordinator-1")
    play.share("the leader is killed, and one leaves", leave)
    assert lab.wait_leader(other_than=1) == 2


def play_all(play: Play, others: list[Program], central: Lab | None) -> None:
    play.share("join", join)
    if central is not None:
        play_centrally(play, central)
    held = [[(reader.assigned, reader.revocations) for reader in team.readers] for team in play.teams]
    play.gateway.kill()
    play.gateway.start()
    play.read("the gateway was killed and is back")
    assert [[(one.assigned, one.revocations) for one in team.readers] for team in play.teams] == held
    play.cluster.broker.stop()
    play.cluster.broker.start()
    play.read("a broker restarted")
    if others:
        others[0].kill()
        play.read("a broker died")
        others[0].spawn()
    play.share("one leaves", leave)
    play.share("another one comes", rejoin)
    play.share("the first one, a classic group's leader, is killed", crash_of_the_first)
    play.share("another one comes again", rejoin)
    play.share("one hangs", suspend)
    play.share("it is back", resume)
    for team in play.teams:
        close_in_turn(team.readers)
        assert committed(play.cluster.bootstrap, team.name) == team.expected
        play.count(team)
    assert play.gateway.stop() == 0
    assert play.gateway.troubles() == []
