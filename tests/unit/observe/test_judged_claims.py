"""Tools judge what members claim as the coordinator does, also while it writes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.observe import inspection
from zkrebalancer.operations.foresight import foresee
from zkrebalancer.protocol import ownership, paths
from zkrebalancer.protocol.calls import Call, Create, Delete, ListChildren, Multi, Refusal, Reply, SetContent
from zkrebalancer.protocol.ownership import OwnersRecord
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

ALL = {("t", number): 0 for number in range(4)}


class Reading(ModelClient):
    """Reads a group; `between` acts after what was given is read, before what members claim."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def perform_all(self, calls: list[Call], expected: Collection[Refusal] = ()) -> list[Reply]:
        if ListChildren(paths.owners(GROUP)) in calls:
            self.between()
        return super().perform_all(calls, expected)


def read(client: ModelClient) -> tuple[inspection.GroupReport, set[str]]:
    zk = cast("BlockingZk", client)
    report = inspection.read_group(zk, GROUP)
    return report, {each.kind for each in inspection.read_obstacles(zk, report)} - {"no-coordinator"}


def with_a_false_claim() -> World:
    """Return a group of two members, one of which claims everything; no coordinator has seen it."""
    world = world_with(GroupSettings(), "a", "b")
    world.kill_coordinator(world.leader())
    world.run()
    claim = ownership.encode_owners(OwnersRecord(0, None, ALL))
    world.zk.perform(Multi((SetContent(paths.owners(GROUP, "b-1"), claim),)))
    return world


def test_a_false_claim_is_named_and_the_plan_gives_its_partitions_to_others() -> None:
    """In `GroupReader._node_names`, read what was given only for the leader."""
    client = ModelClient(with_a_false_claim().zk)
    report, kinds = read(client)
    assert kinds == {"false-claim"}
    assert len(report.owned()) == len(ALL)
    assert [len(member.owners.partitions) for member in report.members if member.owners] == [2, 2]
    foreseen = foresee(cast("BlockingZk", client), report, report.settings, None)
    assert {(giver, taker) for _partition, giver, taker in foreseen.moves} == {("b-1", "a-1")}


@pytest.mark.parametrize("path", [paths.given(GROUP), paths.given(GROUP, "b-1")])
def test_a_tool_that_may_not_read_what_was_given_believes_it_and_says_so(path: str) -> None:
    """In `expected_refusals`, allow no refusal: people who may only read the group's other nodes see nothing."""
    world = with_a_false_claim()
    world.zk.identity = str
    world.zk.denied.add(("0", path, Right.READ))
    report, kinds = read(ModelClient(world.zk))
    assert kinds == set()
    assert {problem for problem in report.problems.lines() if "given" in problem} == {
        f"{path} may not be read: no permission"
    }


@pytest.mark.parametrize("times", [1, 100])
def test_a_leader_that_moves_partitions_meanwhile_makes_no_claim_false(times: int) -> None:
    """In `Grounds.compare`, notice no change: members that were given partitions in between seem to lie."""
    world = world_with(GroupSettings(), "a")
    client, left = Reading(world.zk), [times]

    def another_joins() -> None:
        if left[0]:
            left[0] -= 1
            world.add_agent(f"n{left[0]}")
            world.pass_time(3_000)

    client.between = another_joins
    report, kinds = read(client)
    assert kinds == set()
    assert len(report.owned()) == len(ALL)
    assert left[0] == max(0, times - inspection.MAX_TRIES - 1)


@pytest.mark.parametrize(
    ("operations", "kind"),
    [
        ((Delete(paths.owners(GROUP, "a-1")),), "record-gone"),
        ((Delete(paths.owners(GROUP, "a-1")), Create(paths.owners(GROUP, "a-1"), b"{}")), "sessionless"),
    ],
)
def test_a_member_that_a_leader_will_evict_is_named(operations: tuple[Create | Delete, ...], kind: str) -> None:
    """In `obstacles._of_member`, name only false claims: `groups plan` moves its partitions, and nothing says why."""
    world = world_with(GroupSettings(), "a")
    world.kill_coordinator(world.leader())
    world.run()
    world.zk.perform(Multi(operations))
    assert kind in read(ModelClient(world.zk))[1]
