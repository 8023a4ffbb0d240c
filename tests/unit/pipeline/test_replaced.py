"""Results of a command are those of one run, whenever it is killed and whoever reads meanwhile."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zkrebalancer.pipeline.commits import CHECKPOINT, COMMITS, CURRENT, KEPT, STORE
from zkrebalancer.pipeline.replaced import replaced
from zkrebalancer.protocol.errors import ConfigurationError

CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "ctypes.dlsym"}  # the last: an exchange
FIRST, SECOND = {"a": "1", "b": "1", "c": "1", "d.csv": "1"}, {"a": "2", "b": "2", "d.csv": "2"}
OF_OTHERS = {"other.csv": "other"}
FORMER = ("c",)


def fill(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        if name.endswith(".csv"):
            (folder / name).write_text(text)
        else:
            (folder / name / "kind=x").mkdir(parents=True)
            (folder / name / "kind=x" / "part").write_text(text)


def seen(folder: Path) -> dict[str, str]:
    """Return what readers of the results see, each by the path that it always had."""
    found = {}
    for name in FIRST | OF_OTHERS:
        path = folder / name if name.endswith(".csv") else folder / name / "kind=x" / "part"
        if path.exists():
            found[name] = path.read_text()
    return found


def run(out: Path, texts: dict[str, str], kind: str = "run") -> None:
    with replaced(out, kind, FORMER) as made:
        fill(made, texts)


def nothing(_out: Path) -> None:
    """Begin in an empty folder."""


def of_an_earlier_version(out: Path) -> None:
    fill(out, FIRST)


def of_this_version(out: Path) -> None:
    run(out, OF_OTHERS, "other")
    run(out, FIRST)
    run(out, FIRST)


def beside_other_results(out: Path) -> None:
    run(out, OF_OTHERS, "other")
    fill(out, FIRST)


def killed_at(number: int, out: Path) -> bool:
    """Replace FIRST by SECOND in a process that is killed before its `number`-th change; return whether it was."""
    child = os.fork()
    if child == 0:
        left = number

        def hook(event: str, _arguments: object) -> None:
            nonlocal left
            if event in CHANGES:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            run(out, SECOND)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("before", [nothing, of_an_earlier_version, of_this_version, beside_other_results])
def test_a_kill_at_each_step_leaves_the_results_of_one_run(before: Callable[[Path], None], tmp_path: Path) -> None:
    """In `commit`, replace CURRENT before the tree has its links; in `_exchange`, rename, then link."""
    outcomes = []
    for number in range(1, 1_000):
        out = tmp_path / str(number)
        out.mkdir()
        before(out)
        first = seen(out)
        others = {name: text for name, text in first.items() if name in OF_OTHERS}
        was_killed = killed_at(number, out)
        found = seen(out)
        assert found in (first, SECOND | others), number
        outcomes.append(found == first)
        run(out, SECOND)
        assert seen(out) == SECOND | others
        in_use = {path.resolve().parent for tree in (out / COMMITS).iterdir() for path in tree.iterdir()}
        assert {path for kind in (out / STORE).iterdir() for path in kind.iterdir()} == in_use
        assert len(list((out / COMMITS).iterdir())) <= KEPT
        if not was_killed:
            break
    assert outcomes[0]
    assert not outcomes[-1]
    assert len(outcomes) > 10
    assert outcomes == sorted(outcomes, reverse=True)


def test_a_reader_keeps_the_commit_that_it_resolved(tmp_path: Path) -> None:
    """Keep one commit; or write into the folder of the one before."""
    run(tmp_path, FIRST)
    reader = (tmp_path / CURRENT).resolve()
    with replaced(tmp_path, "run", FORMER) as made:
        assert seen(tmp_path) == seen(reader) == FIRST
        fill(made, {"a": "2"})
        assert seen(tmp_path) == seen(reader) == FIRST
        shutil.rmtree(made / "a")
        fill(made, SECOND)
    assert seen(reader) == FIRST
    assert seen(tmp_path) == seen(tmp_path / CURRENT) == SECOND
    assert not os.path.lexists(tmp_path / "c")


def test_a_run_that_fails_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    for expected in ({}, FIRST):
        with pytest.raises(NotADirectoryError), replaced(tmp_path, "run") as made:
            fill(made, SECOND | {"d.csv/x": "below a file"})
        assert seen(tmp_path) == expected
        assert bool(list(tmp_path.iterdir())) == bool(expected)
        run(tmp_path, FIRST)


def test_what_a_killed_run_left_is_removed_before_the_next_one_writes(tmp_path: Path) -> None:
    """In `replaced`, do not `clean` first."""
    run(tmp_path, FIRST)
    assert killed_at(8, tmp_path)
    with replaced(tmp_path, "run") as made:
        kept = {(tmp_path / "a").resolve().parent, made}
        assert set((tmp_path / STORE / "run").iterdir()) == kept


def test_what_killed_runs_of_earlier_versions_left_is_removed(tmp_path: Path) -> None:
    left, own = tmp_path / f"_pass-{'0a' * 16}", tmp_path / "_pass-through"
    left.mkdir()
    own.mkdir()
    run(tmp_path, SECOND)
    assert not left.exists()
    assert own.exists()


@pytest.fixture
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())


@pytest.mark.usefixtures("no_exchange")
def test_what_an_earlier_version_left_is_replaced_where_nothing_can_be_exchanged(tmp_path: Path) -> None:
    """In `_exchange`, need `renameat2`."""
    fill(tmp_path, FIRST)
    run(tmp_path, SECOND)
    assert seen(tmp_path) == SECOND
    assert (tmp_path / "a").is_symlink()


def test_without_links_tables_are_still_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In `_has_links`, do not catch the error."""

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    monkeypatch.setattr(os, "symlink", refuse)
    for texts in (FIRST, SECOND):
        run(tmp_path, texts)
        assert seen(tmp_path) == texts
        assert {path.name for path in tmp_path.iterdir()} == {*texts}
    assert "one after the other" in caplog.text


@pytest.mark.parametrize("name", [CURRENT, f"{COMMITS}/mine", STORE])
def test_a_folder_of_somebody_else_is_no_store(name: str, tmp_path: Path) -> None:
    """In `_require_room`, allow it: what is there is deleted."""
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="name another folder"):
        run(tmp_path, SECOND)
    assert (tmp_path / name).exists()


def test_a_watchers_tables_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).mkdir()
    with pytest.raises(ConfigurationError, match="tables of a watcher"):
        run(tmp_path, SECOND)


def test_a_file_of_a_file_manager_is_not_somebody_elses_store(tmp_path: Path) -> None:
    """In `_require_room`, count it: the results of earlier runs could not be replaced any more."""
    run(tmp_path, FIRST)
    (tmp_path / COMMITS / ".DS_Store").write_text("")
    run(tmp_path, SECOND)
    assert seen(tmp_path) == SECOND
