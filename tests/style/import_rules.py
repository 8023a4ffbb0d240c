"""Which package may import which, as data; `docs/architecture.md` has the reasons."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from tests.style.sources import Source, imported_modules, imported_names, is_below

ANYTHING = ("zkrebalancer", "consumer_agent")
AGENT_SURFACE = tuple(
    f"consumer_agent.{name}"
    for name in ("aio", "arguments", "config", "consumer", "consumer_base", "errors", "kafka_config", "records")
)
PARTED = ANYTHING  # their subpackages have rules of their own and are not allowed automatically
# The longest matching name decides. A module may import its own package and, of our other modules, those below these.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "zkrebalancer": (),
    "zkrebalancer.protocol": (),
    "zkrebalancer.assignment": ("zkrebalancer.protocol",),
    "zkrebalancer.region": ("zkrebalancer.protocol",),
    "zkrebalancer.rebalance": (  # the input and output of a strategy, but no strategy
        "zkrebalancer.protocol",
        "zkrebalancer.assignment.columns",
        "zkrebalancer.assignment.kept",
        "zkrebalancer.assignment.loads",
        "zkrebalancer.assignment.model",
        "zkrebalancer.assignment.transition",
        "zkrebalancer.region",
    ),
    "zkrebalancer.group_protocol": ("zkrebalancer.protocol", "zkrebalancer.assignment"),
    "zkrebalancer.kafka_protocol": ("zkrebalancer.protocol",),
    "zkrebalancer.gateway": (
        "zkrebalancer.protocol",
        "zkrebalancer.kafka_protocol",
        "zkrebalancer.group_protocol",
        "zkrebalancer.runtime",
        "zkrebalancer.observe.events",
        "consumer_agent.membership",
    ),
    "zkrebalancer.runtime": ("zkrebalancer.protocol",),
    "zkrebalancer.observe": (
        "zkrebalancer.protocol",
        "zkrebalancer.runtime",
        "zkrebalancer.rebalance.problems",
        "zkrebalancer.rebalance.reader",
        "zkrebalancer.rebalance.view",
        "zkrebalancer.region",
    ),
    "zkrebalancer.observe.events": ("zkrebalancer.protocol", "zkrebalancer.runtime.logs"),
    "zkrebalancer.coordinator": (
        "zkrebalancer.protocol",
        "zkrebalancer.assignment",
        "zkrebalancer.rebalance",
        "zkrebalancer.runtime",
        "zkrebalancer.operations.foresight",
        "zkrebalancer.operations.group_lag",
        "zkrebalancer.operations.loads",
        "zkrebalancer.observe.events",
        "zkrebalancer.observe.inspection",
        "zkrebalancer.observe.obstacles",
        "zkrebalancer.observe.service_level",
    ),
    "zkrebalancer.operations": (
        "zkrebalancer.protocol",
        "zkrebalancer.assignment",
        "zkrebalancer.group_protocol.placement",
        "zkrebalancer.group_protocol.stored",
        "zkrebalancer.gateway.nodes",
        "zkrebalancer.rebalance.planning",
        "zkrebalancer.rebalance.subscriptions",
        "zkrebalancer.rebalance.view",
        "zkrebalancer.region",
        "zkrebalancer.runtime",
        "zkrebalancer.observe",
    ),
    "zkrebalancer.localcluster": ("zkrebalancer.protocol", "zkrebalancer.runtime"),
    "zkrebalancer.topic_mirror": ("zkrebalancer.protocol", "zkrebalancer.runtime"),
    "zkrebalancer.pipeline.source": (
        "consumer_agent.region",
        "consumer_agent.spark",
        "zkrebalancer.protocol",
        "zkrebalancer.runtime",
        "zkrebalancer.observe",
    ),
    "zkrebalancer.pipeline": (
        "zkrebalancer.protocol",
        "zkrebalancer.assignment",
        "zkrebalancer.observe",
        "zkrebalancer.localcluster",
    ),
    "zkrebalancer.experiments": ANYTHING,
    "zkrebalancer.cli": ANYTHING,
    "consumer_agent": (  # the API, which uses every subpackage but the sidecar, itself an application
        *AGENT_SURFACE,
        "consumer_agent.membership",
        "consumer_agent.runtime",
        "consumer_agent.kafka",
        "zkrebalancer.protocol",
        "zkrebalancer.runtime.logs",
    ),
    "consumer_agent.membership": ("consumer_agent.errors", "zkrebalancer.protocol"),
    "consumer_agent.runtime": (
        "consumer_agent.arguments",
        "consumer_agent.config",
        "consumer_agent.errors",
        "consumer_agent.records",
        "consumer_agent.membership",
        "consumer_agent.kafka",
        "consumer_agent.kafka_config",
        "zkrebalancer.protocol",
        "zkrebalancer.runtime.logs",
        "zkrebalancer.runtime.zk",
        "zkrebalancer.observe.events",
    ),
    "consumer_agent.kafka": (
        "consumer_agent.config",
        "consumer_agent.errors",
        "consumer_agent.kafka_config",
        "consumer_agent.runtime.failpoints",
        "consumer_agent.runtime.shared_state",
        "consumer_agent.runtime.out_of_range",
        "consumer_agent.runtime.threads",
        "zkrebalancer.protocol",
        "zkrebalancer.runtime.kafka",
        "zkrebalancer.runtime.logs",
    ),
    "consumer_agent.region": (
        *AGENT_SURFACE,
        "consumer_agent.kafka.group_admin",  # the progress of a sink in Kafka
        "consumer_agent.kafka.tokens",  # the same
        "consumer_agent.membership.offset_books",  # the marks of groups whose offsets are in Kafka
        "consumer_agent.runtime",
        "zkrebalancer.protocol",
        "zkrebalancer.region",
        "zkrebalancer.runtime.logs",
        "zkrebalancer.runtime.zk",
    ),
    "consumer_agent.sidecar": (
        *AGENT_SURFACE,
        "consumer_agent.kafka.client",  # dead letters go to a topic with the same settings
        "zkrebalancer.protocol",
        "zkrebalancer.runtime.http_server",
        "zkrebalancer.runtime.logs",
        "zkrebalancer.runtime.notify",
        "zkrebalancer.runtime.toml_file",
        "zkrebalancer.runtime.vitals",
        "zkrebalancer.runtime.zk",
    ),
}
ONLY_IN: dict[str, tuple[str, ...]] = {  # library -> the only packages that may import it
    "kazoo": ("zkrebalancer.runtime",),
    "pyspark": ("zkrebalancer.pipeline",),
    "numpy": ("zkrebalancer.assignment", "zkrebalancer.pipeline"),
}
# No I/O, no clock, no randomness in these modules and in those of ours that they import.
PURE = (
    "zkrebalancer.protocol",
    "zkrebalancer.assignment",
    "zkrebalancer.rebalance",
    "zkrebalancer.group_protocol",
    "zkrebalancer.region",
    "consumer_agent.membership",
    "consumer_agent.runtime.record_buffer",
    "consumer_agent.kafka.stall_detector",
)
# fmt: off
IMPURE_LIBRARIES = frozenset((
    "asyncio", "confluent_kafka", "datetime", "gevent", "io", "kazoo", "logging", "multiprocessing", "os",
    "pathlib", "random", "secrets", "select", "shutil", "signal", "socket", "subprocess", "tempfile", "threading",
    "time", "urllib",
))
# fmt: on


def breaches(sources: Iterable[Source]) -> list[str]:
    """Return every forbidden import."""
    return [problem for source in sources for problem in (*_layer_breaches(source), *_library_breaches(source))]


def _layer_breaches(source: Source) -> list[str]:
    rules = [package for package in MAY_IMPORT if is_below(source.module, package)]
    own = max(rules, key=len, default="")
    if not own or (own == "zkrebalancer" and source.module != own) or _is_unknown_room(source, own):
        return [f"{source.path}: no import rule covers this package"]
    allowed = MAY_IMPORT[own] if own in PARTED else (*MAY_IMPORT[own], own)
    found = []
    for node, name in imported_names(source):
        if name.startswith("."):
            found.append(source.at(node, f"relative import {name}"))
        elif _is_below_any(name, ANYTHING) and not _is_below_any(name, allowed):
            found.append(source.at(node, f"{own} may not import {name}"))
    return found


def _is_unknown_room(source: Source, own: str) -> bool:
    return own == "consumer_agent" and source.path.count("/") > 1


def _is_below_any(name: str, packages: Iterable[str]) -> bool:
    return any(is_below(name, package) for package in packages)


def _library_breaches(source: Source) -> list[str]:
    return [
        source.at(node, f"{library} is imported only in {', '.join(places)}")
        for node, name in imported_names(source)
        for library, places in ONLY_IN.items()
        if is_below(name, library) and not _is_below_any(source.module, places)
    ]


def import_circle(sources: Iterable[Source], package: str) -> list[str]:
    """Return modules of a package that import one another in a circle, the first again at the end; [] if none do.

    Imports for type checks count: a part that needs the type of its whole knows too much of it.
    """
    inside = {source.module: source for source in sources if source.module.startswith(f"{package}.")}
    graph = {module: imported_modules(source, set(inside)) - {module} for module, source in inside.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def pure_sources(sources: Iterable[Source]) -> list[Source]:
    """Return the pure modules with all modules of ours that they import, directly or indirectly."""
    by_module = {source.module: source for source in sources}
    waiting = [module for module in by_module if _is_below_any(module, PURE)]
    found = set(waiting)
    while waiting:
        imported = imported_modules(by_module[waiting.pop()], set(by_module)) - found
        # `import a.b` also runs a/__init__.py, but the module does not compute with it.
        new = {module for module in imported if not by_module[module].path.endswith("/__init__.py")}
        found |= new
        waiting += new
    return [by_module[module] for module in sorted(found)]


def impure_imports(source: Source) -> list[str]:
    """Return imports that give access to a clock, randomness or I/O."""
    return [
        source.at(node, f"a pure module imports {name}")
        for node, name in imported_names(source)
        if name.split(".")[0] in IMPURE_LIBRARIES
    ]
