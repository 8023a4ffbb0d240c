"""The groups of a run, and the controls beside them: how their members read, and where their results are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zkrebalancer.protocol.settings import EAGER, INCREMENTAL

DATABASE, COPIES, KAFKA = "database", "copies", "kafka"  # where results are; copies: of states of the members' own


@dataclass(frozen=True, slots=True)
class Way:
    """What the members of a group do."""

    kind: str  # of its workers
    results: str
    mode: str | None = INCREMENTAL  # None: Kafka assigns the partitions
    controls: tuple[str, ...] = ()  # that show that a mistake would be found


_OF_DATABASE = ("naive", "offsets-outside", "fence-off")
GROUPS = {
    "incremental": Way("region", DATABASE, controls=_OF_DATABASE),
    "eager": Way("region", DATABASE, EAGER, controls=_OF_DATABASE),
    "kafka": Way("kafka", KAFKA, controls=("kafka-outside",)),
    "state": Way("state", COPIES),
    "classic": Way("classic", COPIES, None, controls=("no-reset",)),
}
CONTROLS = {
    **{name: Way(name, DATABASE) for name in _OF_DATABASE},
    "kafka-outside": Way("kafka-outside", KAFKA),
    "no-reset": Way("no-reset", COPIES, None),
}


def controls_of(groups: Iterable[str]) -> list[str]:
    """Return the controls that run beside these groups."""
    wanted = {name for group in groups for name in GROUPS[group].controls}
    return [name for name in CONTROLS if name in wanted]
