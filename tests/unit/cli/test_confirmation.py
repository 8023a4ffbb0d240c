"""Commands ask before something moves or is lost, on a terminal; without one, they need `--yes` or go on."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace

import click.testing
import pytest

from tests.support.groups import world_with
from tests.support.world import GROUP, World
from tests.unit.operations.group_commands import on, run
from zkrebalancer.cli import questions
from zkrebalancer.operations.starts_pause import OffsetsRefusedError
from zkrebalancer.protocol import paths, settings
from zkrebalancer.protocol.calls import Create, Multi
from zkrebalancer.protocol.errors import RebalancerError
from zkrebalancer.protocol.last_change import MAX_WHAT
from zkrebalancer.region.documents import Settings, encode_settings


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the input of commands be a terminal."""
    monkeypatch.setattr(click.testing._NamedTextIOWrapper, "isatty", lambda _self: True, raising=False)


def stored(world: World) -> bytes:
    return world.zk.nodes[paths.offsets(GROUP, "t", 0)].content


@pytest.mark.parametrize(("answer", "after"), [("n\n", b"5"), ("y\n", b"9")])
@pytest.mark.usefixtures("terminal")
def test_a_reset_is_shown_and_asked_for(monkeypatch: pytest.MonkeyPatch, answer: str, after: bytes) -> None:
    """In `reset`, do not ask."""
    world = world_with()
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t")), Create(paths.offsets(GROUP, "t", 0), b"5"))))
    on(monkeypatch, world)
    told = run("reset-offsets", GROUP, "--to-offset", "9", answer=answer)
    assert "Reset 1 offsets?" in told.stdout
    assert stored(world) == after
    assert run("reset-offsets", GROUP, "--to-offset", "7", "--yes").exit_code == 0
    assert stored(world) == b"7"


def test_a_missing_group_is_named_before_a_confirmation_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In `delete`, `evict` or `export`, look at --yes first: the operator answers, and then learns of a slip."""
    on(monkeypatch, world_with())
    file = tmp_path / "offsets.csv"
    file.write_text("t,0,7\n")
    for command in (
        ("delete", "nosuch"),
        ("evict", "nosuch", "a-1"),
        ("offsets", "export", "nosuch", "--out", str(file)),
        ("offsets", "restore", "nosuch"),
        ("reset-offsets", "nosuch", "--to-offset", "1"),
    ):
        refused = run(*command).exception
        assert isinstance(refused, RebalancerError), (command, refused)
        assert str(refused).startswith("there is no group nosuch"), command
    refused = run("evict", GROUP, "a-1").exception
    assert "a-1" in str(refused)
    told = run("delete", GROUP)
    assert (told.exit_code, "confirm with --yes" in told.output) == (2, True)


@pytest.mark.usefixtures("terminal")
def test_a_freeze_does_not_ask_and_an_unfreeze_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `freeze`, ask: in an emergency, somebody waits for nothing."""
    world = world_with()
    on(monkeypatch, world)
    assert run("freeze", GROUP, answer="").exit_code == 0
    told = run("unfreeze", GROUP, answer="n\n")
    assert told.stdout.splitlines()[-1] == "no setting was changed"
    assert settings.decode(world.zk.nodes[paths.group(GROUP)].content).frozen


