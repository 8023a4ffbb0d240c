"""`zkrebalancer groups`: `freeze`, `unfreeze`, `create`, `delete`, and what `list` shows, on a model of ZooKeeper."""

from __future__ import annotations

import getpass
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from tests.support.groups import world_with
from tests.support.secured_model import COORDINATOR
from tests.support.world import GROUP, World
from tests.support.zk_model import Right
from tests.unit.operations.group_commands import document, on, run
from tests.unit.operations.model_client import ModelClient
from zkrebalancer.cli.groups import groups, offsets
from zkrebalancer.protocol import obstacles, paths, settings
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.cluster_nodes import NOBODY, CoordinatorAddress, encode_coordinator
from zkrebalancer.protocol.errors import ConfigurationError, RebalancerError
from zkrebalancer.protocol.obstacles import PublishedObstacle
from zkrebalancer.protocol.settings import GroupSettings


class Commands:
    """Runs `zkrebalancer groups` on the ZooKeeper of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def run(self, *arguments: str) -> Result:
        return run(*arguments)

    def json(self, *arguments: str) -> dict[str, Any]:
        return document(*arguments)

    def is_frozen(self) -> bool:
        return settings.decode(self.world.zk.nodes[paths.group(GROUP)].content).frozen


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    world = world_with(partitions=4)
    on(monkeypatch, world)
    return Commands(world)


def test_a_group_is_frozen_and_listed_as_frozen(commands: Commands) -> None:
    assert ", frozen" not in commands.run("list").stdout
    assert commands.json("list")["groups"][0]["frozen"] is False
    assert commands.run("freeze", GROUP).stdout.splitlines()[-1] == "g is frozen"
    assert commands.is_frozen()
    assert "empty, frozen" in commands.run("list").stdout
    assert commands.json("list")["groups"][0]["frozen"] is True
    assert commands.run("freeze", GROUP).stdout.splitlines()[-1] == "g already has these settings"


def test_what_a_freeze_has_held_back_is_shown_before_it_moves(commands: Commands) -> None:
    commands.world.add_agent("a")
    commands.world.pass_time(1_000)
    assert commands.json("freeze", GROUP)["changes"] == {"frozen": {"before": False, "after": True}}
    commands.world.pass_time(1_000)
    commands.world.add_agent("b")
    commands.world.pass_time(1_000)
    assert commands.world.owned()["b-1"] == {}

    foreseen = commands.json("unfreeze", GROUP, "--dry-run")
    assert (foreseen["applied"], len(foreseen["plan"]["moves"])) == (False, 2)
    assert commands.is_frozen()
    assert commands.run("unfreeze", GROUP, "--yes").stdout.splitlines()[-1] == "g is not frozen"
    commands.world.pass_time(1_000)
    assert {move["partition"] for move in foreseen["plan"]["moves"]} == {n for _t, n in commands.world.owned()["b-1"]}


def test_partitions_are_pinned_and_unpinned(commands: Commands, caplog: pytest.LogCaptureFixture) -> None:
    """In `pin`, forget what is pinned; in `unpin`, remove the topic; without `balanced`, write."""
    refused = commands.run("pin", GROUP, "t", "0", "--yes")
    assert isinstance(refused.exception, ConfigurationError)
    assert "the strategy sticky has no options" in str(refused.exception)
    commands.run("configure", GROUP, "strategy=balanced")

    def pinned() -> object:
        return settings.decode(commands.world.zk.nodes[paths.group(GROUP)].content).options.get("pinned")

    assert commands.json("pin", GROUP, "t", "0", "--dry-run")["applied"] is False
    assert pinned() is None
    commands.run("pin", GROUP, "t", "0", "3", "--yes")
    commands.run("pin", GROUP, "u", "1", "--yes")
    commands.run("pin", GROUP, "t", "1", "--yes")
    assert pinned() == {"t": [0, 1, 3], "u": [1]}
    assert caplog.messages[-1].endswith(
        'changed options from {"pinned": {"t": [0, 3], "u": [1]}} to {"pinned": {"t": [0, 1, 3], "u": [1]}}, in group g'
    )
    commands.run("unpin", GROUP, "t", "0", "1", "--yes")
    assert pinned() == {"t": [3], "u": [1]}
    assert commands.run("unpin", GROUP, "t", "0").stdout.splitlines()[-1] == "g already has these settings"
    commands.run("unpin", GROUP, "t", "3", "--yes")
    commands.run("unpin", GROUP, "u", "1", "--yes")
    assert pinned() is None
    assert commands.run("pin", GROUP, "t").exit_code == 2


def test_a_group_is_created_with_settings(commands: Commands) -> None:
    created = commands.json("create", "new", "strategy=range", "frozen=true")
    assert (created["created"], created["settings"]["strategy"]) == (True, "range")
    assert settings.decode(commands.world.zk.nodes[paths.group("new")].content).frozen
    assert commands.run("create", "plain").stdout == "plain is created\n"
    assert settings.decode(commands.world.zk.nodes[paths.group("plain")].content) == GroupSettings()
    refused = commands.run("create", "other", "nonsense=1")
    assert isinstance(refused.exception, ConfigurationError)
    assert paths.group("other") not in commands.world.zk.nodes


def test_a_group_is_deleted_only_with_a_yes(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, and with `--json`, nobody can be asked; operators may not delete groups."""
    monkeypatch.setattr(ModelClient, "principal", COORDINATOR)
    offsets = (Create(paths.offsets(GROUP, "t")), Create(paths.offsets(GROUP, "t", 0), b"5"))
    commands.world.zk.perform(Multi(offsets))
    for options in ((), ("--json",)):
        refused = commands.run("delete", GROUP, *options)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "cannot be restored; confirm with --yes" in refused.stderr
    told = commands.run("delete", GROUP, "--dry-run").stdout
    assert "1 stored offsets, which `groups offsets restore` cannot bring back" in told
    assert told.endswith("nothing was deleted\n")
    assert commands.json("delete", GROUP, "--dry-run")["deleted"] is False
    assert paths.group(GROUP) in commands.world.zk.nodes
    deleted = commands.json("delete", GROUP, "--yes")
    assert (deleted["deleted"], deleted["offsets"]) == (True, 1)
    assert paths.group(GROUP) not in commands.world.zk.nodes


