"""The lines of the source document about consistent regions, and its three bugs, as tests of one member.

Each test names its line. `tests/unit/region/test_leader.py` and `test_merge.py` have the leader's part of lines 9, 12
and 14; `tests/unit/consumer_agent/region/test_classic.py` has line 2 and the queue of line 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.zk_model import ZkModel
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Check, Create, Multi, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.region import documents, limits
from zkrebalancer.region.documents import CHECKPOINT, RESET, Merge, Order, Round, Settings
from zkrebalancer.region.member import Member
from zkrebalancer.region.roles import Phase, RegionMismatchError, Steps, T
from zkrebalancer.region.states import TRANSITIONS, InvalidTransitionError, RegionState

GROUP = "g"
SETTINGS = Settings("billing", "group", every_ms=1_000)


@dataclass
class Source:
    consumer: str | None = None
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    sought: list[dict[TopicPartition, int]] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)
    has_given_up: bool = False
    is_stored: bool = True

    def held(self) -> dict[TopicPartition, int]:
        return dict(self.positions)

    def store(self) -> bool:
        return self.is_stored

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self.sought.append(dict(positions))
        self.positions.update({tp: at for tp, at in positions.items() if tp in self.positions})

    def identity(self, topic: str) -> str:
        return self.marks.get(topic, "")


@dataclass
class Application:
    calls: list[tuple[str, int | None]] = field(default_factory=list)

    def checkpoint(self, number: int) -> None:
        self.calls.append(("checkpoint", number))

    def reset(self, number: int | None) -> None:
        self.calls.append(("reset", number))

    def retire(self, number: int) -> None:
        self.calls.append(("retire", number))


class Stage:
    """One member on a ZooKeeper in memory; the test writes the orders."""

    def __init__(self, name: str = "a", settings: Settings = SETTINGS, zk: ZkModel | None = None) -> None:
        self.zk = zk or ZkModel()
        self.session = self.zk.open()
        self.source, self.application = Source(), Application()
        self.member = Member(GROUP, name, settings, self.source, self.application, 10_000)

    def run(self, steps: Steps[T]) -> T:
        replies: list[Reply] | None = None
        while True:
            try:
                calls = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                result: T = end.value
                return result
            replies = [self.zk.perform(call, self.session.session_id) for call in calls]

    def write(self, *operations: Create | SetContent | Check) -> None:
        for operation in operations:
            reply = self.zk.perform(Multi((operation,)))
            assert not isinstance(reply, Refused) or reply.refusal is Refusal.NODE_EXISTS, reply

    def register(self) -> bool:
        return self.run(self.member.register(lambda: self.session.session_id))

    def joined(self) -> Stage:
        assert self.register()
        return self

    def order(self, number: int = 1, **other: object) -> Order:
        """Write an order that names the member, and whose open round has its container."""
        fields: dict[str, object] = {"id": number, "members": {self.member.name: self.member.zxid}, **other}
        order = Order(**fields)  # type: ignore[arg-type]
        path = paths.region(GROUP, "order")
        content = documents.encode_order(order)
        self.write(SetContent(path, content) if path in self.zk.nodes else Create(path, content))
        if order.open is not None:
            self.write(Create(paths.region(GROUP, "contributions", str(order.open.id))))
        return order

    def advance(self, order: Order | None) -> Phase:
        return self.run(self.member.advance(order))

    def merge(self, merge: Merge) -> None:
        for piece, content in enumerate(documents.merge_pieces(merge, 10_000)):
            self.write(Create(paths.region(GROUP, "merged", f"{merge.id}.{piece}"), content))

    def fetch(self, **first: int) -> None:
        assert self.run(self.member.begin_records({("t", int(name[1:])): at for name, at in first.items()}))

    def answers(self, number: int) -> dict[TopicPartition, int]:
        path = paths.region(GROUP, "contributions", str(number))
        pieces = [
            documents.decode_contribution(self.zk.nodes[f"{path}/{name}"].content) for name in self.zk.children(path)
        ]
        return {tp: at for piece in pieces for tp, at in piece.offsets.items()}

    def requests(self) -> list[str]:
        return [name.rpartition("-")[0] for name in self.zk.children(paths.region(GROUP, "requests"))]


@pytest.fixture
def stage() -> Stage:
    return Stage().joined()


def flowing(stage: Stage) -> Stage:
    """Return a member that has processed records of t/0, to offset 5."""
    assert stage.advance(stage.order()) is Phase.FLOW
    stage.source.positions = {("t", 0): 0}
    stage.fetch(t0=0)
    stage.source.positions = {("t", 0): 5}
    return stage


def resetting(number: int, **other: object) -> dict[str, Any]:
    return {"number": number, "reset": number, "open": Round(number, RESET, ("a",)), **other}


def test_line_1_the_states_and_the_first_record(stage: Stage) -> None:
    assert {state.value for state in RegionState} == {
        "initialized", "event-thread-started", "subscribed", "records-fetched", "reset-pending", "reset-complete",
    }  # fmt: skip
    states = [stage.member.state]
    stage.advance(stage.order())
    states.append(stage.member.state)
    stage.fetch(t0=3)
    states.append(stage.member.state)
    assert states == [RegionState.INITIALIZED, RegionState.SUBSCRIBED, RegionState.RECORDS_FETCHED]
    with pytest.raises(InvalidTransitionError, match="member a: records-fetched -> reset-complete"):
        stage.member.go(RegionState.RESET_COMPLETE)


def test_line_1_no_state_is_skipped_by_a_reset() -> None:
    assert all(
        RegionState.RESET_COMPLETE not in after
        for state, after in TRANSITIONS.items()
        if state is not RegionState.RESET_PENDING
    )


def test_line_3_another_region_fails_the_initialisation(stage: Stage) -> None:
    for other in (Settings("other", "group", 1_000), Settings("billing", "forced", 1_000)):
        with pytest.raises(RegionMismatchError, match="group g is in the region billing with recovery 'group'"):
            Stage("b", other, stage.zk).joined()


def test_line_3_members_register_again_after_the_store_was_away(stage: Stage) -> None:
    flowing(stage)
    first = stage.member.zxid
    stage.zk.end(stage.session)
    stage.session = stage.zk.open()
    stage.member.session_lost()
    assert stage.advance(None) is Phase.OUT
    stage.joined()
    assert stage.member.zxid != first
    assert stage.advance(stage.order(members={"a": first})) is Phase.WAIT  # not admitted yet


def test_line_3_a_name_is_registered_once(stage: Stage) -> None:
    assert not Stage("a", zk=stage.zk).register()


def test_line_3_an_own_registration_whose_reply_was_lost_is_taken_until_it_was_admitted(stage: Stage) -> None:
    """Otherwise its name is taken for as long as its session lives, and each checkpoint waits for it in vain."""
    first = stage.member.zxid
    stage.member.session_lost()
    assert stage.joined().member.zxid == first
    stage.advance(stage.order())
    stage.member.session_lost()
    assert not stage.register()  # what it has done since then is in no state that it will restore


def test_line_3_an_order_that_begins_anew_is_not_followed(stage: Stage) -> None:
    """Its numbers of checkpoints would be those of other copies."""
    assert stage.advance(stage.order(4, open=Round(4, CHECKPOINT, ("a",)))) is Phase.FLOW
    assert stage.advance(stage.order(1)) is Phase.OUT


def test_line_9_an_answer_of_a_consumer_that_is_gone_is_not_stored(stage: Stage) -> None:
    flowing(stage)
    stage.source.consumer = "a-1"
    order = stage.order(2, open=Round(2, CHECKPOINT, ("a",)))
    assert stage.advance(order) is Phase.WAIT
    assert stage.answers(2) == {}
    for path in (paths.group(GROUP), paths.owners(GROUP), paths.owners(GROUP, "a-1")):
        stage.write(Create(path))
    assert stage.advance(order) is Phase.FLOW
    assert stage.answers(2)


def test_line_4_the_initial_offset_is_created_once(stage: Stage) -> None:
    flowing(stage)
    other = Stage("b", zk=stage.zk).joined()
    other.advance(stage.order(members={"a": stage.member.zxid, "b": other.member.zxid}))
    other.fetch(t0=4, t1=9)
    node = stage.zk.nodes[f"{paths.region(GROUP, 'initial', 't')}/0"]
    assert documents.decode_initial(node.content).offset == 0
    assert stage.advance(stage.order(**resetting(2))) is Phase.WAIT
    assert stage.source.sought == [{("t", 0): 0}]


def test_line_4_a_topic_that_was_made_anew_begins_anew(stage: Stage) -> None:
    flowing(stage)
    stage.source.marks = {"t": "id-2"}
    stage.write(
        SetContent(f"{paths.region(GROUP, 'initial', 't')}/0", documents.encode_initial(documents.Initial(0, "id-1")))
    )
    stage.fetch(t0=2)
    node = stage.zk.nodes[f"{paths.region(GROUP, 'initial', 't')}/0"]
    assert documents.decode_initial(node.content) == documents.Initial(2, "id-2")


def test_line_5_a_checkpoint_has_the_names_and_the_offsets(stage: Stage) -> None:
    flowing(stage)
    assert stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",)))) is Phase.FLOW
    assert stage.zk.children(paths.region(GROUP, "contributions", "2")) == ["a.0"]
    assert stage.answers(2) == {("t", 0): 5}
    assert stage.application.calls[-1] == ("checkpoint", 2)


def test_line_5_who_is_not_registered_stores_no_checkpoint(stage: Stage) -> None:
    flowing(stage)
    order = stage.order(2, open=Round(2, CHECKPOINT, ("a",)))
    stage.zk.end(stage.session)
    assert stage.advance(order) is Phase.WAIT
    assert stage.answers(2) == {}


def test_line_5_a_member_without_a_copy_in_the_checkpoint_begins_with_nothing(stage: Stage) -> None:
    """The source fails here; in this region members come and go, and the state of a new one was empty."""
    stage.merge(Merge(7, {}, {}, {"b": 7}))
    assert stage.advance(stage.order(7, complete=7, pieces=1)) is Phase.FLOW
    assert stage.application.calls == [("reset", None)]


def test_line_6_a_revocation_before_the_first_record_is_ignored(stage: Stage) -> None:
    stage.advance(stage.order())
    assert not stage.member.revoked()
    stage.fetch(t0=0)
    stage.advance(stage.order(**resetting(2)))
    assert stage.member.state is RegionState.RESET_COMPLETE
    assert not stage.member.revoked()


def test_line_6_a_later_revocation_resets_everybody_and_is_requested_once(stage: Stage) -> None:
    flowing(stage)
    assert stage.member.revoked()
    assert stage.member.state is RegionState.RESET_PENDING
    order = stage.order()
    for _ in range(3):
        assert stage.advance(order) is Phase.WAIT
    assert stage.requests() == ["reset"]
    stage.advance(stage.order(**resetting(2)))
    stage.fetch(t0=0)
    assert stage.member.revoked()
    stage.advance(stage.order(2, reset=2))
    assert stage.requests() == ["reset", "reset"]


def test_line_6_losing_partitions_always_resets(stage: Stage) -> None:
    stage.advance(stage.order())
    stage.member.lost("partitions were lost")
    assert stage.advance(stage.order()) is Phase.WAIT
    assert stage.requests() == ["reset"]


def test_line_7_no_seek_and_no_checkpoint_while_a_reset_is_pending(stage: Stage) -> None:
    flowing(stage)
    stage.member.revoked()
    stage.source.positions = {("t", 1): 40}  # assigned in another poll than the revocation
    assert stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",)))) is Phase.WAIT
    assert (stage.source.sought, stage.answers(2)) == ([], {})


def test_line_7_positions_are_those_of_the_merge_else_the_initial_ones_else_untouched(stage: Stage) -> None:
    flowing(stage)
    stage.fetch(t1=3)
    stage.merge(Merge(4, {("t", 0): 2}, {}, {"a": 4}))
    stage.source.positions = {("t", 0): 5, ("t", 1): 6, ("t", 2): 7}
    stage.advance(stage.order(**resetting(5, complete=4, pieces=2)))
    assert stage.source.sought == [{("t", 0): 2, ("t", 1): 3}]
    assert stage.application.calls[-1] == ("reset", 4)
    assert stage.answers(5) == {("t", 0): 2, ("t", 1): 3, ("t", 2): 7}


def test_line_7_a_merge_of_a_former_topic_of_that_name_is_not_used(stage: Stage) -> None:
    flowing(stage)
    stage.merge(Merge(4, {("t", 0): 900}, {"t": "id-1"}, {"a": 4}))
    stage.source.marks = {"t": "id-2"}
    stage.advance(stage.order(**resetting(5, complete=4, pieces=2)))
    assert stage.source.sought == [{("t", 0): 0}]


def test_line_8_a_checkpoint_is_stored_before_it_is_contributed(stage: Stage) -> None:
    """The application's copy comes first: who dies between the two leaves a copy that no order names."""
    flowing(stage)
    steps = stage.member.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",))))
    next(steps)
    assert stage.application.calls[-1] == ("checkpoint", 2)
    assert stage.answers(2) == {}


