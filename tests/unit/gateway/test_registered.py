"""What a gateway writes because nobody was registered is refused once an agent registers, whatever its version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.secured_model import GATEWAY, SecuredTree, who
from tests.unit.gateway.model_session import ModelSession
from tests.unit.gateway.test_zookeeper_offsets import GROUP, SlowSession, Store
from zkrebalancer.gateway.registered import read_registered
from zkrebalancer.group_protocol.error_codes import ErrorCode
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, Multi, Operation, Refused, Reply, SetContent
from zkrebalancer.protocol.registration import STATIC, WHITE_LIST, Registration, encode
from zkrebalancer.protocol.requests import MIN_REQUEST_BYTES, RequestLimit

ORDERS = paths.offsets(GROUP, "orders", 3)
OFFSETS = {("orders", 3): 7, ("logs", 0): 5}


class Interrupted(ModelSession):
    """A session in which others act right before its next transactions, each time before one."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Callable[[], None]] = []

    def request(self, call: Call, when_replied: Callable[[Reply], None]) -> None:
        if isinstance(call, Multi) and self.others:
            self.others.pop(0)()
        super().request(call, when_replied)


def registering() -> list[Operation]:
    """Return the transaction in which an agent of any version registers."""
    consumer = encode(Registration(STATIC, {"orders": 1}, "", "c", "h", 10_000))
    above = paths.channel, paths.ids, paths.owners
    return [Create(one(GROUP, "agent"), consumer if one is paths.ids else b"") for one in above]


@pytest.fixture
def session() -> Interrupted:
    return Interrupted()


@pytest.fixture
def store(session: Interrupted) -> Store:
    store = Store(session)
    assert store.commit(OFFSETS) == {}
    return store


def before_the_next_write(store: Store, *operations: Operation) -> None:
    """Let a process register or write between what the gateway looks up and what it writes."""
    session = store.session
    assert isinstance(session, Interrupted)
    session.others.append(lambda: _performed(session, operations))


def _performed(session: Interrupted, operations: tuple[Operation, ...]) -> None:
    assert isinstance(session.model.perform(Multi(operations)), Done)


def test_a_group_is_not_deleted_once_an_agent_has_registered(store: Store) -> None:
    """In `ZooKeeperOffsets._perform`, leave out the guard: an offset that an agent has committed is deleted."""
    before_the_next_write(store, *registering(), SetContent(ORDERS, b"1000"))
    assert store.delete_group() == ErrorCode.NON_EMPTY_GROUP
    assert store.fetch() == {("orders", 3): 1000, ("logs", 0): 5}


