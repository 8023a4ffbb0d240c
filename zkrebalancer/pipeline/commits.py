"""Tables that change together: a reader sees all of one refresh, or all of the one before.

Parquet files are written once, each part of a table into a new folder below STORE. A commit is a tree of links to such
folders, `commits/<number>/<table>/<part>`, and CURRENT is a link to the newest commit: readers see nothing change until
it is replaced. `<table>` in the top folder leads through CURRENT, so readers need no library.
The last KEPT commits stay, for readers that have begun. Folders to which no commit leads are removed. The tree of the
commit before those becomes that of the next one, so only links that differ are made anew.
A command that makes its tables anew each time (`replaced.py`) has no parts: `<table>` in a commit is itself a link.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

STORE = "store"
COMMITS = "commits"
CURRENT = "current"
CHECKPOINT = "checkpoint"  # of a watcher
SPARE = ".spare"  # the tree of a former commit
UNFINISHED = ".unfinished"  # a tree that becomes another one
KEPT = 2
MERGED = 16  # parts
WHOLE = ""  # the only part of a table that has no others
Parts = Mapping[str, Mapping[str, str]]  # table -> part, such as `run_id=x` or `run_id=x/1` -> folder below STORE


class Commits:
    """The commits below a folder, which has one writer."""

    def __init__(self, out: Path) -> None:
        """Nothing is read or written yet."""
        self._out = out.absolute()

    def new_folder(self, table: str, prefix: str = "") -> str:
        """Return the path, below STORE, of a folder that no commit has yet."""
        return f"{table}/{prefix}{uuid.uuid4().hex}"

    def path(self, folder: str) -> Path:
        """Return where a folder of STORE is."""
        return self._out / STORE / folder

    def paths(self, folders: Mapping[str, str]) -> list[str]:
        """Return where the folders of parts are."""
        return [str(self.path(folder)) for folder in folders.values()]

    def parts(self) -> dict[str, dict[str, str]]:
        """Return the parts of the newest commit."""
        return self._parts(self._out / CURRENT)

    def commit(self, parts: Parts, kept: Iterable[str] = ()) -> None:
        """Make these parts the newest commit, all at once; `kept`: more folders that may be used again."""
        newest = self._newest()
        for number in self._numbers():
            if number > newest:  # of a watcher that was killed: readers have never seen it
                shutil.rmtree(self._out / COMMITS / str(number))
        unfinished, tree = self._out / UNFINISHED, self._out / COMMITS / str(newest + 1)
        shutil.rmtree(unfinished, ignore_errors=True)  # of a watcher that was killed
        if (self._out / SPARE).exists():
            (self._out / SPARE).rename(unfinished)
        _turn(unfinished, self._parts(unfinished), parts)
        tree.parent.mkdir(exist_ok=True)
        unfinished.rename(tree)
        for table in parts:
            if not os.path.lexists(self._out / table):
                (self._out / table).symlink_to(Path(CURRENT) / table)
        _replace_link(self._out / CURRENT, Path(COMMITS) / tree.name)
        self._tidy(parts, kept)

    def clean(self, kept: Iterable[str] = ()) -> None:
        """Remove what killed commands left; `kept` as for `commit`."""
        if (self._out / CURRENT).is_symlink():
            self._tidy(self.parts(), kept)
        else:
            for name in (UNFINISHED, SPARE, STORE, COMMITS):
                shutil.rmtree(self._out / name, ignore_errors=True)

    def has_link(self, name: str) -> bool:
        """Whether `name` in the top folder leads through CURRENT."""
        path = self._out / name
        return path.is_symlink() and path.readlink() == Path(CURRENT) / name

    def _newest(self) -> int:
        current = self._out / CURRENT
        return int(current.readlink().name) if current.is_symlink() else 0

    def _numbers(self) -> list[int]:
        folder = self._out / COMMITS
        if not folder.exists():
            return []
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())  # others: file managers'

    def _parts(self, tree: Path) -> dict[str, dict[str, str]]:
        if not tree.exists():
            return {}
        return {
            table.name: {WHOLE: _folder(str(table))} if table.is_symlink() else dict(_links(str(table)))
            for table in tree.iterdir()
            if table.is_symlink() or table.is_dir()
        }

    def _tidy(self, parts: Parts, more: Iterable[str]) -> None:
        """Remove old and incomplete commits, and folders that no commit uses; `parts`: those of the newest one."""
        newest = self._newest()
        kept = [number for number in self._numbers() if number <= newest][-KEPT:]
        for number in set(self._numbers()) - set(kept):
            shutil.rmtree(self._out / SPARE, ignore_errors=True)  # of another one, if a commit was not completed
            (self._out / COMMITS / str(number)).rename(self._out / SPARE)
        for path in self._out.iterdir():
            if path.name not in parts and self.has_link(path.name):
                path.unlink()  # the newest commit has no such table
        used = {"/".join(folder.split("/")[:2]) for folder in more}
        for number in kept:
            of_commit: Parts = parts if number == newest else self._parts(self._out / COMMITS / str(number))
            for folders in of_commit.values():
                used |= {"/".join(folder.split("/")[:2]) for folder in folders.values()}
        for table in filter(Path.is_dir, (self._out / STORE).iterdir()):
            for folder in filter(Path.is_dir, table.iterdir()):
                if f"{table.name}/{folder.name}" not in used:
                    shutil.rmtree(folder)


def to_merge(spans: Iterable[tuple[int, int]], merged: int = MERGED) -> list[tuple[int, int]]:
    """Return the first `merged` spans of micro-batches that are about equally long, or none."""
    by_level: dict[int, list[tuple[int, int]]] = {}
    for first, last in sorted(spans):
        level = 0
        while (last - first + 1) >= merged ** (level + 1):
            level += 1
        by_level.setdefault(level, []).append((first, last))
    return next((same[:merged] for _level, same in sorted(by_level.items()) if len(same) >= merged), [])


def _turn(tree: Path, before: Parts, parts: Parts) -> None:
    """Let a tree lead to other parts; `before`: to which it leads now, none if there is no such tree."""
    tree.mkdir(parents=True, exist_ok=True)
    for table in before.keys() - parts.keys():
        _remove(tree / table)
    for table, folders in parts.items():
        known = before.get(table, {})
        if known and (WHOLE in known) != (WHOLE in folders):
            _remove(tree / table)
            known = {}
        if WHOLE in folders:
            if known != folders:
                (tree / table).unlink(missing_ok=True)
                (tree / table).symlink_to(f"../../{STORE}/{folders[WHOLE]}")
            continue
        old = {part for part, folder in known.items() if folders.get(part) != folder}
        _unlink(tree / table, old)
        _link(tree / table, {part: folder for part, folder in folders.items() if part in old or part not in known})


def _remove(table: Path) -> None:
    if table.is_symlink():
        table.unlink()
    else:
        shutil.rmtree(table)


def _unlink(table: Path, parts: Collection[str]) -> None:
    """Remove the links of parts, and folders that held no other: a part may have the name of such a folder."""
    for part in parts:
        (table / part).unlink()
    for folder in {part.rpartition("/")[0] for part in parts} - {""}:
        with suppress(OSError):  # it has others
            (table / folder).rmdir()


def _link(table: Path, folders: Mapping[str, str]) -> None:
    """Make a link for each part of a table; there may be thousands, and path objects would take twice as long."""
    table.mkdir(exist_ok=True)
    above = {""}
    for part, folder in folders.items():
        parent = part.rpartition("/")[0]
        if parent not in above:
            os.makedirs(f"{table}/{parent}", exist_ok=True)  # noqa: PTH103
            above.add(parent)
        os.symlink(f"{'../' * (3 + part.count('/'))}{STORE}/{folder}", f"{table}/{part}")  # noqa: PTH211


def _links(folder: str, within: str = "") -> Iterator[tuple[str, str]]:
    """Iterate over the parts below a folder of a commit, each with the folder below STORE to which it leads."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield f"{within}{entry.name}", _folder(entry.path)
            elif entry.is_dir():
                yield from _links(entry.path, f"{within}{entry.name}/")


def _folder(link: str) -> str:
    return os.readlink(link).partition(f"/{STORE}/")[2]  # noqa: PTH115


def _replace_link(link: Path, target: Path) -> None:
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
