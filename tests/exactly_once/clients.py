"""Clients for workers whose region has a state of its own; each call of such a client is a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import confluent_kafka

from consumer_agent.region.rounds import Rounds
from tests.exactly_once.fates import Fates
from zkrebalancer.protocol.calls import Call, Create, Multi, Reply

PIECE_BYTES = 400  # so that an answer has a piece for each partition


class SteppingClient(confluent_kafka.Consumer):
    """An unmodified client of Kafka, but for its steps: its callbacks, and what a region does with it elsewhere."""

    def __init__(self, settings: dict[str, Any], fates: Fates) -> None:
        super().__init__(settings)
        self._fates = fates
        self._is_called_back = False

    def subscribe(self, topics: list[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None) -> None:
        stepping = [self._stepping("assign", on_assign), self._stepping("revoke", on_revoke)]
        super().subscribe(topics, on_assign=stepping[0], on_revoke=stepping[1], on_lost=on_lost)

    def _stepping(self, step: str, callback: Any) -> Any:
        def call_back(client: Any, partitions: Any) -> None:
            self._fates.reach(step)
            self._is_called_back = True
            callback(client, partitions)
            self._is_called_back = False
            self._fates.reach("assigned" if step == "assign" else "revoked")

        return call_back

    def assign(self, partitions: Any) -> None:
        is_placing = not self._is_called_back
        if is_placing:
            self._fates.reach("place")
        super().assign(partitions)
        if is_placing:
            self._fates.reach("placed")

    def commit(self, *arguments: Any, **options: Any) -> Any:
        self._fates.reach("commit")
        done = super().commit(*arguments, **options)
        self._fates.reach("after-commit")
        return done


class SteppingSession:
    """A region's session; each piece of an answer that it has stored is a step."""

    def __init__(self, session: Any, fates: Fates) -> None:
        self._session, self._fates = session, fates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def perform(self, calls: Sequence[Call]) -> list[Reply]:
        replies: list[Reply] = self._session.perform(calls)
        if any(_is_answer(call) for call in calls):
            self._fates.reach("piece")
        return replies


def _is_answer(call: Call) -> bool:
    last = call.operations[-1] if isinstance(call, Multi) else None
    return isinstance(last, Create) and "/contributions/" in last.path


def step_between_pieces(rounds: Rounds, fates: Fates) -> None:
    """Let a member answer in several pieces, each of them a step."""
    rounds.member._piece_bytes = PIECE_BYTES
    rounds._session = SteppingSession(rounds._session, fates)  # type: ignore[assignment]
