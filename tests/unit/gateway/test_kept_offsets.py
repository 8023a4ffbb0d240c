"""Kafka deletes offsets that were not written for days, unless the group has members there: the gateway writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gevent
import pytest
from gevent.event import AsyncResult, Event

from tests.support.deadlines import WITHIN_S
from zkrebalancer.gateway.dialing import LinkError
from zkrebalancer.gateway.links import Links
from zkrebalancer.gateway.metrics import Metrics
from zkrebalancer.gateway.offsets import FIRST_REWRITE_S, REWRITE_S, UpstreamOffsets
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.group_protocol.figures import GroupFigures
from zkrebalancer.protocol.calls import Check

UNSTABLE = 88
Fields = dict[str, Any]


class Store:
    """A broker that keeps offsets: topic, partition -> offset, leader epoch and metadata."""

    def __init__(self, count: int = 3) -> None:
        self.brokers = {1: ("h", 1)}
        self.kept = {("t", number): (10 + number, number, f"m{number}") for number in range(count)}
        self.pending: set[tuple[str, int]] = set()  # that a transaction has written, and not committed
        self.of_agents: set[tuple[str, int]] = set()
        self.written: list[dict[tuple[str, int], tuple[int, int, str]]] = []
        self.hangs_at: bool | None = None  # a fetch with this `require_stable`
        self.may_answer = Event()
        self.when_linked: list[Callable[[], None] | None] = []  # what happens while a link is opened, one after another
        self.found: Fields = {}

    def ask_any(self, _name: str, _fields: Fields, _highest: int | None = None) -> Store:
        self.found = {"coordinators": [], "error_code": 0, "host": "h", "port": 1}
        return self

    def to(self, _address: object, _number: int | None = None) -> Store:
        if self.when_linked and (action := self.when_linked.pop(0)) is not None:
            action()
        return self

    def fields(self) -> Fields:
        return self.found

    def ask(self, name: str, fields: Fields, _highest: object, _timeout_s: float) -> Store:
        if name == "OffsetFetch":
            self.found = {"groups": [self._fetched(fields["groups"][0], is_strict=fields["require_stable"])]}
            if self.hangs_at is fields["require_stable"]:
                self.may_answer.wait(WITHIN_S)
        elif name == "OffsetCommit":
            assert (fields["member_id"], fields["generation_id_or_member_epoch"]) == ("", -1)
            self._commit(fields["topics"])
            self.found = {"topics": []}
        else:
            self.found = {"error_code": 0, "groups": []}
        return self

    def _fetched(self, asked: Fields, *, is_strict: bool) -> Fields:
        wanted = self.kept if asked["topics"] is None else [("t", n) for n in asked["topics"][0]["partition_indexes"]]
        partitions = []
        for partition in wanted:
            offset, epoch, text = self.kept.get(partition, (-1, -1, ""))
            error = UNSTABLE if is_strict and partition in self.pending else 0
            one = {"partition_index": partition[1], "committed_offset": offset, "committed_leader_epoch": epoch}
            partitions.append({**one, "metadata": text, "error_code": error})
        return {"group_id": asked["group_id"], "topics": [{"name": "t", "partitions": partitions}], "error_code": 0}

    def _commit(self, topics: list[Fields]) -> None:
        written = {
            (topic["name"], one["partition_index"]): (
                one["committed_offset"],
                one["committed_leader_epoch"],
                one["committed_metadata"],
            )
            for topic in topics
            for one in topic["partitions"]
        }
        self.written.append(written)
        self.kept |= written


def offsets_at(store: Store, *groups: str, fence: Check | None = Check("/b", 1)) -> UpstreamOffsets:  # noqa: B008
    def is_read(_group: str, topic: str, number: int) -> bool:
        return (topic, number) not in store.of_agents

    figures = [GroupFigures(group, "Stable", "classic", int(group != "empty"), 1) for group in groups]
    return UpstreamOffsets(cast("Links", store), Metrics(), lambda _group: fence, lambda: figures, is_read)


def test_offsets_of_groups_with_members_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `UpstreamOffsets.watch`, do not keep them: those of quiet partitions are gone after a week."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.FIRST_REWRITE_S", 0.0)
    monkeypatch.setattr("zkrebalancer.gateway.offsets.MAX_REWRITTEN", 2)
    store = Store()
    before = dict(store.kept)
    watch = gevent.spawn(offsets_at(store, "g").watch)
    with gevent.Timeout(WITHIN_S):
        while len(store.written) < 2:
            gevent.sleep(0.001)
    watch.kill()
    assert store.written == [{("t", 0): before["t", 0], ("t", 1): before["t", 1]}, {("t", 2): before["t", 2]}]


class Rewritten(UpstreamOffsets):
    """Notes which groups have their turn, of which some fail: `outcomes`."""

    def __init__(self, store: Store, *groups: str) -> None:
        offsets = offsets_at(store, *groups)
        super().__init__(cast("Links", store), Metrics(), offsets._fence, offsets._figures, offsets._is_read)
        self.turns: list[str] = []
        self.outcomes: dict[str, ErrorCode | Exception] = {}

    def rewrite(self, group: str) -> ErrorCode:
        self.turns.append(group)
        outcome = self.outcomes.get(group, ErrorCode.NONE)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def keep(self, monkeypatch: pytest.MonkeyPatch, *, rounds: int) -> list[float]:
        """Keep offsets for some rounds; return the pauses before them, and the next one."""
        pauses: list[float] = []

        def sleep(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) > rounds:
                raise gevent.GreenletExit

        monkeypatch.setattr("zkrebalancer.gateway.offsets.gevent.sleep", sleep)
        with pytest.raises(gevent.GreenletExit):
            self._keep_offsets()
        return pauses


def test_groups_without_members_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_keep_offsets`, take all groups: each costs a request for the offsets of all topics."""
    offsets = Rewritten(Store(), "b", "empty", "a")
    assert offsets.keep(monkeypatch, rounds=1) == [FIRST_REWRITE_S, REWRITE_S]
    assert offsets.turns == ["a", "b"]


