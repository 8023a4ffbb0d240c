"""A commit of tables is seen as a whole or not at all, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zkrebalancer.pipeline import commits
from zkrebalancer.pipeline.commits import COMMITS, KEPT, STORE, WHOLE, Commits


def add(store: Commits, table: str, text: str) -> str:
    folder = store.new_folder(table)
    store.path(folder).mkdir(parents=True)
    (store.path(folder) / "part").write_text(text)
    return folder


def contents(out: Path) -> dict[str, str]:
    found = {}
    for table in ("a", "b"):
        for part in sorted((out / table).iterdir()):
            found[f"{table}/{part.name}"] = (part / "part").read_text()
    return found


def test_readers_see_a_refresh_of_all_tables_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `commit`, replace CURRENT before the last table has its links."""
    store = Commits(tmp_path)
    assert store.parts() == {}
    first = {"a": {"x": add(store, "a", "a1")}, "b": {"x": add(store, "b", "b1")}}
    store.commit(first)
    assert store.parts() == first
    before = contents(tmp_path)
    assert before == {"a/x": "a1", "b/x": "b1"}
    new = add(store, "a", "a2")

    def fail(*_arguments: object) -> None:
        raise OSError("killed")

    half = {"a": {"x": new}, "b": {"x": add(store, "b", "b2")}}
    with monkeypatch.context() as broken:
        broken.setattr(commits, "_replace_link", fail)
        with pytest.raises(OSError, match="killed"):
            store.commit(half)
    assert contents(tmp_path) == before
    again = Commits(tmp_path)  # of a restarted watcher
    again.commit({"a": {"x": add(again, "a", "a3"), "y": add(again, "a", "new")}, "b": first["b"]})
    assert contents(tmp_path) == {"a/x": "a3", "a/y": "new", "b/x": "b1"}


def test_what_no_commit_leads_to_is_removed(tmp_path: Path) -> None:
    """In `_tidy`, remove nothing; keep one commit, so that a reader loses its files."""
    store = Commits(tmp_path)
    for number in range(5):
        add(store, "a", "of a refresh that failed")
        reader = tmp_path / "current" if number == 0 else tmp_path / COMMITS / str(number)
        store.commit({"a": {"x": add(store, "a", str(number))}})
        assert (reader / "a" / "x" / "part").exists()
    assert len(list((tmp_path / STORE / "a").iterdir())) == len(list((tmp_path / COMMITS).iterdir())) == KEPT


def test_a_watcher_that_was_killed_before_its_commit_counted_takes_nothing_from_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_tidy`, count a commit that readers never saw as one of those that stay."""
    store = Commits(tmp_path)
    for number in range(3):
        store.commit({"a": {"x": add(store, "a", str(number))}})
    reader = (tmp_path / "current").resolve()
    store.commit({"a": {"x": add(store, "a", "newest")}})
    for _ in range(3):
        with monkeypatch.context() as broken:
            broken.setattr(commits, "_replace_link", lambda *_: pytest.fail("killed"))
            with pytest.raises(pytest.fail.Exception, match="killed"):
                store.commit({"a": {"x": add(store, "a", "never seen")}})
        store = Commits(tmp_path)
        store.clean()
        assert (tmp_path / "a" / "x" / "part").read_text() == "newest"
        assert (reader / "a" / "x" / "part").read_text() == "2"


def test_a_watcher_that_goes_on_after_it_was_killed_takes_nothing_from_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `commit`, leave a tree that readers never saw: it is one of the two that stay, and the one in use is none."""
    store = Commits(tmp_path)
    store.commit({"a": {"x": add(store, "a", "1")}})
    reader = (tmp_path / "current").resolve()
    with monkeypatch.context() as broken:
        broken.setattr(commits, "_replace_link", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception, match="killed"):
            store.commit({"a": {"x": add(store, "a", "never seen")}})
    again = Commits(tmp_path)
    again.commit({"a": {"x": add(again, "a", "2")}})
    assert (reader / "a" / "x" / "part").read_text() == "1"
    assert (tmp_path / "a" / "x" / "part").read_text() == "2"


def test_a_commit_makes_only_links_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_turn`, make all anew; or, in `_unlink`, leave the folder of a run that has one part again."""
    store, made = Commits(tmp_path), list[str]()
    runs = {f"run_id={run}": add(store, "a", str(run)) for run in range(20)}
    tables = {"a": dict(runs), "b": {"x": add(store, "b", "")}}
    symlink = os.symlink

    def noted(target: str, link: str, *others: bool) -> None:
        made.append(link)
        symlink(target, link, *others)

    for number in range(7):
        if number == KEPT + 1:  # from now on, there is a former tree
            monkeypatch.setattr(os, "symlink", noted)
        pieces = {f"run_id=0/{piece}": add(store, "a", "piece") for piece in range(2 * (number % 2))}
        tables["a"] = {**runs, "run_id=0": add(store, "a", "whole")}
        if pieces:
            del tables["a"]["run_id=0"]
        tables["a"] |= pieces
        tables.pop("c", None)
        if number % 2:
            tables["c"] = {}
        store.commit(tables)
        assert store.parts() == tables
        found = {path.name for path in (tmp_path / "a" / "run_id=0").iterdir()}
        assert found == ({part.rpartition("/")[2] for part in pieces} or {"part"})
    assert 0 < len(made) < 20


def test_what_may_be_used_again_stays(tmp_path: Path) -> None:
    """In `_tidy`, forget `more`."""
    store = Commits(tmp_path)
    kept = add(store, "a", "for later")
    for number in range(4):
        store.commit({"a": {"x/1": add(store, "a", str(number)), "x/2": add(store, "a", "")}}, [f"{kept}/part"])
    assert (store.path(kept) / "part").read_text() == "for later"
    assert store.parts().keys() == {"a"}
    assert (tmp_path / "a" / "x" / "1" / "part").read_text() == "3"


def test_files_of_a_file_manager_do_not_matter(tmp_path: Path) -> None:
    """In `_numbers`, `_parts`, `_links` or `_tidy`, expect only what a commit has made: no later one would succeed."""
    store = Commits(tmp_path)
    for number in range(2 * KEPT + 2):
        store.commit({"a": {"x/y": add(store, "a", str(number))}, "b": {WHOLE: add(store, "b", "")}})
        for folder in (COMMITS, f"{COMMITS}/{number + 1}", f"{COMMITS}/{number + 1}/a/x", STORE, f"{STORE}/a"):
            (tmp_path / folder / ".DS_Store").write_text("")
        assert (tmp_path / "a" / "x" / "y" / "part").read_text() == str(number)
        assert store.parts().keys() == {"a", "b"}