@pytest.mark.parametrize(("command", "code"), [("freeze", 1), ("unfreeze", 1), ("delete", 1), ("create", 2)])
def test_a_refusal_has_its_exit_code(commands: Commands, command: str, code: int) -> None:
    options = ["--yes"] if command in {"unfreeze", "delete"} else []
    name = "a/b" if command == "create" else "unknown"
    refused = commands.run(command, name, *options).exception
    assert isinstance(refused, RebalancerError)
    assert refused.exit_code == code


def test_past_rebalances_are_shown(commands: Commands) -> None:
    for client in "ab":
        commands.world.add_agent(client)
        commands.world.pass_time(3_000)
    shown = commands.run("describe", GROUP, "--history").stdout
    assert all(text in shown for text in ("member-joined a-1", "member-joined b-1", "2 of 4", "finished"))
    assert len(commands.json("describe", GROUP, "--history")["history"]) == 2
    (last,) = commands.json("describe", GROUP, "--history", "1")["history"]
    assert (last["generation"], last["reasons"]) == (2, [{"kind": "member-joined", "subject": "b-1", "by": None}])
    assert "history" not in commands.json("describe", GROUP)
    assert commands.run("describe", GROUP, "--history", "0").exit_code == 2


def test_a_history_that_cannot_be_read_is_a_problem(commands: Commands) -> None:
    commands.world.zk.perform(Multi((Create(paths.history(GROUP), b'{"version":2}'),)))
    result = commands.run("describe", GROUP, "--history")
    assert (result.exit_code, "problem: history: version 2 is newer" in result.stderr) == (0, True)
    document = commands.json("describe", GROUP, "--history")
    assert (document["history"], document["problem_counts"]) == ([], {"history": 1})


