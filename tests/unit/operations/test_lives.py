"""Commands that set offsets begin new lives, after all offsets are written."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.operations.move_offsets import import_offsets
from zkrebalancer.operations.reset_offsets import reset_offsets
from zkrebalancer.protocol import offset_lives, paths
from zkrebalancer.protocol.calls import Call, Multi, Refusal, Reply
from zkrebalancer.runtime.zk import BlockingZk


class Recording(ModelClient):
    def __init__(self) -> None:
        super().__init__(world_with(partitions=3).zk)
        for number in (0, 1):
            self.create(paths.offsets(GROUP, "t", number), b"5")
        self.written: list[str] = []

    def perform(self, call: Call, expected: Collection[Refusal] = ()) -> Reply:
        if isinstance(call, Multi):
            self.written += [operation.path for operation in call.operations]
        return super().perform(call, expected)

    def lives(self) -> dict[int, int]:
        return offset_lives.decode(self.model.nodes[paths.lives(GROUP, "t")].content)


def test_a_reset_begins_new_lives_last() -> None:
    client = Recording()
    zk = cast("BlockingZk", client)
    reset_offsets(zk, GROUP, lambda partitions: dict.fromkeys(partitions, 9), dry_run=False)
    first = client.lives()
    assert first.keys() == {0, 1}
    lives = client.written.index(paths.lives(GROUP, "t"))
    assert lives > max(client.written.index(paths.offsets(GROUP, "t", number)) for number in (0, 1))
    reset_offsets(zk, GROUP, lambda _: {("t", 1): 3}, dry_run=False)
    assert client.lives()[0] == first[0]
    assert client.lives()[1] > first[1]


def test_a_dry_run_begins_none() -> None:
    client = Recording()
    reset_offsets(cast("BlockingZk", client), GROUP, lambda partitions: dict.fromkeys(partitions, 9), dry_run=True)
    assert paths.lives(GROUP) not in client.model.nodes


def test_an_import_begins_lives_of_its_partitions_and_replaces_junk() -> None:
    client = Recording()
    client.create(paths.lives(GROUP), b"")
    client.create(paths.lives(GROUP, "t"), b"junk")
    import_offsets(cast("BlockingZk", client), GROUP, {("t", 2): 7}, dry_run=False)
    assert client.lives().keys() == {2}


def test_the_lives_of_a_group_that_is_created_again_continue_above_its_generation() -> None:
    """In `lives._writes`, ignore the generation: a sink keeps its own offsets, and the operator's have no effect."""
    client = Recording()
    client.set(paths.generation(GROUP), b"4100")
    reset_offsets(cast("BlockingZk", client), GROUP, lambda asked: dict.fromkeys(asked, 9), dry_run=False)
    assert client.lives() == {0: 4101, 1: 4101}


def test_lives_of_a_group_that_was_never_served_are_above_those_before_a_restore() -> None:
    """In `lives._writes`, do not read `served`: sinks may have seen higher ones of the tree before."""
    client = Recording()
    client.set(paths.SERVED, b"7000000")
    client.set(paths.generation(GROUP), b"junk")
    reset_offsets(cast("BlockingZk", client), GROUP, lambda asked: dict.fromkeys(asked, 9), dry_run=False)
    assert min(client.lives().values()) > 7_000_000