def test_offsets_that_members_still_change_are_not_moved_to_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_read_at_rest`, leave out the check for members: what members read after the move would be read twice."""
    world = world_with()
    world.zk.perform(Multi((Create(paths.offsets(GROUP, "t")), Create(paths.offsets(GROUP, "t", 0), b"5"))))
    world.add_agent("a")
    world.pass_time(1_000)
    on(monkeypatch, world)
    kafka = ("--to", "kafka", "--bootstrap", "127.0.0.1:1")
    assert isinstance(run("offsets", "import", GROUP, "--from", "zookeeper", *kafka).exception, OffsetsRefusedError)


def test_no_file_replaces_offsets_in_kafka_that_members_still_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In `import_into_kafka`, leave out the check for members: their commits overwrite what was imported."""
    world = world_with()
    world.add_agent("a")
    world.pass_time(1_000)
    on(monkeypatch, world)
    file = tmp_path / "offsets.csv"
    file.write_text("t,0,7\n")
    kafka = ("--to", "kafka", "--bootstrap", "127.0.0.1:1", "--yes")
    refused = run("offsets", "import", GROUP, str(file), *kafka).exception
    assert isinstance(refused, OffsetsRefusedError), refused
    assert "has consumers" in str(refused)


def test_a_long_change_is_cut_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `audit.change`, do not cut it: each change of many pins doubles the node."""
    world = world_with()
    on(monkeypatch, world)
    pinned = json.dumps({"t": list(range(500))})
    assert run("configure", GROUP, "strategy=balanced", f"options.pinned={pinned}", "--yes").exit_code == 0
    node = world.zk.nodes[paths.group(GROUP)]
    named = json.loads(node.content)["last_change"]["what"]
    assert named.startswith('changed strategy from "sticky" to "balanced", options from {}')
    assert len(named) == MAX_WHAT


def test_a_closed_input_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `questions.can_ask`, ask the input whatever it is: Python has none if it was closed before the start."""
    world = world_with()
    on(monkeypatch, world)
    monkeypatch.setattr(questions, "sys", SimpleNamespace(stdin=None))
    assert run("freeze", GROUP).exit_code == 0
    assert run("unfreeze", GROUP).exit_code == 0
    assert not settings.decode(world.zk.nodes[paths.group(GROUP)].content).frozen
    told = run("delete", GROUP)
    assert (told.exit_code, "confirm with --yes" in told.output) == (2, True)


@pytest.mark.parametrize("has_region", [True, False])
def test_a_region_that_keeps_its_states_is_named_before_offsets_are_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_region: bool
) -> None:
    """In `reset`, `restore_offsets` or `import_offsets`, do not call `note_states`: records are counted twice.

    Or call it when the group's own offsets stay.
    """
    world = world_with()
    on(monkeypatch, world)
    offsets = [Create(paths.offsets(GROUP, "t")), Create(paths.offsets(GROUP, "t", 0), b"5")]
    content = encode_settings(Settings("counts", "group", 10_000)) if has_region else b""
    world.zk.perform(Multi((*offsets, Create(paths.region(GROUP), content))))
    file = tmp_path / "offsets.csv"
    file.write_text("t,0,7\n")
    for command in (
        ("reset-offsets", GROUP, "--to-offset", "1"),
        ("offsets", "import", GROUP, str(file)),
        ("offsets", "restore", GROUP),
    ):
        told = run(*command, "--dry-run").stderr
        assert ("note: group g has a consistent region: its members keep the states" in told) is has_region
    for_others = run("offsets", "import", GROUP, str(file), "--to", "old-consumers", "--dry-run")
    assert (for_others.exit_code, "note:" in for_others.stderr) == (0, False)


@pytest.mark.parametrize(
    "arguments",
    [("freeze", GROUP), ("rebalance", GROUP), ("delete", "empty"), ("evict", GROUP, "a-1"), ("drain", "--host", "h")],
)
def test_what_cannot_be_shown_is_not_done_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """In `shown_first`, let the error pass: with `| head`, a command ends without a word, and nothing is changed."""
    world = world_with(settings.GroupSettings(), "a")
    on(monkeypatch, world).create(paths.group("empty"))
    before = dict(world.zk.nodes)

    def write(stream: click.testing._NamedTextIOWrapper, text: str) -> int:
        if stream.name == "<stdout>":
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return io.TextIOWrapper.write(stream, text)

    monkeypatch.setattr(click.testing._NamedTextIOWrapper, "write", write, raising=False)
    told = run(*arguments, "--yes").exception
    assert isinstance(told, questions.OutputLostError)
    assert str(told) == "nothing was changed: the output cannot be written: Broken pipe"
    assert isinstance(run(*arguments, "--dry-run").exception, SystemExit)  # as with any command that only shows
    assert world.zk.nodes == before
