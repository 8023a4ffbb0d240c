"""A fleet of three hosts is upgraded host by host while records flow, in both orders, and back again.

Both versions are wheels, in environments of their own, of the two commits that versions.toml names. For two versions
in one group when the leader dies, test_two_versions.py needs no other commit.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.conftest import play
from tests.integration.kafka_clients import KIP_848, Reader
from tests.integration.scenario import MODES, Scenario
from tests.support.builds import SHALLOW, Build, BuildError, build, read_versions, resolve
from tests.support.next_version import ADDS, next_version
from zkrebalancer.experiments.lab import GATEWAY_PORTS, Lab
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.ports import HOST, free_block
from zkrebalancer.localcluster.server import Program
from zkrebalancer.observe.checker import check, judge

VERSIONS = Path(__file__).parent / "versions.toml"
COORDINATOR, GATEWAY, AGENTS = "coordinator", "gateway", "agents"
HOSTS = {1: (COORDINATOR, GATEWAY, AGENTS), 2: (COORDINATOR, GATEWAY, AGENTS), 3: (COORDINATOR, AGENTS)}
CLIENTS = (KIP_848, "confluent")
# Clean stops hand over at once. A partition without an owner for that long waits for a session to end.
SESSION_MS = 10_000
Step = tuple[str, int]  # a kind of program and its host


def by_program(*kinds: str) -> list[Step]:
    """Return the steps of an upgrade: each kind on all hosts before the next kind."""
    return [(kind, host) for kind in kinds for host in HOSTS if kind in HOSTS[host]]


def by_host(*kinds: str) -> list[Step]:
    """Return the steps of an upgrade: all programs of a host before the next host."""
    return [(kind, host) for host in HOSTS for kind in kinds if kind in HOSTS[host]]


class FleetLab(Lab):
    """A lab whose next program has the version `build`; None: the present source."""

    build: Build | None = None

    def _spawn(
        self,
        name: str,
        command: list[str],
        options: Mapping[str, object],
        environment: Mapping[str, str] | None,
        *,
        takes_orders: bool = False,
    ) -> Program:
        if self.build is not None:
            command = [str(self.build.python), *command[1:]]
            environment = {**self.build.environment, **(environment or {})}
        return super()._spawn(name, command, options, environment, takes_orders=takes_orders)


@dataclass(slots=True)
class Fleet:
    """A coordinator and an agent of each group on every host, gateways on some, and clients behind these."""

    scenario: Scenario
    lab: FleetLab
    gateway_events: Path
    ports: Mapping[int, int] = field(default_factory=lambda: {host: free_block(GATEWAY_PORTS) for host in HOSTS})
    clients: list[Reader] = field(default_factory=list)

    def begin(self, version: Build) -> None:
        """Start everything in one version."""
        scenario = self.scenario
        scenario.add_topic("t")
        for mode in MODES:
            scenario.add_group(mode, 0)
        for kind, host in by_program(COORDINATOR, AGENTS, GATEWAY):
            self.start(kind, host, version)
        scenario.coordinators = [self.programs(COORDINATOR, host)[0] for host in HOSTS]
        for group in scenario.groups:
            scenario.groups[group] = [f"{group}-{host}" for host in HOSTS]
        bootstrap = ",".join(f"{HOST}:{port}" for host, port in self.ports.items() if GATEWAY in HOSTS[host])
        (topic,) = scenario.topics
        self.clients = [Reader(kind, bootstrap, self.group, topic) for kind in CLIENTS]
        self.settle("at the beginning")

    @property
    def group(self) -> str:
        """The group of the clients behind the gateways."""
        return f"g{self.scenario.number}-clients"

    def programs(self, kind: str, host: int) -> list[str]:
        """Return the names of a host's programs of a kind."""
        if kind == AGENTS:
            return [f"{group}-{host}" for group in self.scenario.groups]
        return [f"{kind}-{self.scenario.number * 100 + host}"]

    def start(self, kind: str, host: int, version: Build) -> None:
        """Start a host's programs of a kind in a version."""
        self.lab.build = version
        if kind == COORDINATOR:
            self.lab.start_coordinator(self.scenario.number * 100 + host)
            self._wait_events(*self.programs(COORDINATOR, host))
        elif kind == GATEWAY:
            (name,) = self.programs(GATEWAY, host)
            options = {"--assign": "central", "--events": str(self.gateway_events)}
            self.lab.start_gateway(name, self.ports[host], options)
            self.lab.wait_gateway(name, self.ports[host])
        else:
            for group in self.scenario.groups:
                self.lab.start_agent(f"{group}-{host}", group, tuple(self.scenario.topics))
                self._wait_events(f"{group}-{host}")
        self.lab.build = None

    def _wait_events(self, name: str) -> None:
        """Wait until a program writes events: earlier versions that begin at once in one folder disturb each other."""
        self.lab.wait_events_of(self.lab.programs[name])

    def upgrade(self, steps: Sequence[Step], version: Build) -> None:
        """Replace the programs of each step by another version of them."""
        for kind, host in steps:
            self.scenario.stop(*self.programs(kind, host))
            self.start(kind, host, version)
            self.settle(f"{kind} of host {host} is {version.name}")

    def settle(self, what: str) -> None:
        """Wait until every partition has an owner again, in all groups."""
        self.lab.wait_leader()
        self.scenario.settle()
        partitions = list(range(sum(self.scenario.topics.values())))
        self.lab.wait_for(
            f"{what}: clients have all partitions",
            lambda: sorted(number for client in self.clients for number in client.assigned) == partitions,
        )

    def verify(self) -> None:
        """Require that nothing was lost or read by two, and that no partition waited for a session to end."""
        self.scenario.drain(*self.scenario.producers)
        ranges = [(event["first_offset"], event["last_offset"]) for event in self.scenario.events("produced")]
        produced = sum(last - first + 1 for first, last in ranges)
        self.lab.wait_for(
            f"all {produced} records at the clients",
            lambda: len({value for client in self.clients for value in client.values}) == produced,
        )
        for client in self.clients:
            client.close()
        for _, host in by_program(GATEWAY):
            self.lab.programs[self.programs(GATEWAY, host)[0]].kill()  # how they stop was tried in each step
        for kind in (AGENTS, COORDINATOR):
            self.scenario.stop(*(name for _, host in by_program(kind) for name in self.programs(kind, host)))
        self.scenario.require_quiet_logs()
        # What the clients did is in the gateways' events, and what they read in this process.
        events = [event for event in self.scenario.events() if event.get("group") != self.group]
        verdict = judge(sorted(events, key=lambda event: int(event["mono_us"])))
        assert verdict.ok, "\n".join(verdict.problems)
        assert verdict.delivered == verdict.produced > 0
        assert verdict.duplicated == 0
        assert check(self.gateway_events).overlaps == 0
        assert not self.scenario.events("member_left", reason="evicted")
        assert not self.scenario.events("false_claim")
        pauses_ms = self.pauses_ms()
        assert max(pauses_ms.values()) < SESSION_MS, pauses_ms

    def pauses_ms(self) -> dict[str, int]:
        """Return for each group how long a partition was without an owner, at most."""
        longest = dict.fromkeys(self.scenario.groups, 0)
        stopped: dict[tuple[str, str, int], int] = {}
        for event in sorted(self.scenario.events(), key=lambda event: int(event["mono_us"])):
            if event["kind"] not in {"fetcher_started", "fetcher_stopped"}:
                continue
            for number in event["partitions"]:
                key, at_us = (event["group"], event["topic"], number), event["mono_us"]
                if event["kind"] == "fetcher_stopped":
                    stopped[key] = at_us
                elif key in stopped:
                    longest[key[0]] = max(longest[key[0]], (at_us - stopped.pop(key)) // 1_000)
        return longest


@pytest.fixture(scope="session")
def builds() -> Iterator[dict[str, Build]]:
    """Build both versions; a shallow clone cannot."""
    with tempfile.TemporaryDirectory(prefix="zkrebalancer-builds-") as folder:
        try:
            yield {name: build(name, commit, Path(folder)) for name, commit in read_versions(VERSIONS).items()}
        except BuildError as error:
            if SHALLOW in str(error):
                pytest.skip(str(error))
            raise


@pytest.fixture
def fleet(shared_cluster: LocalCluster, folder: Path) -> Iterator[Fleet]:
    """Open a fleet whose programs are not started yet."""
    (folder / "gateway-events").mkdir()
    lab = FleetLab(shared_cluster, folder / "events", SESSION_MS)
    for scenario in play(lab, folder, is_shared=True):
        yield Fleet(scenario, lab, folder / "gateway-events")


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [
        by_program(COORDINATOR, GATEWAY, AGENTS),
        by_program(AGENTS, GATEWAY, COORDINATOR),
        by_host(COORDINATOR, GATEWAY, AGENTS),
    ],
    ids=["coordinators first", "agents first", "host by host"],
)
def test_a_fleet_is_upgraded_under_load_and_goes_back(
    fleet: Fleet, builds: dict[str, Build], steps: list[Step]
) -> None:
    fleet.begin(builds["earlier"])
    fleet.upgrade(steps, builds["newer"])
    fleet.upgrade(steps[::-1], builds["earlier"])
    fleet.verify()


