"""Every import is allowed by the rules, and each rule finds an offender."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.style.code_rules import impure_calls
from tests.style.import_rules import IMPURE_LIBRARIES, breaches, import_circle, impure_imports, pure_sources
from tests.style.sources import PRODUCT, Source, python_sources

SHOW_MODULES = "import {}, json, sys; print(json.dumps(sorted(sys.modules)))"
HEAVY = frozenset({"click", "numpy", "prometheus_client", "pyspark", "re2", "rich"})
LATER = frozenset({"gevent", "greenlet", "kazoo", "msgpack"})  # imported by the first poll, as ZooKeeper's client is


def test_every_import_is_allowed() -> None:
    assert breaches(python_sources(*PRODUCT)) == []


def test_pure_modules_use_no_io_clock_or_randomness() -> None:
    pure = pure_sources(python_sources(*PRODUCT))
    assert [problem for source in pure for problem in (*impure_imports(source), *impure_calls(source))] == []


def test_imports_of_pure_modules_are_checked_too() -> None:
    modules = {source.module for source in pure_sources(python_sources(*PRODUCT))}
    assert {
        "consumer_agent.membership.registered_member",
        "consumer_agent.membership.start",
        "zkrebalancer.rebalance.moving",
    } <= modules
    assert "consumer_agent.runtime.machine_thread" not in modules


def test_the_parts_of_the_core_do_not_import_one_another_in_a_circle() -> None:
    assert import_circle(python_sources("zkrebalancer/rebalance"), "zkrebalancer.rebalance") == []


def test_a_circle_of_imports_is_found_also_where_it_is_for_types_only() -> None:
    whole = Source("zkrebalancer/rebalance/whole.py", "from zkrebalancer.rebalance.part import Part")
    types = "if TYPE_CHECKING:\n    from zkrebalancer.rebalance.whole import Whole"
    part = Source("zkrebalancer/rebalance/part.py", types)
    names = ["zkrebalancer.rebalance.whole", "zkrebalancer.rebalance.part"]
    assert set(import_circle([whole, part], "zkrebalancer.rebalance")) == set(names)
    assert import_circle([whole], "zkrebalancer.rebalance") == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("zkrebalancer/protocol/a.py", "import zkrebalancer.assignment", "protocol may not import"),
        ("zkrebalancer/assignment/a.py", "from zkrebalancer.rebalance import plan", "assignment may not import"),
        ("zkrebalancer/rebalance/a.py", "from zkrebalancer.assignment import sticky", "rebalance may not import"),
        ("zkrebalancer/rebalance/a.py", "from zkrebalancer.runtime import clock", "rebalance may not import"),
        ("zkrebalancer/coordinator/a.py", "from zkrebalancer.observe import checker", "coordinator may not import"),
        ("zkrebalancer/coordinator/a.py", "def f():\n    import zkrebalancer.cli.main", ":2: zkrebalancer.coordinator"),
        ("zkrebalancer/localcluster/a.py", "import zkrebalancer.experiments.lab", "localcluster may not import"),
        ("zkrebalancer/observe/events.py", "import zkrebalancer.runtime.zk", "events may not import"),
        ("consumer_agent/a.py", "from zkrebalancer.runtime import clock", "consumer_agent may not import"),
        ("consumer_agent/a.py", "from zkrebalancer.observe.events import EventLog", "consumer_agent may not import"),
        ("consumer_agent/a.py", "from consumer_agent.sidecar import ledger", "consumer_agent may not import"),
        ("consumer_agent/something/a.py", "", "no import rule"),
        ("consumer_agent/membership/a.py", "from consumer_agent.runtime import threads", "membership may not import"),
        ("consumer_agent/membership/a.py", "from consumer_agent.config import Fault", "membership may not import"),
        ("consumer_agent/kafka/a.py", "from consumer_agent.runtime.frontend import Frontend", "kafka may not import"),
        ("consumer_agent/runtime/a.py", "from zkrebalancer.observe.checker import check", "runtime may not import"),
        ("consumer_agent/runtime/a.py", "from consumer_agent.consumer import Consumer", "runtime may not import"),
        ("consumer_agent/sidecar/a.py", "from consumer_agent.membership import effects", "sidecar may not import"),
        ("zkrebalancer/pipeline/source/a.py", "from consumer_agent import Consumer", "source may not import"),
        ("zkrebalancer/__init__.py", "import zkrebalancer.protocol.errors", "zkrebalancer may not import"),
        ("zkrebalancer/assignment/a.py", "from . import model", "relative import .model"),
        ("zkrebalancer/something/a.py", "", "no import rule"),
        ("zkrebalancer/coordinator/a.py", "from kazoo.client import KazooClient", "kazoo is imported only in"),
        ("zkrebalancer/observe/a.py", "import pyspark.sql", "pyspark is imported only in"),
        ("zkrebalancer/rebalance/a.py", "import numpy as np", "numpy is imported only in"),
    ],
)
def test_a_forbidden_import_is_found(path: str, text: str, complaint: str) -> None:
    (problem,) = breaches([Source(path, text)])
    assert complaint in problem


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("zkrebalancer/rebalance/a.py", "from zkrebalancer.assignment.model import Problem"),
        ("zkrebalancer/runtime/zk.py", "from kazoo.client import KazooClient"),
        ("consumer_agent/a.py", "from consumer_agent.runtime.frontend import Frontend"),
        ("consumer_agent/runtime/a.py", "from zkrebalancer.observe.events import EventLog"),
        ("consumer_agent/sidecar/a.py", "from consumer_agent.consumer import Consumer"),
        ("zkrebalancer/cli/a.py", "import zkrebalancer.experiments.lab, consumer_agent"),
    ],
)
def test_an_allowed_import_passes(path: str, text: str) -> None:
    assert breaches([Source(path, text)]) == []


@pytest.mark.parametrize("library", sorted(IMPURE_LIBRARIES))
def test_an_impure_import_is_found(library: str) -> None:
    assert impure_imports(Source("zkrebalancer/protocol/a.py", f"from {library} import anything"))


@pytest.mark.parametrize("call", ["open('x')", "print()", "uuid.uuid4()", "uuid1()", "input()"])
def test_an_impure_call_is_found(call: str) -> None:
    assert impure_calls(Source("zkrebalancer/protocol/a.py", call))


def test_impurity_behind_an_import_is_found() -> None:
    machine = Source("consumer_agent/membership/a.py", "from consumer_agent.helper import now")
    helper = Source("consumer_agent/helper.py", "import time")
    pure = pure_sources([machine, helper, Source("consumer_agent/b.py", "import time")])
    assert [problem for source in pure for problem in impure_imports(source)] == [
        "consumer_agent/helper.py:1: a pure module imports time"
    ]


def modules_of(imported: str) -> set[str]:
    """Return what Python has loaded after an import."""
    command = [sys.executable, "-c", SHOW_MODULES.format(imported)]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout))


def test_the_consumer_is_light() -> None:
    modules = modules_of("consumer_agent.runtime.engine")
    assert {name.split(".")[0] for name in modules} & HEAVY == set()
    ours = {name for name in modules if name.startswith("zkrebalancer.") and name.count(".") >= 2}
    allowed = (
        "zkrebalancer.protocol.",
        "zkrebalancer.runtime.kafka",
        "zkrebalancer.runtime.logs",
        "zkrebalancer.runtime.zk",
        "zkrebalancer.observe.events",
    )
    assert ours, "no module of zkrebalancer was loaded, so the test proves nothing"
    assert [name for name in sorted(ours) if not name.startswith(allowed)] == []


def test_importing_the_consumer_loads_hardly_more_than_the_client_of_kafka() -> None:
    modules = modules_of("consumer_agent")
    assert "confluent_kafka" in modules
    assert {name.split(".")[0] for name in modules} & (HEAVY | LATER) == set()
    ours = {name for name in modules if name.startswith(("consumer_agent.kafka.", "zkrebalancer."))}
    assert {name for name in ours if not name.startswith("zkrebalancer.protocol")} == {
        "zkrebalancer.runtime",  # without any code
        "zkrebalancer.runtime.logs",
    }
    assert "confluent_kafka.admin" not in modules
