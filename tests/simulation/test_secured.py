"""A secured tree in virtual time: whatever happens, coordinators, agents and regions have the rights that they need."""

from __future__ import annotations

from functools import partial

import pytest

from tests.mutations.editing import Edit, edited
from tests.simulation.cluster import Cluster
from tests.simulation.plan import GROUPS, make_plan
from tests.simulation.region import RegionRun
from tests.simulation.run import run
from tests.support import examples
from tests.support.secured_model import COORDINATOR, SecuredTree, member, who
from tests.support.world import GROUP
from tests.support.zk_model import Right
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Create, Delete, Multi
from zkrebalancer.protocol.errors import ZooKeeperRefusedError

SEEDS = max(2, examples.count() // 10)
REGION_SEEDS = max(2, examples.count() // 10)


def asked_in_vain(group: str) -> set[tuple[str, str, Right]]:
    """Return what a consumer asks for although it may be refused.

    It makes the group's nodes if they are missing, and deletes its own when it leaves; else they end with its session.
    """
    made = [paths.CONSUMERS, paths.GROUPS, paths.group(group), paths.region(group)]
    own = [paths.ids(group), paths.channel(group)]
    asked = [*((path, Right.CREATE) for path in made), *((path, Right.DELETE) for path in own)]
    return {(member(group), *each) for each in asked}


def secure(cluster: Cluster) -> SecuredTree:
    """Secure the tree of a cluster; what the simulated operator does is not judged, because it plays Kafka, too."""
    hosts = cluster.ensemble.hosts
    cluster.ensemble.zk.identity = lambda session_id: hosts[session_id].name if session_id in hosts else ""
    logins = {"coordinator": COORDINATOR, **{group: member(group) for group in GROUPS}}
    return SecuredTree(cluster.ensemble.zk, who(*GROUPS), lambda name: logins.get(name.partition("-")[0]))


def _secure_into(trees: list[SecuredTree], cluster: Cluster) -> None:
    trees.append(secure(cluster))


@pytest.mark.drawn
def test_coordinators_and_agents_may_do_what_they_have_to() -> None:
    known = {asked for group in GROUPS for asked in asked_in_vain(group)}
    for seed in range(SEEDS):
        trees: list[SecuredTree] = []
        _result, failure = run(make_plan(seed), prepare=partial(_secure_into, trees))
        assert failure is None, failure
        assert trees[0].refused.keys() <= known


def secured_region(seed: int, faults: int = 12) -> tuple[RegionRun, SecuredTree]:
    """Return a run in a tree that `security init` has prepared for the group."""
    run = RegionRun(seed, faults)
    zk, coordinators = run.world.zk, run.world.coordinators
    for path in (paths.region(GROUP), *(paths.region(GROUP, kind) for kind in paths.REGION_CHILDREN)):
        zk.perform(Multi((Create(path),)))

    def identity(session_id: int) -> str:
        leads = any(process.session.session_id == session_id for process in coordinators)
        return COORDINATOR if leads else member(GROUP) if session_id else ""

    zk.identity = identity
    return run, SecuredTree(zk, who(GROUP), lambda name: name or None)


def run_region(seed: int) -> None:
    run, tree = secured_region(seed)
    run.run()
    assert tree.refused.keys() <= asked_in_vain(GROUP)


@pytest.mark.drawn
def test_a_region_has_the_rights_that_it_needs() -> None:
    for seed in range(REGION_SEEDS):
        run_region(seed)


WITHOUT = {
    "members": Edit("rights._in_region", '{"members", "requests"}', '{"requests"}'),
    "requests": Edit("rights._in_region", '{"members", "requests"}', '{"members"}'),
    "contributions": Edit("rights._in_region", 'kind == "contributions" and depth == 2', "False"),
    "initial": Edit("rights._in_region", 'kind == "initial"', "False"),
}


QUICK = ("contributions", "initial")


@pytest.mark.parametrize(
    "edit",
    [pytest.param(edit, id=name, marks=[] if name in QUICK else pytest.mark.long) for name, edit in WITHOUT.items()],
)
def test_a_right_that_a_region_lacks_is_found(edit: Edit) -> None:
    with edited((edit,)), pytest.raises(AssertionError):
        run_region(0)


@pytest.mark.parametrize("missing", ["order", "members", "the group's login"])
def test_a_member_whose_login_cannot_join_says_so(missing: str) -> None:
    """In `Member.register`, go on after NO_AUTH: the member waits for ever, without a word."""
    run, _tree = secured_region(0, faults=0)
    zk = run.world.zk
    if missing == "the group's login":
        zk.identity = lambda session_id: "sasl:another" if session_id else ""
    else:
        for kind in paths.REGION_CHILDREN if missing == "order" else ["members"]:
            zk.perform(Multi((Delete(paths.region(GROUP, kind)),)))
        if missing == "order":
            zk.perform(Multi((Delete(paths.region(GROUP)),)))
    with pytest.raises(ZooKeeperRefusedError, match=r"grant it by `zkrebalancer security init --group g=…`"):
        run.run()
