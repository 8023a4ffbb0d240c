"""What a run asks of each place where results are."""

from __future__ import annotations

from typing import Protocol

from tests.exactly_once.judging import Judgement, Log


class Results(Protocol):
    """A database, topics, or copies of states."""

    @property
    def address(self) -> str:
        """The instructions for a worker."""

    def next_offsets(self, group: str) -> dict[int, int]:
        """Return how far each partition is stored; nothing if that is not known now."""

    def has_doubles(self, group: str) -> bool:
        """Whether a record has an effect twice."""

    def judge(self, group: str, log: Log) -> Judgement:
        """Compare a group's results with the log of the topic."""
