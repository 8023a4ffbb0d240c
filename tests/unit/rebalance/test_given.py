"""What the coordinator gave stands where only it writes; a claim beyond it takes nothing from any other member."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from tests.support.groups import require_eviction_despite, world_with
from tests.support.world import GROUP, SESSION_MS, Agent, World
from zkrebalancer.protocol import cluster_nodes, command, ownership, paths
from zkrebalancer.protocol.calls import Create, Delete, Done, Multi, Operation, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.command import Cause, StartFetcher
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.requests import RequestLimit
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import batch, facts, moving
from zkrebalancer.rebalance.batch import GivenRecords
from zkrebalancer.rebalance.effects import Now, Request
from zkrebalancer.rebalance.scheduler import Scheduler
from zkrebalancer.rebalance.view import GroupView, Member

ALL = {("t", number): 0 for number in range(4)}


def served(clients: str = "ab", mode: str = "incremental") -> World:
    world = World()
    world.set_topic("t", 4)
    world.create_group(f'{{"version":1,"rebalance_timeout_ms":60000,"mode":"{mode}"}}'.encode())
    world.add_coordinator()
    for client in clients:
        world.add_agent(client)
    world.pass_time(2_000)
    return world


def write(world: World, *operations: Operation) -> None:
    assert isinstance(world.zk.perform(Multi(operations)), Done)


def claim(world: World, agent: Agent, partitions: dict[TopicPartition, int]) -> None:
    world.rogues.add(str(agent.name))
    agent.silent = True
    write(
        world, SetContent(paths.owners(GROUP, agent.name), ownership.encode_owners(OwnersRecord(0, None, partitions)))
    )


def fail_over(world: World) -> None:
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.run()


def false_claims(world: World) -> list[object]:
    return [event.fields["partition_count"] for event in world.events if event.kind == "false_claim"]


def evicted(world: World, name: str) -> set[TopicPartition]:
    record = ownership.decode_eviction(world.zk.nodes[paths.evicted(GROUP, name)].content)
    assert not record.topics
    return set(record.partitions)


@pytest.mark.parametrize("mode", ["incremental", "eager"])
def test_what_was_given_is_what_is_owned_once_nothing_moves(mode: str) -> None:
    """In `GivenRecords.look`, never write."""
    world = served("ab", mode)
    world.add_agent("c")
    world.pass_time(3_000)
    world.leave(world.agents["a"])
    world.agents["a"].silent = True
    world.pass_time(3_000)
    world.assert_settled()
    assert {name: set(held) for name, held in world.owned().items()} == {
        name: world.given(name) for name in world.zk.children(paths.given(GROUP))
    }
    assert world.zk.nodes[paths.given(GROUP)].content == world.zk.nodes[paths.generation(GROUP)].content


@pytest.mark.parametrize("with_failover", [False, True], ids=["same leader", "new leader"])
def test_a_false_claim_is_told_and_takes_nothing(with_failover: bool) -> None:
    """In `Member.read_owners`, believe everything."""
    world = served()
    before = world.owned()
    if with_failover:
        world.kill_coordinator(world.leader())
    claim(world, world.agents["b"], ALL)
    if with_failover:
        world.add_coordinator()
    world.pass_time(10)
    assert false_claims(world) == [2]
    assert evicted(world, "b-1") == before["b-1"].keys()
    assert [text for text in world.warnings if "b-1: it claims what it was never given: t-0, t-2" in text]
    assert world.owned() == {"a-1": before["a-1"]}
    world.pass_time(SESSION_MS)
    world.assert_settled()


def test_a_newcomer_may_claim_nothing() -> None:
    """In `Group.handle`, do not look at who has joined."""
    world = served("a")
    rogue = Agent("r", world.agents["a"].registration, world.zk.open(SESSION_MS), silent=True)
    world._register(rogue)
    claim(world, rogue, ALL)
    world.pass_time(10)
    assert false_claims(world) == [4]
    assert not evicted(world, "r-1")
    world.assert_settled()


def test_a_claim_that_is_written_again_and_again_does_not_put_the_eviction_off() -> None:
    """In `Departures._channel_listed`, delete the record at the version that was read."""
    world = served()
    rogue = world.agents["b"]
    claim(world, rogue, ALL)
    require_eviction_despite(world, str(rogue.name), lambda: claim(world, rogue, ALL))


@pytest.mark.parametrize("with_failover", [False, True], ids=["same leader", "new leader"])
def test_a_record_longer_than_what_was_given_is_not_parsed(with_failover: bool) -> None:
    """In `Member.read_owners`, do not pass what was given."""
    world = served()
    before = world.owned()
    if with_failover:
        world.kill_coordinator(world.leader())
    claim(world, world.agents["b"], {(f"{number:0249}", 0): 0 for number in range(3_000)})
    if with_failover:
        world.add_coordinator()
    world.pass_time(70_000)  # it is evicted unless its record can be read within 60 s, and its lease is waited for
    assert [text for text in world.warnings if "b-1 may hold all that it was given" in text and "at most 33394" in text]
    assert world.owned()["a-1"].items() >= before["a-1"].items()
    world.assert_settled()


def test_what_was_released_may_not_be_claimed_back() -> None:
    """In `GroupView.refresh`, let `given` only grow."""
    world = served("a")
    world.add_agent("b")
    world.pass_time(3_000)
    assert len(world.given("a-1")) == 2
    claim(world, world.agents["a"], ALL)
    world.pass_time(10)
    assert false_claims(world) == [2]


def test_what_was_released_may_not_be_claimed_back_from_a_new_leader() -> None:
    """In `GivenRecords._write`, write nothing."""
    world = served("a")
    world.add_agent("b")
    world.pass_time(3_000)
    world.kill_coordinator(world.leader())
    claim(world, world.agents["a"], ALL)
    world.add_coordinator()
    world.pass_time(10)
    assert false_claims(world) == [2]


def test_a_start_that_somebody_else_wrote_gives_nothing() -> None:
    """In `Member.adopt`, believe the channel."""
    world = served()
    world.kill_coordinator(world.leader())
    world.agents["b"].silent = True
    forged = StartFetcher("forged", 1, 1, Cause("x", "x"), {("t", 0): 0})
    channel = f"{paths.channel(GROUP, 'b-1')}/{paths.COMMAND_PREFIX}"
    world.rogues.add("b-1")
    world.zk.perform(Multi((Create(channel, command.encode(forged), sequence=True),)))
    world.add_coordinator()
    process = world.coordinators[-1]
    for _ in range(100):
        if world.zk.children(paths.evicted(GROUP)):
            break
        if process.session.sent:
            world.zk.perform_next(process.session)
        elif process.session.inbox:
            world.deliver(process)
    assert ("t", 0) not in evicted(world, "b-1")


@pytest.mark.parametrize("with_failover", [False, True], ids=["same leader", "new leader"])
def test_a_deleted_record_frees_nothing_before_a_lease_is_over(with_failover: bool) -> None:
    """In `Membership._owners_read`, and in `GroupReader._owners_read`, take its consumer for dead."""
    world = served()
    had = world.owned()["b-1"].keys()
    world.agents["b"].silent = True
    if with_failover:
        world.kill_coordinator(world.leader())
    write(world, Delete(paths.owners(GROUP, "b-1")))
    if with_failover:
        world.add_coordinator()
    world.pass_time(10)
    assert evicted(world, "b-1") == had
    world.pass_time(3_000)
    assert world.owned().keys() == {"a-1"}
    assert len(world.owned()["a-1"]) == 2
    world.pass_time(SESSION_MS)
    world.assert_settled()
    world.assert_nothing_left()


def test_a_deleted_record_keeps_nothing_that_was_released_and_started_elsewhere() -> None:
    """In `Departures._really_held`, do not look whether the record is gone."""
    world = served("a")
    world.add_agent("b")
    world.run()
    assert world.given("a-1") & world.owned()["b-1"].keys()  # for a second after the release
    world.kill_coordinator(world.leader())
    world.agents["a"].silent = True
    had = world.owned()["a-1"].keys()
    write(world, Delete(paths.owners(GROUP, "a-1")))
    world.add_coordinator()
    world.run()
    assert evicted(world, "a-1") == had


def test_a_session_that_ends_while_its_deleted_record_is_looked_at_is_over() -> None:
    """In `Departures._evicted`, wait for a lease after all."""
    world = served()
    agent, process = world.agents["b"], world.leader()
    agent.silent = True
    write(world, Delete(paths.owners(GROUP, "b-1")))
    while process.session.inbox or not any("Multi" in str(call) for _id, call in process.session.sent):
        if process.session.inbox:
            world.deliver(process)
        else:
            world.zk.perform_next(process.session)
    world.kill_agent(agent)
    world.pass_time(100)
    assert not world.zk.children(paths.evicted(GROUP))
    world.assert_settled()
    world.assert_nothing_left()


def as_older_version(world: World) -> None:
    """Leave the group as a coordinator does that records nothing: only the generation rises."""
    nodes = [paths.given(GROUP, name) for name in world.zk.children(paths.given(GROUP))]
    generation = cluster_nodes.encode_counter(world.generation() + 1)
    write(world, *map(Delete, nodes), SetContent(paths.generation(GROUP), generation))
    world.rogues.update(world.owned())


def test_after_an_older_version_has_led_what_is_claimed_is_believed_once() -> None:
    """In `GroupReader._is_recorded`, return True."""
    world = served()
    world.kill_coordinator(world.leader())
    as_older_version(world)
    before = world.owned()
    world.add_coordinator()
    world.pass_time(5_000)
    assert not false_claims(world)
    assert world.owned() == before
    assert {name: set(held) for name, held in before.items()} == {name: world.given(name) for name in before}
    world.kill_coordinator(world.leader())
    claim(world, world.agents["b"], ALL)
    world.add_coordinator()
    world.pass_time(10)
    assert false_claims(world) == [2]


def test_a_leader_that_dies_while_it_records_leaves_it_to_the_next() -> None:
    """In `GivenRecords._write`, mark first."""
    world = served()
    world.kill_coordinator(world.leader())
    as_older_version(world)
    write(world, Create(paths.given(GROUP, "a-1"), ownership.encode_given(world.owned()["a-1"].keys())))
    world.add_coordinator()
    world.run()
    fail_over(world)
    world.pass_time(5_000)
    assert not false_claims(world)
    assert len(world.owned()) == 2


def test_a_record_that_cannot_be_read_is_believed_and_written_again() -> None:
    """In `GroupReader._given_read`, let it give nothing."""
    world = served()
    world.kill_coordinator(world.leader())
    world.rogues.add("b-1")
    write(world, SetContent(paths.given(GROUP, "b-1"), b'{"version":2}'))
    world.add_coordinator()
    world.pass_time(5_000)
    assert not false_claims(world)
    assert world.given("b-1") == world.owned()["b-1"].keys()
    assert any("b-1: given: version 2 is newer" in text for text in world.warnings)


def _ignore(_fact: facts.Fact) -> None:
    """Report to nobody."""


@pytest.mark.parametrize(("refusal", "is_recorded"), [(Refusal.NO_NODE, True), (Refusal.NODE_EXISTS, False)])
def test_a_record_that_somebody_removed_or_created_just_before_it_is_written_is_written_again(
    refusal: Refusal, is_recorded: bool
) -> None:
    """In `GivenRecords._written`, forget whose records were refused, or whether they exist."""
    scheduler, view = Scheduler(), GroupView("g", {})
    view.members["a-1"] = Member("a-1", owners=OwnersRecord(1, None, {}), given={("t", 0): 0})
    view.recorded, view.unrecorded["a-1"] = {"a-1"} if is_recorded else set(), None
    records = GivenRecords(scheduler.part("g"), view, _ignore)
    records.look()
    written: list[Operation] = []
    for reply in (Refused(refusal, 1), Done((None, None))):
        scheduler.now = Now(scheduler.next_deadline_us() or 0, 0)
        scheduler.run_next_due()
        (request,) = scheduler.take_effects()
        assert isinstance(request, Request)
        assert isinstance(request.call, Multi)
        written += request.call.operations[1:]
        scheduler.answer(request.call_id, reply)
    assert [type(operation) for operation in written] == ([SetContent, Create] if is_recorded else [Create, SetContent])
    assert scheduler.next_deadline_us() is None


def test_a_group_whose_generation_somebody_else_has_raised_is_marked_with_growing_pauses() -> None:
    """In `GivenRecords._note_outcome`, count no tries."""
    scheduler, view = Scheduler(), GroupView("g", {}, is_recorded=False)
    records = GivenRecords(scheduler.part("g"), view, _ignore)
    records.look()
    pauses_ms: list[int] = []
    replies: list[Reply] = [*[Refused(Refusal.BAD_VERSION, 1)] * 8, Done((None, None, 1))]
    for reply in replies:
        at_us = scheduler.next_deadline_us() or 0
        pauses_ms.append((at_us - scheduler.now.mono_us) // 1_000)
        scheduler.now = Now(at_us, 0)
        scheduler.run_next_due()
        (request,) = scheduler.take_effects()
        assert isinstance(request, Request)
        scheduler.answer(request.call_id, reply)
    assert pauses_ms == [1_000, 1_000, 1_000, 1_000, 1_600, 3_200, 6_400, 12_800, 25_600]
    assert view.is_recorded
    assert scheduler.next_deadline_us() is None


def test_records_are_not_marked_as_reliable_before_everybodys_is_known() -> None:
    """In `GivenRecords._mark`, look at no member: the next leader would evict whoever has no record yet."""
    scheduler, view = Scheduler(), GroupView("g", {}, is_recorded=False)
    member = view.members["a-1"] = Member("a-1", owners=None, given=None)
    records = GivenRecords(scheduler.part("g"), view, _ignore)
    unknown_then_known: list[dict[TopicPartition, int] | None] = [None, {}]
    for given in unknown_then_known:
        member.given = given
        records.look()
        scheduler.now = Now(scheduler.next_deadline_us() or 0, 0)
        scheduler.run_next_due()
        assert bool(scheduler.take_effects()) is (given is not None)


def written_records(world: World) -> list[list[str]]:
    """Return, for each transaction so far, whose records of what was given it wrote."""
    below = f"{paths.given(GROUP)}/"
    written = [
        [operation.path.removeprefix(below) for operation in operations if operation.path.startswith(below)]
        for operations in world.zk.transactions
    ]
    return [names for names in written if names]


def test_the_records_that_go_with_starts_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Batch.add`, do not count their partitions: one transaction would encode the records of all members."""
    monkeypatch.setattr(moving, "MAX_RECORDED_PER_TRANSACTION", 1)
    world = served("abcd")
    assert sorted(written_records(world)) == [["a-1"], ["b-1"], ["c-1"], ["d-1"]]
    world.set_topic("t", 16)  # now each of them has something to record, besides what it gets
    world.pass_time(2_000)
    assert sorted(written_records(world)[4:]) == [["a-1"], ["b-1"], ["c-1"], ["d-1"]]
    world.assert_settled()


