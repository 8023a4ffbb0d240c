"""Topics that change while a group is being rebalanced."""

from __future__ import annotations

import pytest

from tests.support.groups import world_of_two_topics
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths, registration, settings
from zkrebalancer.protocol.calls import Create, Delete, Multi, SetContent
from zkrebalancer.protocol.errors import InvalidNameError
from zkrebalancer.protocol.settings import EAGER, INCREMENTAL, GroupSettings
from zkrebalancer.rebalance import coordinator, election, topics


def test_a_topic_that_is_deleted_before_its_start_is_sent_is_not_started() -> None:
    """The plan names the topic, the next is debounced. Fails when `GroupView.may_start` does not ask `exists`."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1, "u": 1})
    world.pass_time(2_000)
    first = world.agents["a"]
    first.silent = True
    world.add_agent("b", {"t": 1, "u": 1})
    world.run()
    assert world.zk.children(paths.channel(GROUP, first.name or "")), "a stop waits for its answer"

    world.delete_topic("u")
    first.silent = False
    world.run()

    assert "u" not in {topic for topic, _partition in world.owned()["b-1"]}
    world.pass_time(2_000)
    assert {name: sorted(held) for name, held in world.owned().items()} == {"a-1": [("t", 0)], "b-1": [("t", 1)]}


@pytest.mark.parametrize("when", ["while it is broken", "after it is back"])
def test_a_topic_that_changes_around_a_broken_connection_is_noticed(when: str) -> None:
    """With the connection all watches are gone. Fails when `TopicListener` does not read known topics again."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1})
    world.pass_time(2_000)
    session = world.leader().session

    world.zk.disconnect(session)
    if when == "while it is broken":
        world.set_topic("t", 4)
    world.zk.reconnect(session)
    world.run()
    if when == "after it is back":
        world.set_topic("t", 4)
    world.pass_time(2_000)

    assert sorted(world.owned()["a-1"]) == [("t", 0), ("t", 1), ("t", 2), ("t", 3)]


def test_a_node_that_is_no_topic_is_left_out() -> None:
    """An agent would refuse each command that names it. Fails without `TopicListener._is_legal`."""
    world = world_of_two_topics()
    world.set_topic("no topic", 1)
    world.add_agent("a", {"": 1}, pattern="white_list")
    world.pass_time(2_000)

    assert {topic for topic, _partition in world.owned()["a-1"]} == {"t", "u"}
    assert [text for text in world.warnings if "no topic" in text] == [
        "/brokers/topics: 'no topic' is not a topic's name; it is left out"
    ]


def test_a_topic_that_is_created_again_while_its_first_start_is_under_way_is_reset() -> None:
    """The start marks the offsets with the incarnation before. Fails without the request in `markers_written`."""
    world = World()
    world.set_topic("t", 1)
    world.create_group(b'{"version":1,"rebalance_debounce_ms":0}')
    process = world.add_coordinator()
    world.add_agent("a")
    world.act(world.agents["a"])
    while not process.computing:
        world.zk.perform_next(process.session) if process.session.sent else world.deliver(process)

    world.delete_topic("t")
    world.set_topic("t", 1, "id-2")
    world.deliver(process)  # the topic is asked for,
    world.compute(process)  # then the start is sent, of the topic as it was
    while process.session.sent:
        world.zk.perform_next(process.session)
    world.pass_time(2_000)

    world.assert_settled()
    assert world.zk.nodes[paths.offsets(GROUP, "t")].content.startswith(b"id-2 czxid-")


@pytest.mark.parametrize("owner", [coordinator.OWNER, election.OWNER, topics.OWNER])
def test_no_group_shares_its_calls_and_timers_with_a_part_of_the_core(owner: str) -> None:
    """A group `topics` that is read anew would drop what the topic listener waits for."""
    with pytest.raises(InvalidNameError):
        paths.validate_name("group", owner)


def test_offsets_that_may_not_be_deleted_for_a_while_are_deleted_afterwards() -> None:
    """Long before the group is read anew. In `TopicReset._deleted`, leave the topic under way."""
    world = World()
    world.set_topic("t", 1)
    world.create_group()
    world.add_coordinator()
    world.add_agent("a")
    world.pass_time(2_000)
    offsets = paths.offsets(GROUP, "t")
    world.zk.perform(Multi((Create(f"{offsets}/0", b"7"),)))
    world.zk.identity = str
    leader = str(world.leader().session.session_id)
    world.zk.denied.add((leader, offsets, Right.DELETE))

    world.delete_topic("t")
    world.set_topic("t", 1, "id-2")
    world.pass_time(10_000)
    assert (world.zk.children(offsets), world.owned()) == (["0"], {"a-1": {}})
    assert [text for text in world.warnings if "refuses" in text] == [
        f"ZooKeeper refuses {offsets}/0: no permission (DELETE of its parent); retried at growing intervals"
    ]

    world.zk.denied.clear()
    world.pass_time(30_000)
    assert world.zk.children(offsets) == []
    world.assert_settled()


