"""Docker hosts that fail: each has a ZooKeeper server, a Kafka broker and a coordinator; clients run outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.integration.conftest import play
from tests.integration.scenario import Scenario
from tests.support import docker_engine, host_faults
from tests.support.deadlines import WITHIN_S
from tests.support.waiting import wait_until
from tests.support.warm import WarmHostCluster
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.containers import Host
from zkrebalancer.localcluster.errors import MissingToolError
from zkrebalancer.localcluster.hosts import HTTP_PORT
from zkrebalancer.localcluster.server import child_environment
from zkrebalancer.protocol.errors import ZooKeeperUnavailableError

DISK_MB = 96
SERVERS = ["zookeeper", "kafka", "coordinator"]
COMMAND = [sys.executable, "-m", "zkrebalancer.cli.main", "cluster"]
HOLDER = """
import sys, time
from pathlib import Path
from tests.support import docker_engine
from zkrebalancer.localcluster.containers import Engine
with docker_engine.engine(Path(sys.argv[1])) as engine:
    network = Engine(engine.address, "held").create_network()
    print(network[0].packed[::-1].hex().upper(), flush=True)  # as in the table of routes
    time.sleep(600)
"""


@pytest.fixture
def engine() -> Iterator[docker_engine.Engine]:
    """Start a Docker engine of the test's own; its socket needs a short path."""
    docker_engine.provide()
    with docker_engine.engine(Path(tempfile.mkdtemp(prefix="hosts-"))) as started:
        yield started


class HostScenario:
    """A scenario on three hosts."""

    def __init__(self, cluster: WarmHostCluster, scenario: Scenario) -> None:
        self.hosts = cluster.hosts
        self.scenario = scenario
        self._cluster = cluster

    def wait(self, what: str, is_so: Callable[[], object]) -> None:
        """Wait until something holds; a lost connection to ZooKeeper is tried again."""

        def holds() -> bool:
            try:
                return bool(is_so())
            except ZooKeeperUnavailableError:
                return False

        self.scenario.lab.wait_for(what, holds)

    def leading(self) -> Host:
        """Wait for a leader, and return its host."""
        self.wait("a leader", self.scenario.lab.leader)
        number = self.scenario.lab.leader()
        assert number is not None
        return self.hosts[number - 1]

    def wait_other_leader(self, than: Host) -> None:
        former = self.hosts.index(than) + 1
        self.wait("another leader", lambda: self.scenario.lab.leader() not in {None, former})

    def wait_written(self) -> None:
        """Wait until, from now on, records were written to every partition."""
        since_us = self.scenario.now_us()
        wanted = {(topic, number) for topic, count in self.scenario.topics.items() for number in range(count)}

        def is_written() -> bool:
            found = self.scenario.events("produced", since_us=since_us)
            return wanted <= {(event["topic"], event["partition"]) for event in found}

        self.wait("new records in every partition", is_written)

    def fault(self, name: str, host: Host) -> None:
        self.scenario.lab.fault(name, host.name)

    def wait_ready(self, *hosts: Host) -> None:
        self._cluster.wait_ready(*hosts)

    def data(self, host: Host) -> Path:
        return self._cluster.directory / host.name / "data"

    def verify(self) -> None:
        self.scenario.verify()
        for log in self._cluster.directory.glob("host-*-coordinator.log"):
            assert "Traceback" not in log.read_text(), log.read_text()


@contextmanager
def on_hosts(engine: docker_engine.Engine, folder: Path, disk_mb: int | None = None) -> Iterator[HostScenario]:
    """Start three hosts, a producer and two groups of two consumers."""
    events = folder / "events"
    events.mkdir()
    with WarmHostCluster(engine=engine.address, events=events, disk_mb=disk_mb) as cluster:
        for scenario in play(Lab(cluster, events), folder):
            scenario.begin(coordinators=0)
            yield HostScenario(cluster, scenario)
    assert left(engine) == ""


def left(engine: docker_engine.Engine) -> str:
    """Return every container, network and image of the engine."""
    listings = [("ps", "--all"), ("network", "ls", "--filter=type=custom"), ("image", "ls", "--all")]
    return "".join(engine.docker(*listing, "--quiet") for listing in listings)


def leads(host: Host) -> bool:
    """Whether the host's own coordinator says that it leads."""
    try:
        with urlopen(f"http://{host.address}:{HTTP_PORT}/leader", timeout=WITHIN_S):
            return True
    except HTTPError:
        return False


def test_a_host_is_lost_with_its_broker_zookeeper_server_and_leader(engine: docker_engine.Engine, folder: Path) -> None:
    with on_hosts(engine, folder) as play:
        lost = play.leading()
        play.fault("lose-host", lost)
        lost.kill()
        play.wait_other_leader(lost)
        play.scenario.join_all()
        play.scenario.settle()
        play.wait_written()
        lost.start()
        play.wait_ready(lost)
        play.verify()


@pytest.mark.long
def test_the_leader_is_cut_off_from_the_other_hosts_but_not_from_clients(
    engine: docker_engine.Engine, folder: Path
) -> None:
    with on_hosts(engine, folder) as play:
        alone = play.leading()
        assert leads(alone)
        play.fault("cut-off", alone)
        host_faults.cut_off_from(alone, play.hosts)
        play.wait_other_leader(alone)
        play.wait("the former leader to resign", lambda: not leads(alone))
        play.scenario.join_all()
        play.scenario.settle()
        play.wait_written()
        play.fault("heal", alone)
        host_faults.heal(alone)
        play.wait_ready()
        play.verify()


