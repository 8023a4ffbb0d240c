"""One run: from a plan to its result."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from consumer_agent.errors import IllegalTransitionError
from tests.simulation import faults, isolation, limits, operators, quiescence
from tests.simulation.cluster import Cluster
from tests.simulation.plan import DURATION_US, Plan, Scenario
from tests.simulation.promises import BrokenPromiseError
from tests.simulation.schedule import RestlessError
from zkrebalancer.rebalance.states import InvalidTransitionError

# Exceptions that show a bug in the core.
CRASHES = (
    IllegalTransitionError,
    InvalidTransitionError,
    RestlessError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


@dataclass(slots=True)
class Result:
    """The result of one or many runs."""

    seeds: int = 0
    steps: int = 0
    virtual_us: int = 0
    records: int = 0
    events: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)  # of one run, if requested

    def add(self, other: Result) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.virtual_us += other.virtual_us
        self.records += other.records
        self.events += other.events
        self.faults += other.faults
        self.transitions += other.transitions


@dataclass(frozen=True, slots=True)
class Failure:
    """A broken invariant."""

    plan: Plan
    name: str
    text: str
    at_us: int
    story: list[str]


def run(
    plan: Plan, *, tells: bool = False, prepare: Callable[[Cluster], object] = lambda _cluster: None
) -> tuple[Result, Failure | None]:
    """Perform a plan; `prepare` may change the cluster before."""
    cluster = Cluster(plan, tells=tells)
    prepare(cluster)
    failure = None
    try:
        with limits.set_to(dict(plan.limits)), operators.in_virtual_time(plan.seed, cluster.disk):
            _perform(cluster)
    except BrokenPromiseError as error:
        failure = Failure(plan, error.name, str(error), cluster.schedule.now_us, cluster.schedule.story)
    except CRASHES as error:
        text = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
        failure = Failure(plan, type(error).__name__, text, cluster.schedule.now_us, cluster.schedule.story)
    schedule, emission = cluster.schedule, cluster.emission
    result = Result(1, schedule.steps, schedule.now_us, emission.records, cluster.events, cluster.faults)
    result.story = schedule.story
    return result, failure


def _perform(cluster: Cluster) -> None:
    cluster.perform = lambda kind, pick: faults.perform_kind(cluster, kind, pick)
    if cluster.plan.scenario is Scenario.ONE_BAD_AGENT:
        quiescence.one_bad_agent(cluster)
    elif cluster.plan.scenario is Scenario.ONE_BAD_NODE:
        isolation.one_bad_node(cluster, cluster.plan.faults[0])
    else:
        for fault in cluster.plan.faults:
            cluster.run_until(fault.at_us)
            faults.perform(cluster, fault)
        cluster.run_until(DURATION_US)
    quiescence.calm_down(cluster)
