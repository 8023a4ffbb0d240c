"""One cluster for all tests of a worker; each test has its own groups, topics, processes and events folder.

If a test fails, its events and logs are kept, and the report names the folder; otherwise nothing is left.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.integration import evidence, kafka_clients
from tests.integration.child import RUNNING
from tests.integration.fake_coordinator import Stage
from tests.integration.scenario import Scenario
from tests.support.warm import WarmCluster, close_starter
from zkrebalancer.experiments.lab import Lab
from zkrebalancer.localcluster.cluster import LocalCluster

MAX_CAPTURED = 2_000  # characters of a failed test's output; Kafka's clients log much
TICK_MS = 200  # sessions may be as short as two ticks
HAS_FAILED = pytest.StashKey[bool]()
FOLDER = pytest.StashKey[Path]()
_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def no_starter_stays() -> Iterator[None]:
    """End the process whose forks the tests have run."""
    yield
    close_starter()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """Start one ZooKeeper and one broker when a worker's first test asks for them."""
    with WarmCluster(chroot="/shared", tick_ms=TICK_MS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def agent_cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster for agents without a coordinator; a scenario ends its coordinators."""
    return shared_cluster


@pytest.fixture(autouse=True)
def no_agent_stays() -> Iterator[None]:
    """End agents with a child that a failed test left."""
    yield
    for process in RUNNING:
        if process.poll() is None:
            process.kill()
            process.communicate()
    RUNNING.clear()


@pytest.fixture(autouse=True)
def no_reader_stays() -> Iterator[None]:
    """End the Kafka clients that a failed test left: they would log during others."""
    yield
    for reader in kafka_clients.RUNNING:
        reader.end()
    kafka_clients.RUNNING.clear()


@pytest.fixture
def stage(agent_cluster: LocalCluster) -> Iterator[Stage]:
    """Create a separate topic and group; the test plays the coordinator."""
    stage = Stage(agent_cluster)
    yield stage
    stage.close()


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Create a folder that is kept if the test fails."""
    path = request.node.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="zkrebalancer-scenario-"))
    yield path
    if not request.node.stash.get(HAS_FAILED, False):
        shutil.rmtree(path)


@pytest.fixture
def scenario(shared_cluster: LocalCluster, folder: Path) -> Iterator[Scenario]:
    """Open a scenario on the shared cluster."""
    yield from play(Lab(shared_cluster, folder / "events"), folder, is_shared=True)


def play(lab: Lab, folder: Path, *, is_shared: bool = False) -> Iterator[Scenario]:
    """Open the lab of a scenario; at the end, stop every process and move its log beside the events.

    Of a cluster that `is_shared`, the groups are removed. Coordinators of its own would write into them meanwhile.
    """
    with lab:
        scenario = Scenario(lab, next(_numbers))
        yield scenario
        scenario.end_applications()
        for program in lab.programs.values():
            program.kill()
        if is_shared:
            scenario.clear()
    for program in lab.programs.values():
        shutil.copy(program.log, folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report the folder with the events and logs of a failed test, and what of them may show the cause."""
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
        report.sections[:] = [(title, text[-MAX_CAPTURED:]) for title, text in report.sections]
        if call.when == "call":  # later, the lab is closed
            assert isinstance(item, pytest.Function)
            report.sections += evidence.gather(item.funcargs.values())
        if FOLDER in item.stash:
            report.sections.append(("kept", f"events and logs: {item.stash[FOLDER]}"))
    return report
