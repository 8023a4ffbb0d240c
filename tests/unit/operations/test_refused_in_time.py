"""Operations that find something wrong say what and where, and leave what others have written meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.assignment.loads import UNKNOWN
from zkrebalancer.operations import kafka_offsets, loads, offset_file
from zkrebalancer.operations.backup_file import BackupFileError, Node, read, write
from zkrebalancer.operations.configure import read_settings
from zkrebalancer.operations.kafka_offsets import StoredInKafka
from zkrebalancer.operations.move_offsets import OffsetsOutsideLogError, refuse_outside_log
from zkrebalancer.operations.offset_file import OffsetFileError
from zkrebalancer.operations.restore_offsets import restore_offsets
from zkrebalancer.operations.starts_pause import OffsetsRefusedError, starts_paused
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.errors import InvalidNameError
from zkrebalancer.protocol.fields import TopicPartition
from zkrebalancer.protocol.settings import GroupSettings
from zkrebalancer.runtime.zk import BlockingZk

KAFKA = {"bootstrap.servers": "b:1"}


def zk(client: ModelClient) -> BlockingZk:
    return cast("BlockingZk", client)


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ({("t", 0): 3, ("t", 1): 90}, None),
        ({("t", 0): 91}, "1 offsets are outside of Kafka's log, for example 91 for t/0, which has 3 to 90"),
        ({("u", 1): 2, ("t", 7): 2, ("t", 0): 4}, "2 offsets are outside of Kafka's log, for example 2 for t/7"),
        ({}, None),
    ],
)
def test_offsets_outside_of_the_log_are_refused_with_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch, offsets: dict[TopicPartition, int], told: str | None
) -> None:
    monkeypatch.setattr(kafka_offsets, "log_ends", lambda _kafka, asked: dict.fromkeys(asked, (3, 90)))
    refuse_outside_log(None, offsets)
    if told is None:
        refuse_outside_log(KAFKA, offsets)
        return
    with pytest.raises(OffsetsOutsideLogError) as raised:
        refuse_outside_log(KAFKA, offsets)
    assert str(raised.value).startswith(told)


def test_a_backup_that_was_cut_off_is_refused_with_the_line_that_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    write(file, [Node(paths.CONSUMERS, b""), Node(paths.GROUPS, b"x")], 1)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(BackupFileError) as raised:
        list(read(file))
    assert str(raised.value) == f"{file}: line 4: the end is missing"


def test_what_is_wrong_is_named_by_its_kind() -> None:
    with pytest.raises(InvalidNameError, match=r"^group name 'a/b' may contain only"):
        read_settings(zk(ModelClient()), "a/b")
    with pytest.raises(OffsetFileError, match=r"^offsets: version 2 is newer"):
        offset_file.read('{"version":2,"offsets":[]}')


def test_committed_offsets_are_those_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    in_kafka = {"g": {("t", 0): 5}}
    monkeypatch.setattr(kafka_offsets, "known_log_ends", lambda _kafka, _partitions: {})
    monkeypatch.setattr(StoredInKafka, "read", lambda self: dict(in_kafka.get(self._group, {})))
    found = loads.read_loads(zk(ModelClient()), KAFKA, "g", {"t": 2})
    assert found.committed["t"].tolist() == [5, UNKNOWN]


def test_a_restore_of_offsets_refuses_a_group_with_consumers_before_it_looks_for_copies() -> None:
    world = world_with(GroupSettings(), "a")
    with pytest.raises(OffsetsRefusedError, match=rf"^group {GROUP} has consumers \(a-1\); stop them first$"):
        restore_offsets(zk(ModelClient(world.zk)), GROUP, (), (), dry_run=True)


def test_the_end_of_a_pause_leaves_what_others_have_just_set() -> None:
    """In `_resume`, write whatever version is there; the coordinator ends such a pause later."""
    client = ModelClient(world_with().zk)
    changed = settings.encode(GroupSettings(mode="eager"))
    with starts_paused(zk(client), GROUP, "did something"):
        client.meanwhile = lambda: client.set(paths.group(GROUP), changed)
    assert client.model.nodes[paths.group(GROUP)].content == changed