def test_an_error_of_one_group_ends_neither_the_round_nor_the_greenlet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `_keep_offsets_of`, catch nothing: offsets of all groups would be gone a week later, and nobody told."""
    offsets = Rewritten(Store(), "a", "b")
    offsets.outcomes["a"] = KeyError("a bug")
    offsets.keep(monkeypatch, rounds=2)
    assert offsets.turns == ["a", "b"] * 2
    assert "offsets of group a are not written again" in caplog.text
    assert "KeyError: 'a bug'" in caplog.text


def test_a_round_ends_if_brokers_do_not_answer_and_goes_on_with_the_other_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In `_keep_offsets`, ask for all groups, which takes seconds for each; or begin with the same ones each time."""
    offsets = Rewritten(Store(), *"abcdefg")
    offsets.outcomes = dict.fromkeys("bdef", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert offsets.keep(monkeypatch, rounds=2) == [FIRST_REWRITE_S] * 3
    assert "".join(offsets.turns) == "abcdef" + "gabcdef"


def test_what_is_not_answered_is_said_and_not_tried_for_the_next_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `rewrite`, return nothing: a round would go on while no broker answers."""
    monkeypatch.setattr("zkrebalancer.gateway.offsets.MAX_REWRITTEN", 1)
    store, asked = Store(), list[bool]()
    offsets = offsets_at(store)
    ask = store.ask

    def hang(name: str, fields: Fields, highest: object, timeout_s: float) -> Store:
        asked.append(fields["require_stable"])
        if fields["require_stable"]:
            raise LinkError("it hangs")
        return ask(name, fields, highest, timeout_s)

    monkeypatch.setattr(store, "ask", hang)
    monkeypatch.setattr("zkrebalancer.gateway.offsets.PAUSE_S", 0.0)
    assert offsets.rewrite("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert asked == [False, True]


def test_what_an_open_transaction_has_written_is_not_touched() -> None:
    """In `_rewrite_some`, read without `require_stable`: Kafka drops the transaction's offset, as an older one."""
    store = Store()
    store.pending = {("t", 1)}
    offsets_at(store).rewrite("g")
    assert [sorted(some) for some in store.written] == [[("t", 0), ("t", 2)]]


@pytest.mark.parametrize("hangs_at", [False, True])
def test_a_commit_that_comes_meanwhile_is_not_undone(*, hangs_at: bool) -> None:
    """In `rewrite`, write what the first fetch has found, or do not use the lane: the older offset is written last."""
    store = Store(1)
    offsets = offsets_at(store)
    store.hangs_at = hangs_at
    rewriting = gevent.spawn(offsets.rewrite, "g")
    gevent.sleep(0.001)
    answered: AsyncResult[object] = AsyncResult()
    newer = {"partition_index": 0, "committed_offset": 99, "committed_leader_epoch": 7, "committed_metadata": "new"}
    commit = {"group_id": "g", "topics": [{"name": "t", "partitions": [newer]}]}
    offsets.send("g", "OffsetCommit", commit, answered.set)
    store.may_answer.set()
    rewriting.get(timeout=WITHIN_S)
    answered.get(timeout=WITHIN_S)
    assert store.kept == {("t", 0): (99, 7, "new")}


def test_what_an_agent_in_the_group_commits_is_not_undone() -> None:
    """In `_rewrite_some`, write what was read here before: the agent that has it now commits without the gateway."""
    store = Store()
    store.of_agents = {("t", 0)}
    store.hangs_at = True
    rewriting = gevent.spawn(offsets_at(store).rewrite, "g")
    gevent.sleep(0.001)
    store.of_agents.add(("t", 2))
    store.may_answer.set()
    rewriting.get(timeout=WITHIN_S)
    assert [sorted(some) for some in store.written] == [[("t", 1)]]


def test_what_an_agent_gets_while_a_link_is_opened_is_not_undone() -> None:
    """In `_rewrite_some`, do not ask again before the commit is sent: it is older than what the agent commits."""
    store = Store()
    store.when_linked = [None, None, lambda: store.of_agents.add(("t", 2))]  # a fetch, another one, the commit
    offsets = offsets_at(store)
    offsets.rewrite("g")
    assert store.written == []
    offsets.rewrite("g")
    assert [sorted(some) for some in store.written] == [[("t", 0), ("t", 1)]]


def test_a_group_of_another_gateway_is_left_alone() -> None:
    store = Store()
    offsets_at(store, fence=None).rewrite("g")
    assert store.written == []


def test_a_group_without_offsets_has_none_afterwards() -> None:
    store = Store(0)
    offsets_at(store).rewrite("g")
    assert store.written == []
