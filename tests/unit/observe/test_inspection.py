"""Reading groups from nodes that any program may have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.support.zk_model import Right, ZkModel
from zkrebalancer.observe import inspection
from zkrebalancer.operations.approval import NothingWaitsError, approving
from zkrebalancer.protocol import paths, shards
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, Get, ListChildren, Multi, Refusal, Reply
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress, encode_coordinator
from zkrebalancer.protocol.errors import NodeContentError
from zkrebalancer.protocol.obstacles import PublishedObstacle, encode
from zkrebalancer.protocol.ownership import EvictionRecord, encode_eviction
from zkrebalancer.protocol.refusals import require_expected
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.rebalance.problems import MAX_SHOWN
from zkrebalancer.runtime.zk import BlockingZk


class Client:
    """The part of `BlockingZk` that `inspection` uses, on a model of ZooKeeper."""

    def __init__(self) -> None:
        self.model = ZkModel()
        self.vanishing = ""  # a group to delete right after the groups are listed

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        reply = self.model.perform(call)
        require_expected(call, reply, expected)
        if self.vanishing and call == ListChildren(paths.GROUPS):
            self.model.perform(Multi((Delete(paths.group(self.vanishing)),)))
        return reply

    def perform_all(self, many: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        return [self.perform(call, expected) for call in many]

    def lead(self, content: bytes) -> None:
        """Create the leader's node, as a session does."""
        node = Create(paths.COORDINATOR, content, ephemeral=True)
        assert isinstance(self.model.perform(Multi((node,)), self.model.open().session_id), Done)

    def create(self, *created: str) -> None:
        assert isinstance(self.perform(Multi(tuple(Create(path) for path in created))), Done)


def names(client: Client) -> list[str]:
    return [report.name for report in inspection.read_groups(cast("BlockingZk", client))[0]]


def with_groups(*groups: str) -> Client:
    client = Client()
    client.create(paths.CONSUMERS, paths.GROUPS, *(f"{paths.GROUPS}/{name}" for name in groups))
    return client


@pytest.mark.parametrize("nodes", [{paths.SHARDS: b"{"}, {paths.COORDINATOR: b"", shards.BARRIER: b""}])
def test_a_damaged_or_missing_number_of_shards_is_a_reason(nodes: dict[str, bytes]) -> None:
    client = with_groups("g")
    client.perform(Multi(tuple(Create(path, content) for path, content in nodes.items())))
    zk = cast("BlockingZk", client)
    (found,) = inspection.read_obstacles(zk, inspection.read_group(zk, "g"))
    assert (found.kind, found.path) == ("shards", paths.SHARDS)
    assert "`zkrebalancer shards set COUNT`" in found.text


def test_an_illegal_group_name_does_not_hide_the_other_groups() -> None:
    assert names(with_groups("b", "not a group", "a")) == ["a", "b"]


def test_a_group_deleted_after_the_listing_is_skipped() -> None:
    client = with_groups("a", "b")
    client.vanishing = "a"
    assert names(client) == ["b"]


def test_offset_nodes_without_a_partition_number_are_ignored() -> None:
    client = with_groups("g")
    group = paths.group("g")
    odd = ("0", "²", "x", "9" * 5_000)
    client.create(f"{group}/offsets", f"{group}/offsets/t", *(f"{group}/offsets/t/{name}" for name in odd))
    report = inspection.read_group(cast("BlockingZk", client), "g")
    inspection.read_offsets(cast("BlockingZk", client), report)
    assert report.offsets == {}
    assert report.problems.counts == {"stored offsets": 1}  # partition 0 is empty


def test_a_group_that_is_not_there_is_named() -> None:
    with pytest.raises(inspection.UnknownGroupError, match=r"^there is no group g; `groups list` shows all groups$"):
        inspection.read_group(cast("BlockingZk", with_groups("h")), "g")


