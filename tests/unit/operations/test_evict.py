"""`zkrebalancer groups evict`, on a model of ZooKeeper with simulated coordinators."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from click.testing import Result

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from tests.unit.operations.group_commands import document, on, run
from zkrebalancer.operations import audit
from zkrebalancer.operations.evict import NoSuchConsumerError, NotEvictableError
from zkrebalancer.protocol import last_change, paths
from zkrebalancer.protocol.calls import Delete, Multi, Operation, SetContent
from zkrebalancer.protocol.errors import ZooKeeperRefusedError
from zkrebalancer.protocol.settings import GroupSettings

LONGER_THAN_A_LEASE_MS = 30_000


class Command:
    """Runs `groups evict` on a group with the consumers a-1 and b-1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world: World = world_with(GroupSettings(), "a", "b")
        self.client = on(monkeypatch, self.world)

    def run(self, *arguments: str) -> Result:
        return run("evict", GROUP, *arguments)

    def json(self, *arguments: str) -> dict[str, Any]:
        return document("evict", GROUP, *arguments)

    def owned_count(self) -> int:
        """Return how many of the four partitions have an owner; the evicted agent may have come back."""
        return sum(map(len, self.world.owned().values()))

    def before_the_eviction(self, operation: Operation) -> None:
        """Let another program write just before the command does."""

        def write() -> None:
            self.world.zk.perform(Multi((operation,)))

        self.client.meanwhile = write

    def is_registered(self, consumer: str) -> bool:
        return paths.ids(GROUP, consumer) in self.world.zk.nodes


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(monkeypatch)


def test_others_get_the_partitions_after_the_lease(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    foreseen = command.json("a-1", "--dry-run")
    assert (foreseen["evicted"], foreseen["has_leader"], command.is_registered("a-1")) == (False, True, True)
    assert command.run("a-1", "--dry-run").stdout.endswith("no consumer was evicted\n")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert command.json("a-1", "--yes") == {**foreseen, "evicted": True}
    (line,) = caplog.messages
    assert line.startswith("audit: ")
    assert line.endswith(f" evicted a-1 from group {GROUP}")
    settings = command.world.zk.nodes[paths.group(GROUP)]
    named = last_change.read(settings.content, settings.version)
    assert named is not None
    assert (named.what, line) == ("evicted a-1", f"audit: {named.by} evicted a-1 from group {GROUP}")
    command.world.pass_time(1_000)
    assert paths.evicted(GROUP, "a-1") in command.world.zk.nodes
    assert "a-1" not in command.world.owned()
    assert command.owned_count() == 2
    command.world.pass_time(LONGER_THAN_A_LEASE_MS)
    assert command.owned_count() == 4


def test_only_with_a_yes(command: Command) -> None:
    """Without a terminal, and with `--json`, nobody can be asked."""
    for options in ((), ("--json",)):
        refused = command.run("a-1", *options)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "confirm with --yes" in refused.stderr
    assert command.is_registered("a-1")


def test_without_a_leader_the_next_one_evicts(command: Command) -> None:
    """The command, or the leader, may have died at any step."""
    command.world.kill_coordinator(command.world.leader())
    command.world.pass_time(LONGER_THAN_A_LEASE_MS)
    result = command.run("a-1", "--yes")
    assert "note: no coordinator leads; the consumer stays until one does" in result.stderr
    command.world.add_coordinator()
    command.world.pass_time(2 * LONGER_THAN_A_LEASE_MS)
    assert "a-1" not in command.world.owned()
    assert command.owned_count() == 4


def test_a_consumer_with_foreign_bytes_is_evicted(command: Command) -> None:
    """In `evict`, take the lease of a registration that cannot be read."""
    command.client.set(paths.ids(GROUP, "a-1"), b"\xff{")
    assert command.json("a-1", "--yes")["lease_ms"] is None
    assert not command.is_registered("a-1")


def test_who_is_not_there_is_not_evicted(command: Command) -> None:
    refused = command.run("c-1", "--yes")
    assert isinstance(refused.exception, NoSuchConsumerError)
    assert str(refused.exception) == f"group {GROUP} has no consumer c-1; it has a-1, b-1"


@pytest.mark.parametrize("node", [paths.ids(GROUP, "a-1"), paths.owners(GROUP, "a-1")])
def test_a_membership_that_ends_meanwhile_is_left_alone(command: Command, node: str) -> None:
    """In `evict`, delete without the check: without both nodes, nobody would wait for the lease."""
    command.before_the_eviction(Delete(node))
    assert isinstance(command.run("a-1", "--yes").exception, NotEvictableError)
    assert command.is_registered("a-1") == (node != paths.ids(GROUP, "a-1"))


def test_a_change_meanwhile_is_no_obstacle(command: Command) -> None:
    owners = paths.owners(GROUP, "a-1")
    content = command.world.zk.nodes[owners].content
    command.before_the_eviction(SetContent(owners, content))
    assert command.json("a-1", "--yes")["evicted"]


def test_without_the_right_nothing_happens(command: Command, caplog: pytest.LogCaptureFixture) -> None:
    command.world.zk.identity = str
    command.world.zk.denied.add(("0", paths.ids(GROUP), Right.DELETE))
    assert isinstance(command.run("a-1", "--yes").exception, ZooKeeperRefusedError)
    assert command.is_registered("a-1")
    assert not caplog.records


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def nameless() -> str:
        raise KeyError(1234)

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    audit.record("evicted a-1 from group g")
    assert caplog.messages[0].startswith("audit: 1234@")
