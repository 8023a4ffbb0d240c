"""The handler of a signal raises at any point of a region's rounds: no state doubles or lacks a record.

The leader is real, on a ZooKeeper in memory; it acts whenever the member waits for it.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer_agent import Batch, Consumer, consumer
from consumer_agent.membership.events import Origin
from consumer_agent.region import Checkpoint, ConsistentRegion, rounds
from consumer_agent.runtime import steps
from tests.support.world import GROUP, World
from tests.unit.consumer_agent.region.test_region_interrupts import STRIDES, StateSetting
from tests.unit.consumer_agent.runtime.interrupts import COUNT, PARTITION, interrupted_at_each_point, uninterrupted
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Content, Create, Get, Multi, Reply
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Merge, Order, Request

MAX_WAITS = 200
PASSING_MS = 100
BATCH = 5
LOOK_S = 0.06


@cache
def settled() -> bytes:
    """Return a world whose consumer a-1 owns the partition; a copy of it is made faster than the world itself."""
    world = World()
    world.set_topic(PARTITION[0], 1)
    world.create_group()
    world.add_coordinator()
    world.add_agent("a", {PARTITION[0]: 1})
    world.pass_time(2_000)
    return pickle.dumps(world)


class Session:
    """A member's session in that world. Between two calls of the member, all others act."""

    failure, is_fresh, order_ms, is_closed = None, True, 0, False
    ends = 0

    def __init__(self) -> None:
        self.world: World = pickle.loads(settled())  # noqa: S301  # our own
        self.order: Order | None = None
        self.waits = 0
        self._session = self.world.zk.open()

    def renew(self) -> None:
        """End, and begin again, as a new process of the member does."""
        self.world.zk.end(self._session)
        self._session = self.world.zk.open()
        self.ends += 1

    def drop(self) -> bool:
        return False

    @property
    def session_id(self) -> int:
        session_id: int = self._session.session_id
        return session_id

    def start(self) -> None: ...

    def perform(self, calls: Sequence[Call]) -> list[Reply]:
        replies = uninterrupted(self._performed, calls)
        self._replies_arrive()
        return replies

    def _replies_arrive(self) -> None:
        """Be a point at which the caller is interrupted: all is done, and the caller does not know."""

    def _performed(self, calls: Sequence[Call]) -> list[Reply]:
        replies = [self.world.zk.perform(call, self.session_id) for call in calls]
        self.world.run()
        self._read()
        return replies

    def wait(self, _timeout_s: float) -> None:
        uninterrupted(self.pass_time)

    def pass_time(self) -> None:
        self.waits += 1
        assert self.waits < MAX_WAITS, f"it waits for ever, with the order {self.order}"
        self.world.pass_time(PASSING_MS)
        self._read()

    def _read(self) -> None:
        found = self.world.zk.perform(Get(paths.region(GROUP, "order")))
        order = documents.decode_order(found.content) if isinstance(found, Content) else None
        self.order = self.order if order == self.order else order

    def ask(self, kind: str) -> None:
        """Ask the leader for something, as an operator does."""
        path, request = paths.region(GROUP, "requests", f"{kind}-"), Request(kind, "m")
        self.world.zk.perform(Multi((Create(path, documents.encode_request(request), sequence=True),)))
        self.world.run()
        self._read()

    def merge(self) -> Merge | None:
        """Return the last complete checkpoint."""
        if self.order is None or self.order.complete is None:
            return None
        names = [f"{self.order.complete}.{piece}" for piece in range(self.order.pieces)]
        nodes = self.world.zk.nodes
        return documents.joined_merge(
            documents.decode_merge(nodes[paths.region(GROUP, "merged", name)].content) for name in names
        )

    def complain(self, text: str) -> None:
        raise AssertionError(text)

    def close(self) -> None:
        self.is_closed = True
        uninterrupted(self.world.zk.kill, self._session)


class LateSession(Session):
    """The leader acts only while the member waits."""

    def _performed(self, calls: Sequence[Call]) -> list[Reply]:
        return [self.world.zk.perform(call, self.session_id) for call in calls]