def test_line_9_a_repeated_checkpoint_is_stored_once(stage: Stage) -> None:
    flowing(stage)
    order = stage.order(2, open=Round(2, CHECKPOINT, ("a",)))
    for _ in range(3):
        assert stage.advance(order) is Phase.FLOW
    assert stage.application.calls.count(("checkpoint", 2)) == 1


@pytest.mark.parametrize(
    ("reset_ms", "poll_ms", "wanted"), [(8_000, 300_000, 4_000), (180_000, 20_000, 10_000), (180_000, 300_000, 15_000)]
)
def test_line_10_time_limits(reset_ms: int, poll_ms: int, wanted: int) -> None:
    assert limits.merge_wait_ms(reset_ms, poll_ms) == wanted


def test_line_10_the_poll_interval_is_three_times_the_longer_limit() -> None:
    assert limits.least_poll_interval_ms(reset_ms=20_000, drain_ms=50_000) == 150_000
    assert limits.queue_limit(500) == 50_000


def test_line_11_after_a_reset_nothing_flows_until_all_are_reset(stage: Stage) -> None:
    flowing(stage)
    assert stage.advance(stage.order(**resetting(2))) is Phase.WAIT
    assert stage.member.state is RegionState.RESET_COMPLETE
    assert stage.advance(stage.order(2, reset=2)) is Phase.FLOW


