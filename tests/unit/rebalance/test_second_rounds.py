"""Events that come twice, or during another rare one: refusals, pauses, limits, recreated topics."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.groups import events, read_paths, world_with
from tests.support.world import GROUP, CoordinatorProcess, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Call, Children, Create, Delete, Multi, Refusal, Refused, Reply, SetContent
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance import coordinator, departures, facts, moving, topic_reset
from zkrebalancer.rebalance.effects import Now
from zkrebalancer.rebalance.former_lives import FormerLives
from zkrebalancer.rebalance.reader import GroupReader
from zkrebalancer.rebalance.scheduler import MAX_PAUSE_US, Scheduler, pause_us
from zkrebalancer.rebalance.states import GroupState
from zkrebalancer.rebalance.story import MAX_STORY_LINES, Story


def tries_of(world: World, path: str) -> list[int]:
    """Keep when somebody tries to create a node below a path, in milliseconds."""
    times: list[int] = []
    perform = world.zk.perform

    def noting(call: Call, session_id: int = 0) -> Reply:
        if isinstance(call, Multi) and any(isinstance(o, Create) and o.path.startswith(path) for o in call.operations):
            times.append(world.now_us // 1_000)
        return perform(call, session_id)

    world.zk.perform = noting  # type: ignore[method-assign]
    return times


def test_commands_that_are_refused_are_sent_again_with_growing_pauses_until_they_may_be() -> None:
    """In `Moving._leave_out_for_now`, count no tries; in `Moving._try_again`, leave it out."""
    world = world_with(GroupSettings(), "a")
    channel = paths.channel(GROUP, "b-1")
    world.zk.denied.add(("", channel, Right.CREATE))
    tries = tries_of(world, f"{channel}/")
    world.add_agent("b")
    world.pass_time(60_000)

    assert world.owned() == {"a-1": world.owned()["a-1"], "b-1": {}}
    assert len(world.owned()["a-1"]) == 4, "what one member may not be sent, the others keep"
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 8 * pauses[0]
    assert all(later < 3 * earlier for earlier, later in pairwise(pauses)), "each is about twice the one before"
    assert len(tries) < 12

    world.zk.denied.clear()
    world.pass_time(MAX_PAUSE_US // 1_000)
    assert {name: len(owned) for name, owned in world.owned().items()} == {"a-1": 2, "b-1": 2}
    world.zk.denied.add(("", channel, Right.CREATE))
    world.set_topic("t", 6)
    tries.clear()
    world.pass_time(2_000)
    assert tries[1] - tries[0] <= pause_us(1) // 1_000, "what went through once begins with short pauses again"


def test_a_deletion_of_offsets_that_was_refused_begins_with_short_pauses_when_it_is_refused_anew() -> None:
    """In `TopicReset._deleted`, keep the tries."""
    world = world_with(GroupSettings(), "a")
    world.zk.perform(Multi((Create(paths.deleted_offsets(GROUP)),)))
    tries = tries_of(world, f"{paths.deleted_offsets(GROUP)}/")
    for life in (2, 3):
        world.zk.perform(Multi((Create(paths.offsets(GROUP, "t", 0), b"7"),)))
        world.zk.denied.add(("", paths.deleted_offsets(GROUP), Right.CREATE))
        world.delete_topic("t")
        world.set_topic("t", 4, f"id-{life}")
        tries.clear()
        world.pass_time(20_000)
        assert [later - earlier for earlier, later in pairwise(tries[:4])] == [100, 200, 400]
        world.zk.denied.clear()
        world.pass_time(30_000)
        assert not world.zk.children(paths.offsets(GROUP, "t"))


def test_a_list_of_marks_that_was_refused_begins_with_short_pauses_when_it_is_refused_anew() -> None:
    """In `FormerLives._listed`, keep the tries."""
    scheduler = Scheduler()
    lives = FormerLives(scheduler)
    lives.read()
    pauses: list[int] = []
    for number, reply in enumerate([Refused(Refusal.NO_AUTH)] * 3 + [Children(())] + [Refused(Refusal.NO_AUTH)] * 2, 1):
        scheduler.answer(number, reply)
        if isinstance(reply, Children):
            lives._list()
            continue
        at_us = scheduler.next_deadline_us() or 0
        pauses.append(at_us - scheduler.now.mono_us)
        scheduler.now = Now(at_us, 0)
        scheduler.run_next_due()
    assert pauses == [pause_us(tries) for tries in (0, 1, 2, 0, 1)]


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = [pause_us(tries) for tries in range(40)]
    assert pauses == sorted(pauses)
    assert [later / earlier for earlier, later in pairwise(pauses[:5])] == [2, 2, 2, 2]
    assert pauses[-1] == MAX_PAUSE_US


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_all_offsets_of_a_topic_that_is_made_anew_are_deleted_however_few_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """In `TopicReset._deleted`, stop after the first transaction."""
    monkeypatch.setattr(topic_reset, "MAX_DELETES_PER_TRANSACTION", at_once)
    world = world_with(GroupSettings(), "a", partitions=7)
    for life in range(2, 5):
        offsets = paths.offsets(GROUP, "t")
        for number in range(7):
            world.zk.perform(Multi((Create(f"{offsets}/{number}", b"%d" % life),)))
        world.delete_topic("t")
        world.set_topic("t", 7, f"id-{life}")
        world.pass_time(5_000)
        assert world.zk.children(offsets) == []
        assert world.zk.nodes[offsets].content.startswith(f"id-{life} ".encode())
        assert len(world.owned()["a-1"]) == 7
    world.assert_settled()


@pytest.mark.parametrize("waited_ms", [0, 3_000, 9_000])
def test_a_new_leader_waits_for_a_static_member_no_longer_than_the_old_one_would_have(waited_ms: int) -> None:
    """In `StaticMembers._await_deadline`, wait for the whole grace again, or not at all."""
    world = world_with(GroupSettings(static_grace_ms=10_000), "a")
    member = world.add_agent("s", instance_id="pod-1")
    world.pass_time(1_000)
    world.kill_agent(member)
    world.pass_time(waited_ms)
    world.kill_coordinator(world.leader())
    world.add_coordinator()
    world.pass_time(9_900 - waited_ms)
    assert len(world.owned()["a-1"]) == 2
    world.pass_time(200)
    assert len(world.owned()["a-1"]) == 4


def test_a_static_member_that_came_back_and_left_before_any_start_is_not_waited_for_endlessly() -> None:
    """In `StaticMembers.left`, look only at the record of the consumer that left."""
    times = GroupSettings(mode="eager", static_grace_ms=10_000, rebalance_timeout_ms=20_000)
    world = world_with(times, "a")
    world.add_agent("s", instance_id="pod-1")
    world.pass_time(1_000)
    world.agents["a"].silent = True  # in the mode eager, nothing starts before it has stopped
    world.kill_agent(world.agents["s"])
    world.add_agent("b")
    world.pass_time(1_000)
    again = world.add_agent("s2", instance_id="pod-1")
    world.pass_time(12_000)
    world.kill_agent(again)
    world.pass_time(60_000)
    assert len(world.owned()["b-1"]) == 4
    assert not world.zk.children(paths.static(GROUP))


def test_a_story_keeps_its_last_lines() -> None:
    story = Story("g")
    for number in range(MAX_STORY_LINES):
        story.go(GroupState.QUEUED, number, "changed")
        story.go(GroupState.LOADING, number, "read anew")
    assert len(story.lines()) == MAX_STORY_LINES
    assert story.lines()[-1] == f"{(MAX_STORY_LINES - 1) / 1e6:.6f} queued -> loading: read anew"
    assert story.lines()[0].startswith(f"{MAX_STORY_LINES // 2 / 1e6:.6f} loading -> queued")


def test_a_generation_that_cannot_be_read_is_told_and_counting_goes_on_above_all_before() -> None:
    world = world_with(GroupSettings(), "a")
    before = world.leader().machine.groups[GROUP].view.generation
    world.zk.perform(Multi((SetContent(paths.generation(GROUP), b"seven"),)))
    world.leader().machine.groups[GROUP].load("reconciliation")
    world.tick()
    world.add_agent("b")
    world.pass_time(2_000)

    (problem,) = [text for text in world.warnings if "continuing from" in text]
    assert "generation: must be a decimal integer, not b'seven'; continuing from " in problem
    assert int(world.zk.nodes[paths.generation(GROUP)].content) > before
    assert len(world.owned()["b-1"]) == 2


def test_what_may_not_be_read_is_told_with_its_path() -> None:
    reader = GroupReader(GROUP, {})
    reader.view.evicted = {"dead": None}
    reader._eviction_read("dead", Refused(Refusal.NO_AUTH))
    assert reader.problems.lines() == [f"{paths.evicted(GROUP, 'dead')} may not be read: no permission"]


@pytest.mark.parametrize("until", ["waits", "is read", "has been read"])
def test_a_group_that_is_deleted_in_any_state_disturbs_no_other(monkeypatch: pytest.MonkeyPatch, until: str) -> None:
    """In `Coordinator._drop`, expect that it was loaded; in `Coordinator._groups_listed`, do not drop what waits."""
    monkeypatch.setattr(coordinator, "MAX_LOADING", 1)
    monkeypatch.setattr(coordinator, "MAX_LOADS_PER_STEP", 1)
    world = World()
    world.set_topic("t", 4)
    world.create_group()
    for name in ("h", "i"):
        create_group(world, name)
    process = world.add_coordinator()
    world.add_agent("a")
    for _ in range(2_000):
        group = process.machine.groups.get("h")
        if (
            (until == "waits" and group is None and "h" in process.machine.groups_to_load)
            or (until == "is read" and group is not None and group.state is GroupState.LOADING)
            or (until == "has been read" and group is not None and group.state is not GroupState.LOADING)
        ):
            break
        step(world, process)
        assert sum(one.state is GroupState.LOADING for one in process.machine.groups.values()) <= 1
    else:
        pytest.fail(f"there was no moment in which it {until}")
    delete_group(world, "h")
    world.pass_time(10_000)

    assert process.machine.groups.keys() == {"g", "i"}
    assert not process.machine.groups_to_load
    assert not process.machine.rebalance_request_queue
    assert len(world.owned()["a-1"]) == 4
    create_group(world, "h")  # and it may come again
    world.pass_time(2_000)
    assert process.machine.groups.keys() == {"g", "h", "i"}


def step(world: World, process: CoordinatorProcess) -> None:
    """Let one thing happen."""
    if not world.move(process):
        world.now_us = world.next_deadline_us() or world.now_us
        world.tick()


def create_group(world: World, name: str) -> None:
    for path in (paths.CONSUMERS, paths.GROUPS, paths.group(name)):
        world.zk.perform(Multi((Create(path),)))
    world.zk.perform(Multi(tuple(Create(f"{paths.group(name)}/{child}") for child in paths.GROUP_CHILDREN)))


def delete_group(world: World, name: str) -> None:
    below = sorted((path for path in world.zk.nodes if f"{path}/".startswith(f"{paths.group(name)}/")), reverse=True)
    assert world.zk.perform(Multi(tuple(Delete(path) for path in below)))


def test_only_what_the_new_leader_finds_was_there_before_it() -> None:
    """In `Coordinator._groups_listed`, forget that groups were listed."""
    world = world_with(GroupSettings(), "a")
    assert [event["trigger"] for event in events(world, "rebalance_requested")][:1] == ["leader-elected"]
    create_group(world, "later")
    world.pass_time(1_000)
    triggers = {event["trigger"] for event in events(world, "rebalance_requested")[1:]}
    assert "leader-elected" not in triggers
    group = world.leader().machine.groups["later"]
    assert any("group-created" in line for line in group.story.lines())


def test_the_first_plan_after_a_group_was_read_waits_for_nothing() -> None:
    """In `Group.__init__`, pretend that something has just changed."""
    world = World()
    world.set_topic("t", 4)
    world.create_group(settings.encode(GroupSettings(rebalance_debounce_ms=20_000, rebalance_debounce_cap_ms=60_000)))
    world.add_agent("a")
    world.run()
    world.add_coordinator()
    world.pass_time(1_000)
    assert len(world.owned()["a-1"]) == 4


def test_all_commands_of_a_dead_consumer_are_removed_however_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Departures._swept`, stop after the first transaction."""
    monkeypatch.setattr(departures, "MAX_DELETES_PER_TRANSACTION", 2)
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    channel = paths.channel(GROUP, "dead-1")
    nodes = [Create(channel), *(Create(f"{channel}/command-{number:010}", b"x") for number in range(5))]
    world.zk.perform(Multi(tuple(nodes)))
    world.add_coordinator()
    world.pass_time(10_000)
    world.assert_nothing_left()