def test_offsets_of_many_partitions_are_read_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MAX_READS_AT_ONCE", 2)
    client, group = with_groups("g"), paths.group("g")
    client.create(f"{group}/offsets", f"{group}/offsets/t", f"{group}/offsets/u")
    stored = {("t", 0): 0, ("t", 1): 11, ("t", 7): 17, ("u", 0): 20, ("u", 2): 22}
    for (topic, number), offset in stored.items():
        client.perform(Multi((Create(f"{group}/offsets/{topic}/{number}", b"%d" % offset),)))
    asked: list[int] = []
    perform_all = client.perform_all

    def noting(many: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        asked.append(len(many))
        return perform_all(many, expected)

    report = inspection.read_group(cast("BlockingZk", client), "g")
    monkeypatch.setattr(client, "perform_all", noting)
    inspection.read_offsets(cast("BlockingZk", client), report)

    assert report.offsets == stored
    assert asked == [4, 2, 2, 2, 2, 1]  # which topics these are, their partitions, then five offsets


@pytest.mark.parametrize(
    ("key", "record"),
    [("evicted_at_ms", EvictionRecord(1, {}, 2**62, 5)), ("lease_ms", EvictionRecord(1, {}, 5, 2**62))],
)
def test_a_lease_that_no_calendar_has_is_a_problem_and_not_the_end(key: str, record: EvictionRecord) -> None:
    """Written by somebody else. In `ownership.decode_eviction`, take any number."""
    client = with_groups("g")
    client.create(paths.evicted("g"))
    client.perform(Multi((Create(paths.evicted("g", "gone"), encode_eviction(record)),)))
    report = inspection.read_group(cast("BlockingZk", client), "g")
    assert any(key in problem for problem in report.problems.lines())
    (lease,) = [each for each in inspection.read_obstacles(cast("BlockingZk", client), report) if each.kind == "lease"]
    assert "cannot be read" in lease.text


def test_what_the_leader_does_not_publish_is_mentioned() -> None:
    """In `read_obstacles`, say nothing of it: then a group of which it is the only reason does not seem stuck."""
    client = with_groups("g")
    leader = CoordinatorAddress(1, "host", 3, None, "0")
    published = encode(3, [PublishedObstacle("other", "backing-off", "reason")], 7)
    client.lead(encode_coordinator(leader))
    client.perform(Multi((Create(paths.COORDINATOR_OBSTACLES, published),)))
    report = inspection.read_group(cast("BlockingZk", client), "g")
    (found,) = inspection.read_obstacles(cast("BlockingZk", client), report)
    assert found.kind == "unpublished"
    assert found.text.startswith("7 more reasons")


def test_of_many_foreign_nodes_a_few_of_each_place_are_named_and_the_rest_is_counted() -> None:
    """In `Problems.add`, keep every text; in `obstacles._bounded`, show every reason."""
    client, count = with_groups("g"), MAX_SHOWN + 5
    for place in ("evicted", "ids", "owners", "static"):
        above = f"{paths.group('g')}/{place}"
        client.create(above, *(f"{above}/foreign-{number}" for number in range(count)))
    report = inspection.read_group(cast("BlockingZk", client), "g")
    obstacles = inspection.read_obstacles(cast("BlockingZk", client), report)

    assert report.problems.counts == dict.fromkeys(("evicted", "ids", "owners", "static"), count)
    lines = report.problems.lines()
    assert len(lines) == 4 * (MAX_SHOWN + 1)
    assert set(lines) >= {f"{place}: 5 more problems" for place in report.problems.counts}
    kinds = Counter(each.kind for each in obstacles)
    shown = dict.fromkeys(("unreadable", "sessionless", "lease"), MAX_SHOWN + 1)
    assert kinds == {"no-coordinator": 1, **shown}
    assert {each.kind: each.more for each in obstacles if each.more} == {
        "lease": 5,
        "sessionless": 5,
        "unreadable": 2 * count - MAX_SHOWN,
    }


def test_a_group_without_members_is_empty_and_commands_are_counted() -> None:
    """In `GroupReport.state`, look for no members; in `read_group`, count no commands."""
    world = world_with(GroupSettings(), "a")
    client = Client()
    client.model = world.zk
    settled = inspection.read_group(cast("BlockingZk", client), GROUP)
    assert (settled.state, [member.pending_commands for member in settled.members]) == ("stable", [0])
    client.create(f"{paths.channel(GROUP, settled.members[0].consumer)}/command-0000009999")
    moving = inspection.read_group(cast("BlockingZk", client), GROUP)
    assert (moving.state, [member.pending_commands for member in moving.members]) == ("moving", [1])
    assert inspection.read_group(cast("BlockingZk", with_groups("g")), "g").state == "empty"


def _with_record(existing: int, claimed: int) -> Client:
    """Return a group with one topic, and a record of 80 bytes that claims so many partitions of it."""
    client, group = with_groups("g"), paths.group("g")
    client.create("/brokers", paths.BROKER_TOPICS, f"{group}/ids", f"{group}/ids/c-1", f"{group}/owners")
    numbers = ",".join(f'"{number}":[1]' for number in range(existing))
    topic = Create(paths.topic("t"), b'{"partitions":{%b}}' % numbers.encode())
    record = b'{"version":1,"generation":0,"command_id":null,"threads":{"0":{"t":[[0,%d]]}}}' % (claimed - 1)
    assert isinstance(client.perform(Multi((topic, Create(paths.owners("g", "c-1"), record)))), Done)
    return client


def test_a_short_record_of_a_million_partitions_costs_tools_little() -> None:
    """In `GroupReader._bound`, bound nothing for tools: a few such records end their sessions, whatever they do."""
    report = inspection.read_group(cast("BlockingZk", _with_record(3, 1_000_000)), "g")
    assert report.owned() == {}
    assert "names partition 999999 of 3; at most 10000" in report.problems.lines()[-1]


def test_a_record_of_many_partitions_that_exist_is_believed() -> None:
    """In `read_group`, do not read the topics."""
    assert len(inspection.read_group(cast("BlockingZk", _with_record(12_000, 12_000)), "g").owned()) == 12_000


def test_topics_are_read_only_if_a_record_names_more_than_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "read_topics", lambda _zk: pytest.fail("it has read the topics"))
    assert len(inspection.read_group(cast("BlockingZk", _with_record(1, 10_000)), "g").owned()) == 10_000