@pytest.mark.long
def test_a_follower_is_cut_off_from_everybody(engine: docker_engine.Engine, folder: Path) -> None:
    with on_hosts(engine, folder) as play:
        leader = play.leading()
        alone = next(host for host in play.hosts if host is not leader)
        play.fault("cut-off", alone)
        outside = alone.address.rpartition(".")[0] + ".1"
        host_faults.cut_off(alone, outside, *(host.address for host in play.hosts if host is not alone))
        play.wait_written()
        play.scenario.join_all()
        play.scenario.settle()
        assert play.leading() is leader
        play.fault("heal", alone)
        host_faults.heal(alone)
        play.wait_ready()
        play.verify()


@pytest.mark.long
def test_hosts_are_restarted_one_after_the_other(engine: docker_engine.Engine, folder: Path) -> None:
    with on_hosts(engine, folder) as play:
        for host in sorted(play.hosts, key=lambda host: host is play.leading()):  # the leader last
            play.fault("restart", host)
            host.stop()
            play.wait_written()
            host.start()
            play.wait_ready()
            play.scenario.settle()
        play.scenario.join_all()
        play.verify()


@pytest.mark.long
def test_the_disk_of_the_leader_is_full(engine: docker_engine.Engine, folder: Path) -> None:
    with on_hosts(engine, folder, DISK_MB) as play:
        full = play.leading()
        play.fault("fill-disk", full)
        host_faults.fill_disk(full, play.data(full))
        play.wait_written()
        play.scenario.join_all()
        play.scenario.settle()
        play.fault("free-disk", full)
        host_faults.free_disk(full, play.data(full))
        play.wait_ready()
        play.wait_written()
        play.verify()


@pytest.mark.long
def test_a_host_that_hangs_loses_its_network_or_is_slow(engine: docker_engine.Engine, folder: Path) -> None:
    with on_hosts(engine, folder) as play:
        hanging = play.leading()
        play.fault("pause", hanging)
        hanging.pause()
        play.wait_other_leader(hanging)
        play.wait_written()
        hanging.resume()
        play.wait_ready()
        unplugged = play.leading()
        play.fault("disconnect", unplugged)
        unplugged.disconnect()
        play.wait_other_leader(unplugged)
        play.wait_written()
        unplugged.connect()
        play.wait_ready()
        try:
            host_faults.slow_down(unplugged, 100)
        except MissingToolError as error:
            sys.stderr.write(f"not tried: {error}\n")
        else:
            play.wait_written()
            host_faults.speed_up(unplugged)
        play.verify()


@pytest.mark.long
def test_a_cluster_of_hosts_by_command(engine: docker_engine.Engine, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            env=environment(engine, tmp_path),
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    up = run("up", "--hosts", "1", "--json")
    assert up.returncode == 0, up.stderr
    address = json.loads(up.stdout)["zookeeper"].removesuffix(":2181")
    assert json.loads(up.stdout)["bootstrap"] == f"{address}:9092"
    (host,) = json.loads(run("status", "--json").stdout)["hosts"]
    assert (host["name"], host["address"], host["state"], host["answering"]) == ("host-1", address, "running", SERVERS)
    assert all(text in run("status").stdout for text in ("host-1", address, "running", ", ".join(SERVERS)))
    assert "is running already" in run("up", "--hosts", "1").stdout
    other = run("up")
    assert (other.returncode, "other settings runs already (--hosts 1" in other.stderr) == (2, True), other.stderr

    engine.docker("pause", engine.docker("ps", "--quiet"))
    assert json.loads(run("status", "--json").stdout)["hosts"][0]["state"] == "paused"
    again = run("up", "--hosts", "1")
    assert (again.returncode, "not host-1 (paused)" in again.stderr) == (1, True), again.stderr
    assert run("down").returncode == 0
    assert left(engine) == ""
    assert not (tmp_path / "zkrebalancer" / "cluster").exists()
    assert run("status").returncode == 1


@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_up_with_hosts_that_is_interrupted_leaves_nothing(
    engine: docker_engine.Engine, tmp_path: Path, ending: signal.Signals
) -> None:
    with subprocess.Popen(
        [*COMMAND, "up", "--hosts", "1"], env=environment(engine, tmp_path), stderr=subprocess.PIPE
    ) as command:
        wait_until(lambda: engine.docker("ps", "--quiet") != "", "a host that runs")
        command.send_signal(ending)
        assert command.wait(WITHIN_S) != 0
    folder = tmp_path / "zkrebalancer" / "cluster"
    wait_until(lambda: left(engine) == "" and not (folder / "cluster.json").exists(), "the guard to clean up")


@pytest.mark.long
def test_a_killed_test_leaves_no_engine(tmp_path: Path) -> None:
    docker_engine.provide()
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, env=child_environment()
    ) as holder:
        assert holder.stdout is not None
        address = holder.stdout.readline().decode().strip()
        assert address
        holder.kill()
    wait_until(lambda: not folder.exists(), "the engine to go")
    assert address not in Path("/proc/net/route").read_text()
    assert folder.name not in Path("/proc/mounts").read_text()


def environment(engine: docker_engine.Engine, home: Path) -> dict[str, str]:
    return {**child_environment(), "XDG_STATE_HOME": str(home), "DOCKER_HOST": engine.address}
