"""A sink in memory, for tests of regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from consumer_agent.region import Advance, Claim
from consumer_agent.region.sink import Row, settled
from zkrebalancer.protocol.fields import TopicPartition


@dataclass
class MemorySink:
    """Stores results as a list; `fails_at` is the next call that raises."""

    rows: dict[TopicPartition, Row] = field(default_factory=dict)
    results: list[object] = field(default_factory=list)
    connection: list[object] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    fails_at: str = ""
    _pending: dict[TopicPartition, Advance] = field(default_factory=dict)

    def claim(self, _group: str, claims: Sequence[Claim]) -> dict[TopicPartition, int]:
        self._maybe_fail("claim")
        self.claims += claims
        answer = {}
        for claim in claims:
            found = self.rows.get(claim.partition)
            row = settled(claim, found)
            if row is not None:
                self.rows[claim.partition] = row
                answer[claim.partition] = row.next_offset
        return answer

    def begin(self, _group: str, advances: Mapping[TopicPartition, Advance]) -> set[TopicPartition]:
        self._maybe_fail("begin")
        self.connection, self._pending = [], dict(advances)
        return {tp for tp, advance in advances.items() if not self._is_as_given(self.rows.get(tp), advance)}

    def _is_as_given(self, row: Row | None, advance: Advance) -> bool:
        return row is not None and (row.generation, row.next_offset) == (advance.generation, advance.before)

    def commit(self) -> None:
        self._maybe_fail("commit")
        self.results += self.connection
        for tp, advance in self._pending.items():
            self.rows[tp] = replace(self.rows[tp], next_offset=advance.after)
        self.rollback()
        self._maybe_fail("committed")

    def rollback(self) -> None:
        self.connection, self._pending = [], {}

    def _maybe_fail(self, call: str) -> None:
        if call == self.fails_at:
            self.fails_at = ""
            raise ConnectionError(f"the database is away at {call}")
