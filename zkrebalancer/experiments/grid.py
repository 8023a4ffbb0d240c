"""Many runs in sequence; runs with a complete result are skipped, so that a grid can be resumed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol as Shape

from zkrebalancer.experiments.plan import Plan
from zkrebalancer.experiments.protocols import Protocol
from zkrebalancer.experiments.run import Result, Run, read_result
from zkrebalancer.experiments.scenarios.model import Scenario
from zkrebalancer.localcluster.cluster import BrokerKind
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError


@dataclass(frozen=True, slots=True)
class Grid:
    """Every protocol with every scenario, tuning and seed; `broker` None means each protocol's own.

    `pairs` are protocols with a tuning that are added to these.
    A protocol without heartbeats is left out where these are set, one without an upgrade where one is the scenario.
    """

    protocols: Sequence[Protocol]
    scenarios: Sequence[Scenario]
    tunings: Sequence[str]
    members: int
    partitions: int
    seeds: Sequence[int]
    broker: BrokerKind | None
    members_per_process: int
    pairs: Sequence[tuple[Protocol, str]] = ()

    def plans(self) -> list[Plan]:
        """Return the runs: all of a scenario and seed in sequence, so that they meet the same conditions.

        The seed draws the order of protocols and tunings together, so that none of them always runs first or after the
        same other one.

        Raises:
            ConfigurationError: a protocol does not run on the broker.

        """
        return [
            Plan(protocol, scenario, tuning, cast, self._broker(protocol), self.members_per_process)
            for seed in self.seeds
            for scenario in self.scenarios
            for cast in [scenario.cast(self.members, self.partitions, seed)]
            for protocol, tuning in self._drawn(scenario, seed)
        ]

    def _drawn(self, scenario: Scenario, seed: int) -> list[tuple[Protocol, str]]:
        """Return the protocols and tunings that a scenario is run with, in the order that the seed draws."""
        every = [
            (protocol, tuning) for protocol in self.protocols for tuning in self.tunings if tuning in protocol.settings
        ]
        every += [pair for pair in self.pairs if pair not in every]
        pairs = [(protocol, tuning) for protocol, tuning in every if protocol.restarts or not scenario.is_upgrade]
        return Random(f"{seed} {scenario.name}").sample(pairs, len(pairs))  # noqa: S311  # the same each time

    def _broker(self, protocol: Protocol) -> BrokerKind:
        if self.broker is not None and self.broker not in protocol.brokers:
            known = ", ".join(protocol.brokers)
            raise ConfigurationError(f"--broker {self.broker}: {protocol.name} runs on {known} only")
        return self.broker or protocol.brokers[0]


class Show(Shape):
    """Shows the progress of a grid."""

    def begin(self, number: int, title: str) -> None:
        """Show that a run begins; the first has number 0."""

    def detail(self, line: str) -> None:
        """Show what the run does now."""

    def end(self, line: str) -> None:
        """Show the run's outcome."""


def perform(
    plans: Iterable[Plan], out: Path, show: Show, events_directory: Path | None = None
) -> tuple[list[Result], list[str]]:
    """Perform runs; return their results, and one line for each failed run.

    The events of runs performed now are also copied to folders below `events_directory`.

    Raises:
        RebalancerError, OSError: an error during the cleanup after an interrupt; no further run begins.

    """
    results, failures = list[Result](), list[str]()
    for number, plan in enumerate(plans):
        show.begin(number, plan.title)
        try:
            result = read_result(plan, out)
            if result is None:
                result = Run(plan, out, show.detail, events_directory).perform()
                show.end(_summary(result))
            else:
                show.end("already finished")
        except (RebalancerError, OSError) as error:  # a full disk also fails only this run
            if is_of_interrupt(error):
                raise
            failures.append(f"{plan.title}: {error}")
            show.end(f"failed: {error}")
            continue
        results.append(result)
    return results, failures


def is_of_interrupt(error: BaseException | None) -> bool:
    """Whether an error was raised while cleaning up after an interrupt."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _summary(result: Result) -> str:
    settled_ms = result["measures"].get("settled_ms")
    settled = "nothing changed" if settled_ms is None else f"settled in {settled_ms:g} ms"
    doubts = "".join(f"; untrusted: {doubt}" for doubt in result["doubts"])
    return f"{settled}, {result['elapsed_s']:g} s{doubts}"