def test_what_a_start_has_recorded_is_not_written_again() -> None:
    """In `Moving._send`, leave the receiver among those whose record is out of date."""
    world = served("ab")
    written = written_records(world)
    world.pass_time(5_000)
    assert written_records(world) == written
    assert sorted(name for names in written for name in names) == ["a-1", "b-1"]


@pytest.mark.parametrize("max_bytes", [100_000, 250])
def test_many_records_are_corrected_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, max_bytes: int) -> None:
    """In `GivenRecords._write`, forget those beyond a limit, or heed one limit less: of records, partitions, bytes."""
    monkeypatch.setattr(batch, "MAX_RECORDS", 3)
    monkeypatch.setattr(batch, "MAX_RECORDED", 4)
    scheduler, view = Scheduler(limit=RequestLimit(max_bytes)), GroupView("g", {})
    sizes = {f"{number}": 1 if number < 9 else 4 for number in range(12)}
    for name, size in sizes.items():
        given = {("t", number): 0 for number in range(size)}
        view.members[name] = Member(name, owners=OwnersRecord(1, None, {}), given=given)
    view.recorded, view.unrecorded = set(sizes), OrderedDict.fromkeys(sizes)
    records = GivenRecords(scheduler.part("g"), view, _ignore)
    records.look()
    written: list[list[str]] = []
    while (at_us := scheduler.next_deadline_us()) is not None:
        scheduler.now = Now(at_us, 0)
        scheduler.run_next_due()
        (request,) = scheduler.take_effects()
        assert isinstance(request, Request)
        assert isinstance(request.call, Multi)
        assert len(request.call.operations) == 2 or scheduler.limit.fits(request.call.operations)
        written.append([operation.path.rpartition("/")[2] for operation in request.call.operations[1:]])
        scheduler.answer(request.call_id, Done((None,) * len(request.call.operations)))
    assert sorted(name for names in written for name in names) == sorted(sizes)
    assert max(map(len, written)) == (3 if max_bytes == 100_000 else 2)
    assert max(sum(sizes[name] for name in names[:-1]) for names in written) < 4


