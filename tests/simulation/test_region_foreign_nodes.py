"""Nodes of other programs in a region: it goes on, repeats nothing without a pause, and leaves no litter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from tests.simulation.region import STEPS, RegionRun
from tests.support.world import GROUP, World
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, Get, Multi, Reply, SetContent
from zkrebalancer.region import documents
from zkrebalancer.region.documents import Request, Settings

DIGITS = "9" * 5_000
MAX_CALLS = 3_000
DELETED = ("order", "members", "requests", "contributions")
DELETED_UNTIL = STEPS - 800  # steps
REQUEST = documents.encode_request(Request("checkpoint", "m0"))


def make(world: World, path: str, content: bytes = b"") -> None:
    assert isinstance(world.zk.perform(Multi((Create(path, content),))), Done)


def observe(world: World, note: Callable[[Call], None]) -> None:
    perform = world.zk.perform

    def noting(call: Call, session_id: int = 0) -> Reply:
        note(call)
        return perform(call, session_id)

    world.zk.perform = noting  # type: ignore[method-assign]


def running_region() -> RegionRun:
    run = RegionRun(5, faults=0)
    run.step_until(lambda: run.seen["checkpoints"] > 0)
    return run


def litter(run: RegionRun) -> list[str]:
    """Make nodes of all kinds, each with a node below it; return them."""
    order = run.order()
    assert order is not None
    found = [
        paths.region(GROUP, "members", "ghost"),
        paths.region(GROUP, "requests", "checkpoint-9"),
        paths.region(GROUP, "requests", "junk-9"),
        paths.region(GROUP, "merged", "1.9"),
        paths.region(GROUP, "contributions", str(order.id + 2)),
    ]
    for path in found:
        make(run.world, path, REQUEST if "checkpoint" in path else b"")
        make(run.world, f"{path}/below")
    return found


def test_a_region_goes_on_beside_nodes_that_cannot_be_deleted() -> None:
    """In `Region._written`, leave no request out, or sweep nothing; in `_member_read`, believe every node."""
    run = running_region()
    made = litter(run)
    for _ in range(4):
        run.complete_another()
    merges = [name for name in run.world.zk.children(paths.region(GROUP, "merged")) if name != "1.9"]
    assert len({name.partition(".")[0] for name in merges}) <= 2, "old merges are deleted, beside one that cannot be"
    assert len(run.world.zk.children(paths.region(GROUP, "contributions"))) <= 3
    refused = [text for text in run.world.warnings if "not empty" in text]
    assert [text for text in refused if made[1] in text]
    assert [text for text in refused if made[3] in text]
    run.ask("checkpoint")
    run.step_until(lambda: not [n for n in run.world.zk.children(paths.region(GROUP, "requests")) if n[-2:] != "-9"])


def test_numbers_with_thousands_of_digits_are_no_numbers() -> None:
    """In `Region._answers_listed`, or in `RegionWrites._partitions_listed`, convert names with `int`."""
    run = running_region()
    run.world.set_topic("v", 1)
    make(run.world, paths.region(GROUP, "initial", "v"))
    make(run.world, paths.region(GROUP, "initial", f"v/{DIGITS}"))
    run.step_until(lambda: (order := run.order()) is not None and order.open is not None)
    order = run.order()
    assert order is not None
    assert order.open is not None
    make(run.world, paths.region(GROUP, "contributions", f"{order.open.id}/m0.{DIGITS}"))
    make(run.world, paths.region(GROUP, "merged", f"{DIGITS}.0"))
    run.complete_another()
    run.world.zk.perform(Multi((SetContent(paths.region(GROUP, "order"), b"junk"),)))
    run.world.kill_coordinator(run.world.leader())
    run.complete_another()


def test_an_order_of_another_program_whose_numbers_contradict_each_other_is_made_anew() -> None:
    """In `decode_order`, read it: all members wait for a round that comes in months, and the log names no cause."""
    run = running_region()
    run.step_until(lambda: (order := run.order()) is not None and order.open is None)
    order = run.order()
    assert order is not None
    foreign = documents.encode_order(replace(order, reset=order.id + 1_000))
    run.world.zk.perform(Multi((SetContent(paths.region(GROUP, "order"), foreign),)))
    run.complete_another()
    order = run.order()
    assert order is not None
    assert order.reset <= order.id < 100


def test_an_order_that_cannot_be_written_is_tried_with_growing_pauses() -> None:
    """In `Region._forget`, forget the tries."""
    run = running_region()
    order = run.order()
    assert order is not None
    path = paths.region(GROUP, "contributions", str(order.id + 1))
    if order.open is None:
        make(run.world, path)
    for name in ("x", "x/y"):
        make(run.world, f"{paths.region(GROUP, 'contributions', str(order.id + 1))}/{name}")
    times: list[int] = []

    def note(call: Call) -> None:
        if isinstance(call, Multi) and any(isinstance(o, Create) and o.path == path for o in call.operations):
            times.append(run.world.now_us)

    observe(run.world, note)
    while run.world.now_us < 60_000_000:
        run.step()
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) < 20
    assert pauses[-1] > 5_000_000
    run.world.zk.perform(Multi((Delete(f"{path}/x/y"),)))
    run.complete_another()


@pytest.mark.parametrize("kept", [True, False])
def test_a_region_that_is_deleted_while_it_is_read_is_not_asked_for_without_a_pause(kept: bool) -> None:
    """In `Region._order_made`, read the order at once."""
    world = World()
    world.set_topic("t", 1)
    world.create_group()
    region = paths.region(GROUP)
    make(world, region, documents.encode_settings(Settings("billing", "group", every_ms=2_000)))
    process = world.add_coordinator()
    while not any(call == Get(f"{region}/order") for _id, call in process.session.sent):
        if process.session.sent:
            world.zk.perform_next(process.session)
        elif process.session.inbox:
            world.deliver(process)
        else:
            world.tick()
            world.now_us += 1
    left = MAX_CALLS

    def note(_call: Call) -> None:
        nonlocal left
        left -= 1
        assert left, "calls are repeated without a pause"

    observe(world, note)
    world.zk.perform(Multi((Delete(region),)))
    if kept:
        make(world, region, documents.encode_settings(Settings("billing", "group", every_ms=2_000)))
    world.pass_time(100_000)
    assert (f"{region}/order" in world.zk.nodes) == kept


@pytest.mark.parametrize("kind", ["order", "members", "requests", "contributions", "merged"])
def test_no_records_effect_is_lost_or_doubled_if_a_node_of_the_region_is_deleted(kind: str) -> None:
    """In `RegionNodes._trace_read`, begin anew: after a restart, all states lack what the last checkpoint has."""
    run = running_region()
    run.step_until(lambda: (order := run.order()) is not None and order.open is None and order.pending is None)
    before = run.order()
    assert before is not None
    path = paths.region(GROUP, kind)
    doomed = [node for node in run.world.zk.nodes if f"{node}/".startswith(f"{path}/")]
    run.world.zk.perform(Multi(tuple(map(Delete, sorted(doomed, reverse=True)))))
    for member in run.running():
        member.kill()
        run.add(member.name)
    for _ in range(MAX_CALLS):
        for _ in range(10):
            run.step()
        run.world.now_us += 100_000  # a former registration stays for a while
        run.world.tick()
        order = run.order()
        if order is not None and (order.complete or 0) > before.id and run.is_done():
            break
    assert run.is_done()
    assert path in run.world.zk.nodes
    run._check_end()


def test_members_whose_whole_region_is_deleted_begin_it_anew() -> None:
    """In `Member._without_order`, look at nothing; in `Member._create`, keep what was done in the former region."""
    run = running_region()
    path = paths.region(GROUP)
    doomed = [node for node in run.world.zk.nodes if f"{node}/".startswith(f"{path}/")]
    run.world.zk.perform(Multi(tuple(map(Delete, sorted(doomed, reverse=True)))))
    run.step_until(lambda: (order := run.order()) is not None and len(order.members) == len(run.running()))
    run.complete_another()


def test_a_member_whose_node_is_deleted_before_an_order_names_it_registers_again() -> None:
    """In `Member._not_named`, only wait."""
    run = running_region()
    for process in run.world.coordinators:
        if process.alive:
            run.world.kill_coordinator(process)
    run.join()
    name = run.members[-1].name
    path = paths.region(GROUP, "members", name)
    run.step_until(lambda: path in run.world.zk.nodes)
    run.world.zk.perform(Multi((Delete(path),)))
    run.world.add_coordinator()
    run.step_until(lambda: (order := run.order()) is not None and name in order.members)
    run.complete_another()


class DeletedRun(RegionRun):
    """A run in which nodes of the region are deleted at drawn steps, beside its faults."""

    def __init__(self, seed: int) -> None:
        drawn = Random(f"{seed}/deletions")
        self.left = sorted((drawn.randrange(DELETED_UNTIL), drawn.choice(DELETED)) for _ in range(3))
        self.steps = 0
        super().__init__(seed)

    def step(self) -> None:
        self.steps += 1
        if self.left and self.steps >= self.left[0][0]:
            path = paths.region(GROUP, self.left.pop(0)[1])
            doomed = [node for node in self.world.zk.nodes if f"{node}/".startswith(f"{path}/")]
            self.world.zk.perform(Multi(tuple(map(Delete, sorted(doomed, reverse=True)))))
        super().step()


@pytest.mark.parametrize("seed", [109, 112, 117])
def test_no_records_effect_is_lost_or_doubled_if_nodes_are_deleted_among_faults(seed: int) -> None:
    """In `Region._written`, keep the order, or count former replies; in `_members_listed`, do not begin again."""
    DeletedRun(seed).run()
