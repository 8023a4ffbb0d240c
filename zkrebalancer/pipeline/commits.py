"""Tables that change together: a reader sees all of one refresh, or all of the one before.

Parquet files are written once, each part of a table into a new folder below STORE. A commit is a tree of links to such
folders, `commits/<number>/<table>/<part>`, and CURRENT is a link to the newest commit: readers see nothing change until
it is replaced. `<table>` in the top folder leads through CURRENT, so readers need no library.
The last KEPT commits stay, for readers that have begun. Folders to which no commit leads are removed.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

STORE = "store"
COMMITS = "commits"
CURRENT = "current"
KEPT = 2
MERGED = 16  # parts
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

    def commit(self, parts: Parts) -> None:
        """Make these parts the newest commit, all at once."""
        numbers = self._numbers()
        tree = self._out / COMMITS / str(max(numbers, default=0) + 1)
        for table, folders in parts.items():
            (tree / table).mkdir(parents=True)
            for part, folder in folders.items():
                link = tree / table / part
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(Path(*[".."] * (3 + part.count("/"))) / STORE / folder)
            if not os.path.lexists(self._out / table):
                (self._out / table).symlink_to(Path(CURRENT) / table)
        _replace_link(self._out / CURRENT, Path(COMMITS) / tree.name)
        self._tidy()

    def _numbers(self) -> list[int]:
        folder = self._out / COMMITS
        return sorted(int(path.name) for path in folder.iterdir()) if folder.exists() else []

    def _parts(self, tree: Path) -> dict[str, dict[str, str]]:
        if not tree.exists():
            return {}
        return {table.name: dict(_links(table)) for table in tree.iterdir()}

    def _tidy(self) -> None:
        """Remove old and incomplete commits, and folders that no commit uses."""
        newest = int((self._out / CURRENT).readlink().name)
        kept = [number for number in self._numbers() if number <= newest][-KEPT:]
        for number in set(self._numbers()) - set(kept):
            shutil.rmtree(self._out / COMMITS / str(number))
        used = set()
        for number in kept:
            for folders in self._parts(self._out / COMMITS / str(number)).values():
                used |= {"/".join(folder.split("/")[:2]) for folder in folders.values()}
        for table in (self._out / STORE).iterdir():
            for folder in table.iterdir():
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


def _links(folder: Path, within: str = "") -> Iterator[tuple[str, str]]:
    """Iterate over the parts below a folder of a commit, each with the folder to which it leads."""
    for path in folder.iterdir():
        if path.is_symlink():
            yield f"{within}{path.name}", _target(path)
        else:
            yield from _links(path, f"{within}{path.name}/")


def _target(part: Path) -> str:
    """Return the folder below STORE to which a link leads."""
    return part.readlink().as_posix().partition(f"/{STORE}/")[2]


def _replace_link(link: Path, target: Path) -> None:
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(link)
