"""Reading groups from nodes that any program may have written."""

from __future__ import annotations

from typing import cast

from tests.support.zk_model import ZkModel
from zkrebalancer.observe import inspection
from zkrebalancer.protocol import paths
from zkrebalancer.protocol.calls import Call, Create, Delete, Done, ListChildren, Multi, Reply
from zkrebalancer.runtime.zk import BlockingZk


class Client:
    """The part of `BlockingZk` that `inspection` uses, on a model of ZooKeeper."""

    def __init__(self) -> None:
        self.model = ZkModel()
        self.vanishing = ""  # a group to delete right after the groups are listed

    def perform(self, call: Call) -> Reply:
        reply = self.model.perform(call)
        if self.vanishing and call == ListChildren(paths.GROUPS):
            self.model.perform(Multi((Delete(paths.group(self.vanishing)),)))
        return reply

    def perform_all(self, many: list[Call]) -> list[Reply]:
        return [self.perform(call) for call in many]

    def create(self, *created: str) -> None:
        assert isinstance(self.perform(Multi(tuple(Create(path) for path in created))), Done)


def names(client: Client) -> list[str]:
    return [report.name for report in inspection.read_groups(cast("BlockingZk", client))]


def with_groups(*groups: str) -> Client:
    client = Client()
    client.create(paths.CONSUMERS, paths.GROUPS, *(f"{paths.GROUPS}/{name}" for name in groups))
    return client


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
    assert len(report.problems) == 1  # partition 0 is empty