def test_starts_of_members_that_hold_much_are_few_in_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `Batch.add`, count only what is started: each start records all that its member has, and others wait."""
    monkeypatch.setattr(moving, "MAX_RECORDED_PER_TRANSACTION", 15)
    world = world_with(GroupSettings(), *"abcd", partitions=40)
    world.zk.transactions.clear()
    world.set_topic("t", 44)
    world.pass_time(2_000)
    assert [len(owned) for owned in world.owned().values()] == [11] * 4
    starts = [
        sum(
            operation.path.startswith(f"{paths.channel(GROUP)}/") for operation in some if isinstance(operation, Create)
        )
        for some in world.zk.transactions
    ]
    assert [count for count in starts if count] == [2, 2]


def test_a_group_that_was_outdated_long_ago_is_read_again_at_once() -> None:
    """In `Group._load_anew`, count the readings for ever: each further one would wait half a minute."""
    world = world_with(GroupSettings(), "a")
    group = world.leader().machine.groups[GROUP]
    states: list[GroupState] = []
    for wait_ms in (0, 1, 3 * MAX_PAUSE_US // 1_000):
        world.pass_time(wait_ms)
        world.tick()  # the machine's time is that of its last step
        group.handle(facts.Outdated())
        states.append(group.state)
        world.tick()
        world.run()
    assert states == [GroupState.LOADING, GroupState.IDLE, GroupState.LOADING]
    world.assert_settled()


def test_a_group_is_read_again_although_it_is_planned_before_that() -> None:
    """In `Group._load_anew`, call the timer "back-off", which a request cancels."""
    world = world_with(GroupSettings(), "a")
    group = world.leader().machine.groups[GROUP]
    for _ in range(2):
        world.tick()
        group.handle(facts.Outdated())
        world.tick()
        world.run()
    assert group.state is GroupState.IDLE, "the second reading waits"
    read = read_paths(world)
    group.request("retry")
    world.pass_time(10)
    assert not read
    world.pass_time(1_000)
    assert paths.group(GROUP) in read
    world.assert_settled()
