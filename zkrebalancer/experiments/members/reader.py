"""The interface between a group member of any protocol and the program that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zkrebalancer.experiments.members.recorder import Received

COMMIT_INTERVAL_MS = 5_000  # the default of the agent's and librdkafka's auto-commit
# What the members of each kind always have, beside their protocol's settings; `central` commits by itself.
CENTRAL: Mapping[str, int] = {"auto_commit_interval_ms": 86_400_000}
KAFKA: Mapping[str, str | int] = {"auto.offset.reset": "earliest", "log_level": 0}  # some scenarios stop the broker


@dataclass(frozen=True, slots=True)
class Membership:
    """The group to join and how; `instance_id` makes the member static, `config` has the client's own settings.

    The member reads `topics`, or those that match the regular expression `pattern`; a poll returns at most
    `max_poll_records`.
    """

    zookeeper: str
    bootstrap: str
    group: str
    member: str
    topics: tuple[str, ...]
    pattern: str | None
    instance_id: str | None
    config: Mapping[str, str]
    max_poll_records: int


class Reader(Protocol):
    """A consumer that is a group member from its creation to `close`; used by one thread."""

    def poll(self, timeout_s: float) -> Sequence[Received]:
        """Return up to `max_poll_records` as soon as there are any, none after the timeout; runs the callbacks."""

    def close(self) -> None:
        """Leave the group."""
