"""What a member of any protocol is to the program that runs it: something to poll and to close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zkrebalancer.experiments.members.recorder import Received


@dataclass(frozen=True, slots=True)
class Membership:
    """Which group is joined, and how; `instance_id` makes a static member, `config` holds the client's own settings.

    Either `topics` or `pattern`, a regular expression, says what is read; a poll returns at most `max_poll_records`.
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
    """A consumer that is in its group from its creation to `close`; used from one thread."""

    def poll(self, timeout_s: float) -> Sequence[Received]:
        """Return at most `max_poll_records` as soon as there are any, none after the timeout; runs the callbacks."""

    def close(self) -> None:
        """Leave the group in good order."""