@pytest.mark.parametrize("arguments", [("list",), ("describe", GROUP), ("describe", GROUP, "--state")])
def test_a_view_is_shown_again_until_an_interrupt(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """In `watching.show`, end at an error; show the former view; forget the error."""
    rounds = iter(range(3))

    def sleep(_seconds: float) -> None:
        number = next(rounds, None)
        if number is None:
            raise KeyboardInterrupt
        (denied.add if number == 1 else denied.discard)(("", paths.COORDINATOR, Right.READ))

    denied = commands.world.zk.denied
    monkeypatch.setattr("gevent.sleep", sleep)
    result = commands.run(*arguments, "--watch")
    assert result.exit_code == 0
    headings = [text for text in result.stdout.splitlines() if text.endswith("Ctrl-C ends")]
    errors = [text for text in result.stdout.splitlines() if text.startswith("not up to date: ")]
    assert (len(headings), len(errors)) == (4, 1)
    assert commands.run(*arguments, "--watch", "--json").exit_code == 2


def test_members_are_shown_with_rack_and_capacity(commands: Commands) -> None:
    """In `members_table`, leave out a column, or exchange two."""
    commands.world.add_agent("a", rack="r1", capacity=2.5)
    commands.world.add_agent("b")
    commands.world.pass_time(1_000)
    lines = commands.run("describe", GROUP, "--members").stdout.splitlines()
    (heading,) = [line for line in lines if "rack" in line and "capacity" in line]
    first, second = (line for line in lines if line.lstrip("│| ").startswith(("a-1", "b-1")))
    for title, values in {"rack": ("r1", "-"), "capacity": ("2.5", "1")}.items():
        at = heading.index(title)
        assert (first[at:].split()[0], second[at:].split()[0]) == values, title
    shown = [one["registration"] for one in commands.json("describe", GROUP)["consumers"]]
    assert [(one["rack"], one["capacity"]) for one in shown] == [("r1", 2.5), (None, 1.0)]


def test_a_host_is_drained_in_every_group_that_has_members_there(commands: Commands) -> None:
    commands.world.add_agent("a", host="h1", rack="r1", capacity=2.0)
    commands.world.add_agent("b", host="h2")
    commands.world.pass_time(1_000)
    refused = commands.run("drain", "--host", "h3", "--yes")
    assert "no group has members on h3; members are on h1, h2" in str(refused.exception)

    shown = commands.json("drain", "--host", "h1", "--dry-run")
    assert [(one["group"], one["applied"], len(one["plan"]["moves"])) for one in shown["groups"]] == [(GROUP, False, 2)]
    assert commands.run("drain", "--host", "h1", "--yes").stdout.splitlines()[-1] == "h1 is drained in g"
    assert commands.run("drain", "--host", "h1", "--yes").stdout.splitlines()[-1] == "h1 is drained in no further group"
    commands.world.pass_time(1_000)
    assert commands.world.owned()["a-1"] == {}
    rows = commands.run("describe", GROUP, "--members").stdout
    assert all(text in rows for text in ("r1", "2, drained"))
    assert [one["drained"] for one in commands.json("describe", GROUP)["consumers"]] == [True, False]
    assert "host h1 is drained" in commands.run("describe", GROUP, "--state").stdout

    assert "no group drains the host h2" in str(commands.run("undrain", "--host", "h2").exception)
    assert len(commands.json("undrain", "--host", "h1")["groups"][0]["plan"]["moves"]) == 2
    commands.world.pass_time(1_000)
    assert len(commands.world.owned()["a-1"]) == 2


def test_members_are_drained_by_name_or_instance_and_names_of_the_gone_are_forgotten(commands: Commands) -> None:
    world = commands.world
    world.add_agent("a", instance_id="pod-1")
    world.add_agent("b")
    world.pass_time(1_000)
    assert "has no member c-1; it has a-1, b-1, pod-1" in str(commands.run("drain", GROUP, "c-1").exception)
    assert commands.json("drain", GROUP, "b-1")["settings"]["drained_members"] == ["b-1"]
    assert commands.json("undrain", GROUP)["settings"]["drained_members"] == []
    world.kill_agent(world.agents["b"])
    ended = "b-0b0d7d4e-7b0c-4c5a-9d3e-2f1a0c9b8d7e"  # a name as agents make them
    world.configure(settings.encode(GroupSettings(drained_members=(ended,))))
    world.pass_time(20_000)
    shown = commands.json("drain", GROUP, "pod-1")
    assert shown["settings"]["drained_members"] == ["pod-1"]
    assert shown["plan"]["notes"] == ["a-1 is drained, and keeps 4 partitions: no other member can get them"]
    explained = commands.run("explain", GROUP, "t", "0")
    assert "keeps it there: a-1 is drained, but no other member can get it" in explained.stdout
    assert "does not drain b-1; it drains the members: pod-1;" in str(commands.run("undrain", GROUP, "b-1").exception)
    assert commands.run("undrain", GROUP, "--yes").stdout.splitlines()[-1] == "g is no longer draining these members"


def test_a_static_member_that_is_gone_for_long_stays_drained(commands: Commands) -> None:
    """In `drain.draining`, keep only members that are known."""
    world = commands.world
    world.add_agent("a")
    world.configure(settings.encode(GroupSettings(drained_members=("pod-1",))))
    world.pass_time(1_000)
    assert commands.json("drain", GROUP, "a-1")["settings"]["drained_members"] == ["a-1", "pod-1"]


def test_a_second_drain_of_a_host_does_not_end_the_first(commands: Commands) -> None:
    """In `drain.draining_host`, keep the last host alone."""
    for name, host in (("a", "h1"), ("b", "h2"), ("c", "h3")):
        commands.world.add_agent(name, host=host)
    commands.world.pass_time(1_000)
    for host in ("h2", "h1"):
        commands.json("drain", "--host", host)
    assert commands.json("describe", GROUP)["settings"]["drained_hosts"] == ["h1", "h2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain",),
        ("drain", GROUP),
        ("drain", GROUP, "a", "--host", "h"),
        ("undrain",),
        ("undrain", GROUP, "a", "--host", "h"),
    ],
)
def test_a_drain_names_members_or_a_host(commands: Commands, arguments: tuple[str, ...]) -> None:
    refused = commands.run(*arguments)
    assert refused.exit_code == 2
    assert "--host" in refused.stderr