def test_what_only_keeps_coordinators_from_leading_is_no_leader() -> None:
    """A restore, for example. In `cluster_nodes.decode_coordinator`, allow no such id: every command ends with it."""
    client = with_groups("g")
    nobody = encode_coordinator(CoordinatorAddress(NOBODY, "h (restore)", 0, None, "0"))
    client.lead(nobody)
    assert inspection.read_leader(cast("BlockingZk", client)) is None


@pytest.mark.parametrize(("epoch", "kinds"), [(3, ["backing-off"]), (2, []), (4, [])])
def test_what_another_leader_has_published_is_not_shown(epoch: int, kinds: list[str]) -> None:
    """In `read_published`, do not compare the epochs."""
    client = with_groups("g")
    leader = encode_coordinator(CoordinatorAddress(1, "host", 3, None, "0"))
    published = encode(epoch, [PublishedObstacle("g", "backing-off", "reason")])
    client.lead(leader)
    assert isinstance(client.perform(Multi((Create(paths.COORDINATOR_OBSTACLES, published),))), Done)
    report = inspection.read_group(cast("BlockingZk", client), "g")
    found = inspection.read_obstacles(cast("BlockingZk", client), report)
    assert [each.kind for each in found] == kinds


@pytest.mark.parametrize("content", [b'{"version": 2}', b"[" * 400_000, b""])
def test_a_leader_of_another_release_is_named_and_hides_nothing_else(content: bytes) -> None:
    """In `inspection._leader`, raise: during an upgrade, no tool of the former release can show any group."""
    client = with_groups("g")
    client.lead(content)
    zk = cast("BlockingZk", client)
    leader = inspection.read_leader(zk, "g")
    assert leader is not None
    assert not leader.is_known
    report = inspection.read_group(zk, "g")
    assert inspection.read_obstacles(zk, report) == []
    client.create(paths.COORDINATOR_OBSTACLES)
    assert inspection.read_obstacles(zk, report) == []
    assert ["whose node cannot be read" in line for line in report.problems.lines()] == [True]
    with pytest.raises(NothingWaitsError, match="whose node cannot be read"):
        approving(zk, "g")


def test_a_node_of_no_session_names_no_leader() -> None:
    """In `inspection._leader`, believe it: a copied tree seems to be led. A coordinator removes the node."""
    client = with_groups("g")
    copied = encode_coordinator(CoordinatorAddress(1, "host", 3, None, "0"))
    client.perform(Multi((Create(paths.COORDINATOR, copied),)))
    assert inspection.read_leader(cast("BlockingZk", client)) is None


def test_many_groups_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `read_groups`, read one after the other: a minute for ten thousand, ten where a round trip takes 5 ms."""
    monkeypatch.setattr(inspection, "MAX_GROUPS_AT_ONCE", 20)
    client = with_groups(*(f"g{number:02}" for number in range(40)))
    client.create(paths.ids("g07"), paths.ids("g07", "c-1"), paths.owners("g07"), paths.owners("g07", "c-1"))
    client.model.identity = str
    client.model.denied.add(("0", paths.group("g09"), Right.READ))
    trips: list[int] = []
    perform_all = client.perform_all

    def counting(many: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        trips.append(len(many))
        return perform_all(many, expected)

    monkeypatch.setattr(client, "perform_all", counting)
    reports, refused = inspection.read_groups(cast("BlockingZk", client))
    assert [report.name for report in reports] == [f"g{number:02}" for number in range(40) if number != 9]
    assert [str(error).split(":")[0] for error in refused] == [f"ZooKeeper refuses {paths.group('g09')}"]
    assert [len(report.members) for report in reports if report.members] == [1]
    assert len(trips) <= 2 * 12


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_number_of_shards_that_changes_between_two_reads_is_no_damage(*, is_damaged: bool) -> None:
    """In `read_shards`, look once: while the number changes, commands would say that ZooKeeper's tree is damaged."""
    nodes = [Create(path) for path in (paths.CONSUMERS, paths.COORDINATOR, shards.BARRIER)]
    if not is_damaged:
        nodes.append(Create(paths.SHARDS, shards.encode_number(shards.Number(3, 7))))

    class Changing(Client):
        def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
            reply = super().perform(call, expected)
            if call == Get(paths.SHARDS) and nodes:
                assert isinstance(self.model.perform(Multi(tuple(nodes))), Done)
                nodes.clear()
            return reply

    client = Changing()
    if is_damaged:
        with pytest.raises(NodeContentError, match="it is missing"):
            inspection.read_shards(cast("BlockingZk", client))
    else:
        assert len(inspection.read_shards(cast("BlockingZk", client))) == 3