@pytest.mark.long
def test_a_fleet_is_upgraded_to_the_version_after_this_one(
    fleet: Fleet, builds: dict[str, Build], tmp_path: Path
) -> None:
    """It writes a key more into every node; the present version has to live with what it left."""
    following = Build("next", Path(sys.executable), next_version(tmp_path, ADDS))
    steps = by_program(COORDINATOR, GATEWAY, AGENTS)
    fleet.begin(builds["newer"])
    fleet.upgrade(steps, following)
    fleet.upgrade(steps[::-1], builds["newer"])
    fleet.verify()


def test_a_missing_commit_is_named_and_a_shallow_clone_says_what_to_do(tmp_path: Path) -> None:
    def git(*arguments: object) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false")
        command = ["git", *identity, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    git("init", "--quiet", whole)
    for text in ("first", "second"):
        git("-C", whole, "commit", "--quiet", "--allow-empty", "--message", text)
    first = git("-C", whole, "rev-parse", "HEAD~1")
    assert resolve("HEAD~1", whole) == first
    with pytest.raises(BuildError, match=r"there is no commit v9 in .*whole$"):
        resolve("v9", whole)
    git("clone", "--quiet", "--depth=1", f"file://{whole}", shallow)
    with pytest.raises(BuildError, match=rf"there is no commit {first} in .*; {SHALLOW}"):
        resolve(first, shallow)
    with pytest.raises(BuildError, match="is no git repository"):
        resolve(first, tmp_path)