@pytest.mark.parametrize("mode", [INCREMENTAL, EAGER])
@pytest.mark.parametrize("is_denied", [True, False])
def test_a_new_leader_stops_nothing_of_a_topic_that_it_cannot_read(mode: str, is_denied: bool) -> None:
    """Others share the rest. In `TopicListener._topic_read`, take None instead of `UNREAD`."""
    world = world_of_two_topics(GroupSettings(mode=mode), "a", "b")
    before = world.owned()
    whole = world.zk.nodes[paths.topic("t")].content

    if is_denied:
        world.zk.denied.add(("", paths.topic("t"), Right.READ))
    else:
        world.zk.perform(Multi((SetContent(paths.topic("t"), b"junk"),)))
    world.add_coordinator()
    world.kill_coordinator(world.leader())
    world.pass_time(10_000)
    world.add_agent("c", {"t": 1, "u": 1})
    world.pass_time(2_000)
    owned = world.owned()
    of_t = {name: [tp for tp in owned[name] if tp[0] == "t"] for name in before}
    assert of_t == {name: [tp for tp in held if tp[0] == "t"] for name, held in before.items()}
    assert sum(len(held) for held in owned.values()) == 4

    world.zk.denied.clear()
    world.zk.perform(Multi((SetContent(paths.topic("t"), whole),)))
    world.pass_time(60_000)
    assert sorted(len(held) for held in world.owned().values()) == [1, 1, 2]


@pytest.mark.parametrize("group", [GroupSettings(), GroupSettings(mode=EAGER), GroupSettings(frozen=True)])
def test_a_list_of_topics_that_is_gone_is_no_deletion_of_topics(group: GroupSettings) -> None:
    """A new leader would wait for it too. In `TopicListener._topic_read`, take what has no node for deleted."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1, "u": 1})
    world.pass_time(2_000)
    world.configure(settings.encode(group))
    world.pass_time(2_000)
    before, generation = world.owned(), world.generation()
    content = world.zk.nodes[paths.topic("t")].content

    for path in (paths.topic("t"), paths.topic("u"), paths.BROKER_TOPICS):
        world.zk.perform(Multi((Delete(path),)))
    world.pass_time(60_000)
    assert (world.owned(), world.generation()) == (before, generation)

    world.zk.perform(Multi((Create(paths.BROKER_TOPICS), Create(paths.topic("t"), content))))
    world.pass_time(60_000)
    assert sorted(world.owned()["a-1"]) == [("t", 0), ("t", 1)], "the other one is deleted"
    world.set_topic("t", 3)
    world.pass_time(2_000)
    assert ("t", 2) in world.owned()["a-1"], "it is watched"


def test_offsets_of_a_topic_are_kept_while_the_list_of_topics_is_gone() -> None:
    """In `TopicReset._abandoned_read`, do not look whether there is one."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1, "u": 1})
    world.pass_time(2_000)
    for path in (paths.topic("u"), paths.topic("t"), paths.BROKER_TOPICS):
        world.pass_time(2_000)
        world.zk.perform(Multi((Delete(path),)))
    world.pass_time(4_000_000)
    assert world.zk.children(paths.offsets(GROUP)) == ["t", "u"]

    world.zk.perform(Multi((Create(paths.BROKER_TOPICS),)))
    world.pass_time(4_000_000)
    assert not world.zk.children(paths.offsets(GROUP))


def test_a_topic_that_is_created_again_while_it_is_read_is_read_again() -> None:
    """The list of topics is as before. In `TopicListener._listed`, do not read the absent ones."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1, "u": 1})
    world.pass_time(2_000)
    process = world.leader()
    world.delete_topic("u")
    while not process.session.sent:
        world.deliver(process)
    while process.session.sent:
        world.zk.perform_next(process.session)
    world.set_topic("u", 3)
    world.pass_time(5_000)
    world.assert_settled()


def test_a_topic_that_could_never_be_read_is_stopped_once_it_is_gone() -> None:
    """In `TopicListener._listed`, leave out what was never read."""
    world = world_of_two_topics()
    world.add_agent("a", {"t": 1, "u": 1})
    world.pass_time(2_000)
    world.zk.perform(Multi((SetContent(paths.topic("t"), b"junk"),)))
    world.add_coordinator()
    world.kill_coordinator(world.leader())
    world.pass_time(10_000)
    assert len(world.owned()["a-1"]) == 4

    world.delete_topic("t")
    world.pass_time(2_000)
    assert {topic for topic, _partition in world.owned()["a-1"]} == {"u"}


def test_a_topic_that_goes_while_a_member_only_holds_it_is_noticed_by_the_next_plan() -> None:
    """In `Planning._look_at`, ask only whether its topics are known: the kept problem is out of date."""
    world = world_of_two_topics(GroupSettings(frozen=True), "a")
    path = paths.ids(GROUP, "a-1")
    known = registration.decode(world.zk.nodes[path].content)
    world.zk.perform(Multi((SetContent(path, registration.encode(known._replace(subscription={"t": 1}))),)))
    world.pass_time(2_000)
    assert len(world.owned()["a-1"]) == 4, "nothing moves in a frozen group"
    world.delete_topic("u")
    world.add_agent("b")
    world.pass_time(5_000)
    assert world.owned() == {"a-1": {("t", 0): 0, ("t", 1): 0}, "b-1": {}}


def test_of_many_foreign_nodes_beside_topics_a_few_are_logged() -> None:
    """In `TopicListener._decoded`, log each: thousands of lines at every election."""
    world = World()
    world.set_topic("t", 2)
    world.zk.perform(Multi(tuple(Create(paths.topic(f"foreign-{chr(97 + n)}"), b"{") for n in range(26))))
    world.create_group()
    world.add_coordinator()
    world.pass_time(5_000)
    said = [text for text in world.warnings if "stays as it was" in text]
    assert len(said) == topics.MAX_NAMED + 6
    world.zk.perform(Multi(tuple(Create(paths.topic(f"more-{chr(97 + n)}"), b"{") for n in range(26))))
    world.pass_time(9_000)
    assert len([text for text in world.warnings if "stays as it was" in text]) <= topics.MAX_NAMED + 8