def test_line_11_an_empty_assignment_is_allowed(stage: Stage) -> None:
    flowing(stage)
    stage.source.positions = {}
    stage.advance(stage.order(**resetting(2)))
    assert stage.zk.children(paths.region(GROUP, "contributions", "2")) == ["a.0"]


def test_line_12_what_is_retired_is_dropped_by_members_too(stage: Stage) -> None:
    flowing(stage)
    stage.advance(stage.order(2, open=Round(2, CHECKPOINT, ("a",))))
    for _ in range(2):
        stage.advance(stage.order(2, complete=2, pieces=1))
    assert stage.application.calls[-2:] == [("checkpoint", 2), ("retire", 2)]


def test_line_12_who_leaves_has_left_although_the_reply_to_its_last_answer_was_lost(stage: Stage) -> None:
    """As it was: it registered again, in vain, for as long as its session lived."""
    flowing(stage)
    stage.member.leave()
    left = {"a": stage.member.zxid}
    assert stage.advance(stage.order(2, complete=2, members={}, left=left)) is Phase.LEFT


def test_line_14_a_partition_that_moves_during_a_reset_is_sought_and_answered_for_as_well(stage: Stage) -> None:
    flowing(stage)
    order = stage.order(**resetting(2))
    stage.advance(order)
    stage.fetch(t1=3)
    stage.member.go(RegionState.RESET_PENDING)
    stage.member.go(RegionState.RESET_COMPLETE)
    stage.source.positions = {("t", 0): 0, ("t", 1): 77}
    stage.advance(order)
    assert stage.source.positions == {("t", 0): 0, ("t", 1): 3}
    assert stage.answers(2) == {("t", 0): 0, ("t", 1): 3}