def test_a_freeze_may_end_by_itself_and_a_later_one_does_not(commands: Commands) -> None:
    world = commands.world
    begun_ms = time.time() * 1_000
    frozen = commands.json("freeze", GROUP, "--for", "2h")["settings"]
    assert begun_ms + 7_200_000 <= frozen["frozen_until_ms"] + 1 <= time.time() * 1_000 + 7_200_001
    (obstacle,) = [one for one in commands.json("describe", GROUP)["obstacles"] if one["kind"] == "frozen"]
    assert obstacle["until_ms"] == frozen["frozen_until_ms"]
    assert "frozen until 2" in commands.run("describe", GROUP, "--state").stdout
    world.pass_time(1_000)
    assert commands.json("freeze", GROUP)["settings"]["frozen_until_ms"] == 0
    commands.json("freeze", GROUP, "--for", "30d")
    assert commands.json("configure", GROUP, "frozen=true")["settings"]["frozen_until_ms"] == 0
    commands.json("freeze", GROUP, "--for", "90m")
    assert commands.json("unfreeze", GROUP)["settings"]["frozen_until_ms"] == 0


@pytest.mark.parametrize("text", ["2", "0h", "-1h", "2 h", "31d", "1w", "h", "9999999d"])
def test_what_is_no_time_for_a_freeze(commands: Commands, text: str) -> None:
    refused = commands.run("freeze", GROUP, "--for", text)
    assert (refused.exit_code, commands.is_frozen()) == (2, False)
    assert "--for" in refused.stderr


def test_a_plan_that_waits_is_shown_and_approved(commands: Commands) -> None:
    world = commands.world
    world.add_agent("a")
    world.pass_time(1_000)
    assert "no plan waits" in str(commands.run("resume", GROUP).exception)
    commands.json("configure", GROUP, "approve_moves_above=1")
    world.pass_time(1_000)
    world.add_agent("b")
    world.pass_time(3_000)
    assert "stable, unapproved" in commands.run("list").stdout
    assert [one["unapproved"] for one in commands.json("list")["groups"]] == [True]
    state = commands.run("describe", GROUP, "--state").stdout
    assert "unapproved: a plan waits for `groups resume`: it would move 2 partitions" in state
    note = "2 partitions would leave their members, more than approve_moves_above (1)"
    assert note in commands.json("plan", GROUP)["notes"][0]

    stale = obstacles.encode(1, [PublishedObstacle(GROUP, obstacles.UNAPPROVED, "", moves=2, generation=0)])
    nodes, path = world.zk.nodes, paths.COORDINATOR_OBSTACLES
    present = nodes[path]
    nodes[path] = replace(present, content=stale)
    refused = commands.run("resume", GROUP, "--yes")
    assert "has had another plan since" in str(refused.exception), "in `approval`, compare no generation"
    nodes[path] = replace(present, content=obstacles.encode(1, [], 7))
    refused = commands.run("resume", GROUP, "--yes")
    assert "7 more obstacles are not published" in str(refused.exception)
    nodes[path] = present

    foreseen = commands.json("resume", GROUP, "--dry-run")
    assert (foreseen["applied"], len(foreseen["plan"]["moves"]), foreseen["plan"]["notes"]) == (False, 2, [])
    world.pass_time(1_000)
    assert world.owned()["b-1"] == {}
    assert commands.run("resume", GROUP, "--yes").stdout.splitlines()[-1] == "g is resumed: 2 moves are approved"
    world.pass_time(3_000)
    assert len(world.owned()["b-1"]) == 2
    assert "unapproved" not in commands.run("list").stdout
    assert "no plan waits" in str(commands.run("resume", GROUP).exception)


