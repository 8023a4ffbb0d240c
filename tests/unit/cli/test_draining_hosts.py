"""`groups drain --host`: one group that cannot be changed keeps the host from being drained in no other group."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from tests.support.zk_model import Right
from tests.unit.cli.test_group_commands import Commands, commands
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.cli.groups import views
from zkrebalancer.cli.groups.draining import LeftOutError
from zkrebalancer.operations.group_lifecycle import create_group
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Call, Get, Reply
from zkrebalancer.protocol.registration import STATIC, Registration, encode
from zkrebalancer.runtime.zk import BlockingZk

__all__ = ["commands"]

GROUPS = ("a", "bad", "c")


@pytest.fixture
def zk(commands: Commands) -> ModelClient:
    """Return the client of groups with one member each on the host b1; the settings of `bad` cannot be read."""
    client = ModelClient(commands.world.zk)
    for group in GROUPS:
        create_group(cast("BlockingZk", client), group, None)
        client.create(paths.ids(group, "m1"), encode(Registration(STATIC, {"t": 1}, "1", "c", "b1", 10_000)))
    client.set(paths.group("bad"), b"{garbage")
    return client


def drained_in(commands: Commands) -> list[str]:
    nodes = commands.world.zk.nodes
    contents = {group: nodes[paths.group(group)].content for group in GROUPS if group != "bad"}
    return [group for group, content in contents.items() if settings.decode(content).drained_hosts == ("b1",)]


def test_a_host_is_drained_in_all_other_groups_and_the_one_is_named(commands: Commands, zk: ModelClient) -> None:
    """In `_in_every_group`, let an error of one group end the command; in `read_settings`, do not name the node."""
    result = commands.run("drain", "--host", "b1", "--yes")
    assert result.stdout.splitlines()[-1] == "b1 is drained in a, c"
    assert isinstance(result.exception, LeftOutError)
    assert str(result.exception).startswith("left out: group bad (/consumers/groups/bad: group settings: not JSON")
    assert drained_in(commands) == ["a", "c"]
    result = commands.run("undrain", "--host", "b1", "--yes", "--json")
    assert [(one["group"], one["applied"]) for one in json.loads(result.stdout)["groups"]] == [("a", True), ("c", True)]
    assert paths.group("bad") in str(result.exception)
    assert drained_in(commands) == []
    zk.set(paths.group("bad"), b"")
    assert commands.run("drain", "--host", "b1", "--yes").exception is None


def test_each_group_that_cannot_be_changed_is_named(commands: Commands, zk: ModelClient) -> None:
    """In `_noted`, leave out the group: an error about its new settings does not say whose they are."""
    hosts = tuple(f"h{number:04d}" for number in range(settings.MAX_DRAINED))
    zk.set(paths.group("a"), settings.encode(settings.GroupSettings(drained_hosts=hosts)))
    result = commands.run("drain", "--host", "b1", "--yes")
    assert result.stdout.splitlines()[-1] == "b1 is drained in c"
    assert "group a (group settings: drained_hosts has 1001 names" in str(result.exception)
    assert "; group bad (/consumers/groups/bad: " in str(result.exception)


def test_a_group_that_is_undrained_meanwhile_keeps_no_other_from_it(
    commands: Commands, zk: ModelClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_noted`, note `NotDrainedError`, or let it end the command."""
    zk.set(paths.group("c"), settings.encode(settings.GroupSettings(drained_hosts=("b1",))))
    monkeypatch.setattr("zkrebalancer.operations.drain.groups_of_host", lambda *_args, **_named: (["a", "c"], []))
    result = commands.run("undrain", "--host", "b1", "--yes")
    assert result.exception is None
    assert result.stdout.splitlines()[-1] == "b1 is no longer drained in c"


def test_a_group_that_may_not_be_written_keeps_no_other_from_being_drained(commands: Commands, zk: ModelClient) -> None:
    """In `_in_every_group`, let an error of one group end the command."""
    zk.set(paths.group("bad"), b"")
    commands.world.zk.denied.add(("", paths.group("a"), Right.WRITE))
    result = commands.run("drain", "--host", "b1", "--yes")
    assert result.stdout.splitlines()[-1] == "b1 is drained in bad, c"
    assert paths.group("a") in str(result.exception)
    assert drained_in(commands) == ["c"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"version":1,"strategy":"later"}', "strategy 'later' is unknown"),
        (b'{"version":1,"strategy":"balanced","options":{"later":1}}', "options.later: is unknown"),
    ],
)
def test_a_group_with_settings_of_a_newer_release_keeps_no_other_from_being_drained(
    commands: Commands, zk: ModelClient, content: bytes, why: str
) -> None:
    """In `_OF_ONE_GROUP`, leave out what a plan needs: the error would not even say whose strategy it is."""
    zk.set(paths.group("bad"), content)
    result = commands.run("drain", "--host", "b1", "--yes")
    assert result.stdout.splitlines()[-1] == "b1 is drained in a, c"
    assert str(result.exception).startswith(f"left out: group bad ({why}")
    assert drained_in(commands) == ["a", "c"]


def test_topics_are_read_once_for_all_groups(
    commands: Commands, zk: ModelClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_in_every_group`, let each group read them: with thousands of both, a drain takes minutes."""
    read: list[str] = []
    perform = commands.world.zk.perform

    def noted(call: Call, *arguments: Any) -> Reply:
        read.append(call.path if isinstance(call, Get) else "")
        return perform(call, *arguments)

    monkeypatch.setattr(zk.model, "perform", noted)
    commands.run("drain", "--host", "b1", "--yes")
    assert read.count(paths.topic("t")) == 1


def test_a_group_that_has_no_member_on_the_host_is_told_so(commands: Commands, zk: ModelClient) -> None:
    """In `drain`, say nothing: with a wrong name, the host is taken down undrained."""
    result = commands.run("drain", "a", "--host", "b1.example", "--yes")
    assert "note: group a has no member on b1.example now; members are on b1\n" in result.stderr
    assert "note: group" not in commands.run("drain", "a", "--host", "b1", "--yes").stderr
    zk.set(paths.ids("c", "m1"), b"{garbage")
    result = commands.run("drain", "--host", "b1", "--yes")
    assert "group c (members that cannot be read may be there: m1)" in str(result.exception)


def test_a_list_names_the_groups_of_which_something_cannot_be_read(
    commands: Commands, zk: ModelClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_list_view`, leave their problems out: a group seems to own less than it does."""
    commands.world.zk.denied.add(("", paths.ids("a", "m1"), Right.READ))
    shown = commands.run("list").stderr.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in shown] == ["group a", "group bad"]
    assert paths.ids("a", "m1") in shown[0]
    assert shown[0].endswith("; `groups describe a` shows all")
    monkeypatch.setattr(views, "MAX_PROBLEMS_SHOWN", 1)
    assert commands.run("list").stderr.splitlines() == [shown[0], "problem: the same for 1 more groups"]
    zk.set(paths.group("bad"), b"")
    assert commands.run("list").stderr.splitlines() == [shown[0]]