class LedSetting(StateSetting):
    """A member whose state is the list of the records that it has processed."""

    is_announced = False
    every_s = 3_600.0
    session_type = Session
    loses_soon = False  # while it waits the next time

    def __init__(self) -> None:
        self.state: list[int] = []
        self.copies: dict[int, list[int]] = {}
        super().__init__()
        self.shared.origins[PARTITION] = Origin("id-1", 0)
        self.frontend._telemetry.member = "a-1"

    def made(self, **settings: Any) -> Consumer:
        made = Consumer(**settings)
        self.region = ConsistentRegion(
            made,
            name="r",
            recovery="group",
            member="m",
            every_s=self.every_s,
            on_checkpoint=self.store,
            on_reset=self.restore,
        )
        self.session = self.session_type()
        own: Any = self.region._own
        self.rounds, own._session = own, self.session
        return made

    def store(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.number is not None
        self.copies[checkpoint.number] = list(self.state)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        number = None if checkpoint is None else checkpoint.number
        self.state[:] = [] if number is None else self.copies[number]

    def _wait(self, _changes: int, _timeout_s: float | None) -> None:
        if self.loses_soon:
            self.loses_soon = False
            uninterrupted(self.lose)
        uninterrupted(self.in_own_thread, self.fetcher_round)
        uninterrupted(self.session.pass_time)

    def process(self, batch: object) -> None:
        self.state += [record.offset for record in cast("Batch | None", batch) or ()]

    def process_next(self) -> None:
        self.process(self.next_batch())

    def check_checkpoint(self) -> None:
        """The last complete checkpoint has just the records before its offset."""
        merge = self.session.merge()
        if merge is not None:
            state = self.copies[merge.states["m"]]
            assert state == list(range(merge.offsets.get(PARTITION, len(state))))

    def check_end(self) -> None:
        """Go on, as an application does that catches the exception; then each record is in the state once."""
        while self.state != list(range(COUNT)):
            self.process_next()
            assert self.state == list(range(len(self.state)))
        self.region.checkpoint()
        self.check_checkpoint()
        assert self.session.merge() is not None
        assert len(self.copies[self.session.merge().states["m"]]) == COUNT  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def _time_that_passes_with_each_look(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Nothing waits for the real time."""
    passing = SimpleNamespace(**{**vars(time), "monotonic": itertools.count(0.0, LOOK_S).__next__})
    for module in (rounds, steps, consumer):
        monkeypatch.setattr(module, "time", passing)
    return passing


def nothing(_setting: Any) -> None: ...


def one_batch(setting: Any) -> None:
    setting.process_next()


def a_due_checkpoint(setting: Any) -> None:
    one_batch(setting)
    setting.session.ask("checkpoint")


def a_due_reset(setting: Any) -> None:
    """Behind the checkpoint there are records, which the reset returns again."""
    one_batch(setting)
    setting.region.checkpoint()
    one_batch(setting)
    assert len(setting.state) == 2 * BATCH
    setting.session.ask("reset")


def a_due_reset_to_the_beginning(setting: Any) -> None:
    one_batch(setting)
    setting.session.ask("reset-initial")


def a_loss(setting: Any) -> None:
    one_batch(setting)
    setting.region.checkpoint()
    one_batch(setting)
    setting.lose()


PREPARED = [nothing, a_due_checkpoint, a_due_reset, a_due_reset_to_the_beginning, a_loss]
LEAVING = [("close", False), ("close", True), ("checkpoint", True)]  # what is interrupted, whether after a loss


def check_next_batch(kind: type[LedSetting], prepare: Callable[[Any], None], again_after: int, stride: int) -> None:
    """Interrupt each point of `next_batch`, in a member of this kind; then each record is in the state once."""
    for setting, result, is_interrupted in interrupted_at_each_point(
        lambda one: one.next_batch(),  # type: ignore[attr-defined]
        prepare,
        again_after,
        kind=kind,
        stride=stride,
    ):
        assert isinstance(setting, kind)
        setting.process(result)
        setting.told_to_iterate = not is_interrupted  # its iterator has ended
        setting.check_checkpoint()
        setting.check_end()


def closed(
    kind: type[LedSetting], again_after: int, stride: int, *, call: str, is_lost: bool
) -> Iterator[tuple[LedSetting, bool]]:
    """Interrupt each point of `close`, or of `checkpoint` before; yield the closed member, and whether it was."""

    def prepare(setting: Any) -> None:
        one_batch(setting)
        setting.region.stop()
        assert list(setting.batches) == []
        if is_lost:
            setting.lose()

    for setting, _, is_interrupted in interrupted_at_each_point(
        lambda one: getattr(one.region, call)(),  # type: ignore[attr-defined]
        prepare,
        again_after,
        kind=kind,
        stride=stride,
    ):
        assert isinstance(setting, kind)
        setting.region.close()
        assert setting.session.is_closed
        setting.check_checkpoint()
        yield setting, is_interrupted


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 3, 20])
@pytest.mark.parametrize("prepare", PREPARED)
def test_each_record_is_in_the_state_once_after_an_interrupt_of_a_round(
    prepare: Callable[[Any], None], again_after: int, stride: int
) -> None:
    check_next_batch(LedSetting, prepare, again_after, stride)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 20])
@pytest.mark.parametrize("call", ["checkpoint", "reset", "reset-initial"])
def test_a_round_that_the_application_asks_for_may_be_asked_for_again(call: str, again_after: int, stride: int) -> None:
    described: list[bytes] = []

    def prepare(setting: Any) -> None:
        one_batch(setting)
        described[:] = [setting.region.checkpoint()]
        one_batch(setting)

    def ask(setting: Any) -> None:
        if call == "checkpoint":
            setting.region.checkpoint()
        else:
            setting.region.reset(described[0] if call == "reset" else None)

    for setting, _, is_interrupted in interrupted_at_each_point(
        ask, prepare, again_after, kind=LedSetting, stride=stride
    ):
        assert isinstance(setting, LedSetting)
        if is_interrupted:
            setting.check_checkpoint()
            described[:] = [documents_of(setting)]
            ask(setting)
        before = {"checkpoint": 2 * BATCH, "reset": BATCH, "reset-initial": 0}[call]
        assert len(setting.state) in {before, 2 * BATCH}  # a checkpoint may have been complete before the reset
        setting.told_to_iterate = False
        setting.check_end()


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 20])
def test_what_a_checkpoint_has_is_finished_after_an_interrupt(again_after: int, stride: int) -> None:
    """In `CentralSource.finish`, forget the batch first: the next owner would begin with it again, without a reset."""
    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.region.checkpoint(),  # type: ignore[attr-defined]
        one_batch,
        again_after,
        kind=LedSetting,
        stride=stride,
    ):
        assert isinstance(setting, LedSetting)
        setting.region.checkpoint()
        merge = setting.session.merge()
        assert merge is not None
        assert setting.shared.positions()[PARTITION].finished == merge.offsets[PARTITION] == len(setting.state)


def documents_of(setting: LedSetting) -> bytes:
    """Return what describes the last complete checkpoint."""
    assert setting.session.order is not None
    described: bytes = setting.rounds._described(setting.session.order.complete)
    return described


def test_a_checkpoint_that_a_reset_overtakes_is_requested_again() -> None:
    setting = LedSetting()
    one_batch(setting)
    setting.lose()
    setting.region.checkpoint()
    assert setting.session.merge() is not None
    assert setting.state == []
    setting.check_end()


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("again_after", [0, 20])
def test_an_iteration_that_goes_on_after_an_interrupted_checkpoint_has_no_record_twice(
    again_after: int, stride: int
) -> None:
    """Partitions are lost meanwhile, and the callback that says so may be what was interrupted."""

    def prepare(setting: Any) -> None:
        one_batch(setting)
        setting.region.checkpoint()
        one_batch(setting)
        setting.loses_soon = True

    for setting, _, _ in interrupted_at_each_point(
        lambda one: one.region.checkpoint(),  # type: ignore[attr-defined]
        prepare,
        again_after,
        kind=LedSetting,
        stride=stride,
    ):
        assert isinstance(setting, LedSetting)
        setting.loses_soon = False  # else it would do so in the last checkpoint
        setting.check_end()


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize(("call", "is_lost"), LEAVING)
@pytest.mark.parametrize("again_after", [0, 20])
def test_a_member_that_leaves_has_no_checkpoint_of_anything_else_than_its_state(
    again_after: int, call: str, is_lost: bool, stride: int
) -> None:
    for setting, is_interrupted in closed(LedSetting, again_after, stride, call=call, is_lost=is_lost):
        assert setting.frontend._is_ended
        if not is_interrupted and not is_lost:
            assert len(setting.copies) == 1


class HastySetting(LedSetting):
    """The same, whose checkpoints come faster than it looks."""

    every_s = 0.05
    session_type = LateSession


def test_a_checkpoint_is_found_complete_although_the_next_one_is_open_already() -> None:
    """In `Rounds.checkpoint`, compare what is complete with the last answer: it waited in vain, and asked for more."""
    setting = HastySetting()
    setting.process_next()
    setting.region.checkpoint()
    assert len(setting.copies[setting.rounds.member.completed]) == BATCH


@pytest.mark.parametrize("is_new", [False, True])
def test_a_region_whose_copies_are_gone_begins_anew(*, is_new: bool) -> None:
    """In `Rounds.reset`, follow each order: it restored the missing copy first, which fails again and again."""
    setting = LedSetting()
    a_due_reset(setting)
    setting.copies.clear()
    if is_new:
        setting.session.renew()
    with pytest.raises(KeyError):
        setting.next_batch()
    setting.region.reset(None)
    assert setting.state == []
    setting.told_to_iterate = False
    setting.check_end()