def test_line_14_a_partition_that_comes_while_a_reset_reads_where_to_begin_is_sought_as_well(stage: Stage) -> None:
    """As it was: a member answered for it at its former offset, and the records before it were lost from all states."""
    flowing(stage)
    stage.fetch(t1=3)
    order = stage.order(**resetting(2))
    steps = stage.member.advance(order)
    calls = next(steps)
    stage.source.positions["t", 1] = 77
    with suppress(StopIteration):
        while True:
            calls = steps.send([stage.zk.perform(call, stage.session.session_id) for call in calls])
    assert stage.answers(2) == {("t", 0): 0}
    stage.advance(order)
    assert stage.source.positions == {("t", 0): 0, ("t", 1): 3}
    assert stage.answers(2) == {("t", 0): 0, ("t", 1): 3}


def test_line_14_what_moves_after_the_reset_is_not_sought_by_an_old_order(stage: Stage) -> None:
    """Another member has processed it by then: its offset is that of the hand-over."""
    flowing(stage)
    order = stage.order(**resetting(2))
    stage.advance(order)
    stage.order(2, reset=2)
    stage.source.positions = {("t", 0): 0, ("t", 1): 77}
    stage.advance(order)
    assert stage.source.positions[("t", 1)] == 77


def test_bug_148_a_reset_during_a_reset_is_done_as_well(stage: Stage) -> None:
    flowing(stage)
    stage.advance(stage.order(**resetting(2)))
    stage.advance(stage.order(**resetting(3)))
    assert stage.member.done == 3
    assert stage.answers(3) == {("t", 0): 0}
    assert stage.application.calls == [("reset", None)] * 3


def test_bug_155_revocation_and_assignment_in_two_polls_lose_no_records(stage: Stage) -> None:
    """The positions are set by the reset, for all that is held then, whatever came in which poll."""
    flowing(stage)
    stage.fetch(t1=1)
    stage.member.revoked()
    stage.source.positions = {}
    stage.advance(stage.order())
    stage.source.positions = {("t", 1): 50}
    stage.advance(stage.order(**resetting(2)))
    assert stage.source.positions == {("t", 1): 1}


def test_bug_222_no_seek_of_a_partition_that_was_lost(stage: Stage) -> None:
    flowing(stage)
    stage.merge(Merge(4, {("t", 0): 2, ("t", 8): 3}, {}, {"a": 4}))
    stage.source.positions = {("t", 8): 9}
    stage.advance(stage.order(**resetting(5, complete=4, pieces=2)))
    assert stage.source.sought == [{("t", 8): 3}]