def test_offsets_are_not_deleted_once_an_agent_wants_their_topic(store: Store) -> None:
    """In `ZooKeeperOffsets._perform`, leave out the guard, as above."""
    before_the_next_write(store, *registering(), SetContent(ORDERS, b"1000"))
    assert store.delete(("orders", 3), ("logs", 0)) == {("orders", 3): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert store.fetch() == {("orders", 3): 1000}


def test_offsets_are_not_deleted_once_an_agent_has_changed_its_subscription(store: Store) -> None:
    """In `Registered.topics`, do not note the versions."""
    store.session.do(*registering())
    wider = encode(Registration(WHITE_LIST, {".*": 1}, "", "c", "h", 10_000))
    before_the_next_write(store, SetContent(paths.ids(GROUP, "agent"), wider))
    assert store.delete(("logs", 0)) == {("logs", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert store.fetch() == OFFSETS


def test_an_offset_of_no_member_does_not_replace_that_of_an_agent_that_has_just_registered(store: Store) -> None:
    """In `ZooKeeperOffsets._perform`, leave out the guard, as above."""
    before_the_next_write(store, *registering(), SetContent(ORDERS, b"1000"))
    assert store.commit({("orders", 3): 2}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert store.fetch() == {("orders", 3): 1000, ("logs", 0): 5}


@pytest.mark.parametrize("has_channel", [False, True])
def test_an_agent_may_create_the_group_meanwhile(session: Interrupted, *, has_channel: bool) -> None:
    """In `Registered.guard`, return nothing if there is no `channel`."""
    store = Store(session)
    nodes = [paths.CONSUMERS, paths.GROUPS, paths.group(GROUP), paths.channel(GROUP)]
    nodes += [f"{paths.group(GROUP)}/{name}" for name in paths.GROUP_CHILDREN if name != "channel"]
    before = nodes[:4] if has_channel else []
    for path in before:
        session.do(Create(path))
    before_the_next_write(store, *(Create(path) for path in nodes if path not in before), *registering())
    assert store.commit(OFFSETS) is ErrorCode.UNKNOWN_MEMBER_ID
    assert store.fetch() == {}


def test_an_agent_that_has_left_again_is_no_obstacle(store: Store) -> None:
    """In `ZooKeeperOffsets._look_and_write`, try once."""
    joining = registering()
    before_the_next_write(store, *joining, *(Delete(one.path) for one in joining))
    assert store.commit({("orders", 3): 2}) == {}
    assert store.fetch() == {("orders", 3): 2, ("logs", 0): 5}


def test_a_consumer_that_is_evicted_may_still_commit(store: Store) -> None:
    """In `read_registered`, list `ids` only: its record in `owners` lets its commits pass."""
    store.session.do(*registering())
    store.session.do(Delete(paths.ids(GROUP, "agent")))
    assert store.delete_group() == ErrorCode.NON_EMPTY_GROUP
    assert store.delete(("logs", 0)) == {("logs", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert store.commit({("logs", 0): 2}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert store.fetch() == OFFSETS


def test_many_offsets_are_written_and_deleted_in_several_guarded_transactions(store: Store) -> None:
    """In `Registered.note_written`, keep the number: the second transaction fails each time."""
    many = {("orders", number): number for number in range(1_000)}
    assert store.commit(many) == {}
    assert store.fetch() == {**many, ("logs", 0): 5}
    assert store.delete_group() == ErrorCode.NONE
    assert store.fetch() == {}
    assert store.session.model.children(paths.channel(GROUP)) == []


@pytest.mark.parametrize(("agents", "are_deleted"), [(850, True), (900, False), (1_800, False)])
def test_deletions_fit_into_transactions_beside_very_many_agents(
    monkeypatch: pytest.MonkeyPatch, *, agents: int, are_deleted: bool
) -> None:
    """In `Registered.topics`, note a check for each, however many they are: ZooKeeper takes no such transaction."""
    session = SlowSession()
    store = Store(session)
    assert store.commit(OFFSETS) == {}
    consumer = encode(Registration(STATIC, {"orders": 1}, "", "c", "h", 10_000))
    session.do(*(Create(paths.ids(GROUP, f"agent-{number:04d}"), consumer) for number in range(agents)))
    limit = RequestLimit(MIN_REQUEST_BYTES)
    monkeypatch.setattr(ModelSession, "request_limit", limit)
    session.calls.clear()
    assert store.delete(("logs", 0)) == ({} if are_deleted else {("logs", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
    assert all(limit.fits(call.operations) for call in session.calls if isinstance(call, Multi))
    assert (("logs", 0) in store.fetch()) != are_deleted


def test_a_group_without_a_folder_for_channels_loses_its_offsets_too(store: Store) -> None:
    """In `Registered.guard`, expect a number without a `channel`: offsets that were imported could not be deleted."""
    store.session.do(Delete(paths.channel(GROUP)))
    assert store.commit({("orders", 3): 8}) == {}
    store.session.do(Delete(paths.channel(GROUP)))
    assert store.delete_group() == ErrorCode.NONE
    assert store.fetch() == {}


def test_a_gateway_has_the_rights_for_it_in_a_secured_tree(store: Store) -> None:
    """In `Registered.guard`, delete and create `ids`: a gateway may not."""
    tree = SecuredTree(store.session.model, who(GROUP), lambda _identity: GATEWAY)
    assert store.commit({("orders", 3): 8}) == {}
    assert store.delete(("logs", 0)) == {}
    assert store.delete_group() == ErrorCode.NONE
    assert store.fetch() == {}
    assert not tree.refused


@pytest.mark.parametrize("above", [(), (paths.channel(GROUP),)])
def test_a_change_of_several_transactions_is_not_taken_for_a_consumer(session: Interrupted, above: tuple[str]) -> None:
    """In `Registered.note_written`, count only if there was a node: the second part of each deletion is refused."""
    session.do(*(Create(path) for path in (paths.CONSUMERS, paths.GROUPS, paths.group(GROUP), *above)))
    registered = read_registered(GROUP, session.perform, session.request_limit)
    for _ in range(3):
        session.do(*registered.guard())
        registered.note_written()
    session.do(Create(paths.channel(GROUP, "agent")))
    assert isinstance(session.perform(Multi(tuple(registered.guard()))), Refused)
