"""Settings of all tests, and which of them share a worker when they run in parallel (`make test`)."""

from __future__ import annotations

import gc
import importlib
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import examples, installing
from tests.support.compiling import compile_once

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

examples.register()

pytest_plugins = ["tests.support.pipeline_run"]

SHARED_BY_A_MODULE = ("module", "package", "class")
# One worker runs all tests that share the Spark session, and all tests of a module with a fixture of that scope.
INTEGRATION = "tests/integration"
SPARK_FILES = {f"{INTEGRATION}/test_{name}.py" for name in ("pipeline", "spark_queries", "spark_connector")}
SPARK_TESTS = {f"{INTEGRATION}/test_benchmarks.py::test_{name}" for name in ("fleet", "pipeline", "spark_source")}
PARSED = "tests/style"  # its modules share the parsed sources
SPREAD = (f"{INTEGRATION}/", "tests/campaign/", "tests/simulation/")  # single tests go to the next free worker
WITH_MODULE_FIXTURES = {
    f"{INTEGRATION}/test_{name}.py"
    for name in (
        "cluster",
        "gateway_brokers",
        "gateway_clients",
        "kafkas_error_codes",
        "lost_authorization",
        "refusals",
        "reset_offsets",
        "secured_kafka",
        "secured_zookeeper",
        "sinks",
        "zk_model",
        "zk_refusals",
    )
}
# Long work first, so that short tests fill the gaps at the end.
ORDER = (
    "tests/unit/pipeline",
    "tests/integration",
    "tests/campaign",
    "tests/simulation",
    "tests/interruptions",
    "tests",
)


INSTALLING: pytest.StashKey[subprocess.Popen[bytes] | None] = pytest.StashKey()
INSTALL_DEADLINE_S = 600.0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to fetch what the last tests need."""
    session.stash[INSTALLING] = installing.begin(session.config, (item.path for item in session.items))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave nobody who still installs."""
    if begun := session.stash.get(INSTALLING, None):
        begun.wait(INSTALL_DEADLINE_S)


def pytest_configure() -> None:
    """Let Ctrl-C interrupt: a shell that starts a run in the background has it ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and afterwards not among what was imported and collected, which stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Share one small session among all tests that need Spark in this process: a JVM takes seconds to start."""
    from tests.support.light_spark import light_session  # noqa: PLC0415  # only those that ask for it pay

    with light_session() as session:
        yield session


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile everything before the workers do, each for itself."""
    compile_once((config.rootpath / name for name in ("zkrebalancer", "consumer_agent", "tests")), config)


@pytest.hookimpl(optionalhook=True)  # a single process needs no xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give the next free worker a unit of tests as `_unit` forms them, in the order of their collection."""
    scheduling = importlib.import_module("xdist.scheduler.loadscope").LoadScopeScheduling
    by_unit = type("ByUnit", (scheduling,), {"_split_scope": lambda _self, nodeid: _unit(nodeid)})
    return by_unit(config, log)


def _unit(nodeid: str) -> str:
    """Return a name that the tests of one worker share: Spark, a module, or just this test."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/unit/pipeline/") or file in SPARK_FILES or nodeid in SPARK_TESTS:
        return "spark"
    if file.startswith(f"{PARSED}/"):
        return PARSED
    return nodeid if file.startswith(SPREAD) and file not in WITH_MODULE_FIXTURES else file


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test that shares something expensive with others, but not the worker."""
    assert isinstance(item, pytest.Function)
    definitions = item._fixtureinfo.name2fixturedefs
    if "spark" in definitions and _unit(item.nodeid) != "spark":
        raise pytest.UsageError(f"{item.nodeid} uses the Spark session: name it in SPARK_FILES or SPARK_TESTS")
    is_shared = any(definition[-1].scope in SHARED_BY_A_MODULE for definition in definitions.values())
    if is_shared and _unit(item.nodeid) == item.nodeid:
        raise pytest.UsageError(f"{item.nodeid} has a fixture of module scope: name its file in WITH_MODULE_FIXTURES")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next(rank for rank, folder in enumerate(ORDER) if item.nodeid.startswith(folder))