MOVES = {"configure", "drain", "freeze", "pin", "rebalance", "resume", "undrain", "unfreeze", "unpin"}
LOSES = {"delete", "evict", "reset-offsets", "offsets import", "offsets restore"}


def test_what_moves_or_loses_something_can_be_tried_and_confirmed() -> None:
    """Remove `--dry-run` from a command: it is missing here."""
    commands = {name: each for name, each in groups.commands.items() if name != "offsets"}
    offsets = groups.commands["offsets"]
    assert isinstance(offsets, click.Group)
    commands |= {f"offsets {name}": each for name, each in offsets.commands.items()}
    given = {name: {option.name for option in each.params} for name, each in commands.items()}
    assert {name for name, options in given.items() if {"dry_run", "yes"} <= options} == MOVES | LOSES
    assert all("as_json" in options for options in given.values())


def test_a_check_is_requested_after_its_plan_was_shown(commands: Commands) -> None:
    """In `rebalance`, write in spite of `--dry-run`."""
    before = commands.world.zk.nodes[paths.group(GROUP)]
    tried = commands.json("rebalance", GROUP, "--dry-run")
    assert (tried["requested"], tried["plan"]["moves"]) == (False, [])
    assert commands.run("rebalance", GROUP, "--dry-run").stdout.splitlines()[-1] == "nothing was requested"
    assert commands.world.zk.nodes[paths.group(GROUP)] == before
    assert commands.json("rebalance", GROUP)["requested"]
    shown = commands.json("describe", GROUP, "--state")["last_change"]
    assert (shown["by"], shown["what"]) == (f"{getpass.getuser()}@{platform.node()}", "requested a check")
    assert "requested a check" in commands.run("describe", GROUP, "--state").stdout


def test_a_freeze_can_be_tried(commands: Commands) -> None:
    assert commands.json("freeze", GROUP, "--dry-run")["changes"]["frozen"] == {"before": False, "after": True}
    assert not commands.is_frozen()
    assert commands.json("describe", GROUP, "--state")["last_change"] is None


def test_an_export_does_not_replace_another_one(commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text("kept")
    refused = commands.run("offsets", "export", GROUP, "--out", str(file))
    assert str(refused.exception) == f"{file} exists already; replace it with --yes"
    assert file.read_text() == "kept"
    assert commands.run("offsets", "export", GROUP, "--out", str(file), "--yes").exit_code == 0
    assert file.read_text() == "topic,partition,offset\n"
    assert [*tmp_path.iterdir()] == [file]


def test_an_export_that_is_interrupted_leaves_the_former_file(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_write_whole`, write the file itself: of an offset 4711, 47 may be left, which an import believes."""
    file = tmp_path / "offsets.csv"
    file.write_text("kept")

    def interrupted(path: Path, text: str) -> None:
        path.write_bytes(text[:-1].encode())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", interrupted)
        assert commands.run("offsets", "export", GROUP, "--out", str(file), "--yes").exit_code != 0
    assert file.read_text() == "kept"
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_without_an_end_is_not_read_for_ever(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_read_file`, ask for the size first: a device has none."""
    monkeypatch.setattr(offsets, "MAX_FILE_BYTES", 1_000)
    refused = commands.run("offsets", "import", GROUP, "/dev/zero")
    assert str(refused.exception) == "/dev/zero: more than 1,000 bytes"


def test_offsets_of_any_kind_of_line_are_imported(commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_bytes("\ufefft,0,5\r\nt,1,6\rt,2,7\n".encode())
    rows = commands.json("offsets", "import", GROUP, str(file))["offsets"]
    assert [(row["partition"], row["after"]) for row in rows] == [(0, 5), (1, 6), (2, 7)]


def test_the_state_of_a_group_names_a_restore_that_is_not_complete(commands: Commands) -> None:
    """In `inspection.read_obstacles`, say only that nobody leads."""
    world = commands.world
    world.kill_coordinator(world.leader())
    world.pass_time(10_000)
    nobody = encode_coordinator(CoordinatorAddress(NOBODY, "h (restore)", 0, None, "0"))
    world.zk.perform(Multi((Create(paths.COORDINATOR, nobody), Create(paths.RESTORE))))
    text = "h (restore) runs, or was interrupted: nobody leads until it is complete"
    assert text in " ".join(commands.run("describe", GROUP, "--state").stdout.split())
    found = commands.json("describe", GROUP, "--state")["obstacles"]
    assert [one["kind"] for one in found][:2] == ["restore", "no-coordinator"]