def test_records_are_written_after_a_group_is_read_again_while_one_was_written() -> None:
    """In `GivenRecords.reset`, keep what is under way: its reply never comes."""
    scheduler, view = Scheduler(), GroupView("g", {})
    view.members["a-1"] = Member("a-1", owners=OwnersRecord(1, None, {}), given={("t", 0): 0})
    records = GivenRecords(scheduler.part("g"), view, _ignore)
    for _ in range(2):
        view.unrecorded["a-1"] = None
        records.look()
        scheduler.now = Now(scheduler.next_deadline_us() or 0, 0)
        scheduler.run_next_due()
        assert len(scheduler.take_effects()) == 1
        scheduler.forget("g")
        records.reset()


def test_a_foreign_node_below_the_record_of_a_dead_consumer_does_not_keep_its_channel() -> None:
    """In `Departures._swept`, try again with the record: it cannot be deleted, and nothing else is."""
    world = world_with(GroupSettings(), "a")
    agent = world.agents["a"]
    world.zk.perform(Multi((Create(f"{paths.given(GROUP, agent.name)}/stranger"),)))
    world.kill_agent(agent)
    world.pass_time(30_000)
    assert paths.channel(GROUP, agent.name) not in world.zk.nodes
    assert f"{paths.given(GROUP, agent.name)}/stranger" in world.zk.nodes
