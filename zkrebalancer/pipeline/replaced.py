"""Results that a command makes anew: readers see all of its last run, or all of the one before.

A command writes into a new folder of `commits.STORE`, which becomes a commit of `commits.py` when it has ended well.
What commands of another kind left in the same folder stays: the store's first folders tell them apart.

Earlier versions wrote without links. What they left is moved behind links first, so that a commit can replace it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from zkrebalancer.pipeline.commits import CHECKPOINT, COMMITS, CURRENT, STORE, WHOLE, Commits
from zkrebalancer.protocol.errors import ConfigurationError

_SCRATCH = re.compile(r"_(pass|events)-[0-9a-f]{32}")  # of runs of earlier versions that were killed
_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE
_log = logging.getLogger(__name__)


@contextmanager
def replaced(out: Path, kind: str, former: Collection[str] = ()) -> Iterator[Path]:
    """Give an empty folder; what the block leaves there replaces, all at once, what this kind of command left in `out`.

    The caller has locked `out`. `former`: names that earlier versions used, and that the block may not.

    Raises:
        ConfigurationError: `out` has a watcher's tables, or entries that stand where commits belong.

    """
    require_unwatched(out)
    _require_room(out)
    commits = Commits(out)
    commits.clean()
    for path in out.iterdir():
        if _SCRATCH.fullmatch(path.name):
            shutil.rmtree(path)
    has_links = _has_links(out)
    (out / COMMITS).mkdir(exist_ok=True)  # before the store, which is thus known to be one
    folder = commits.new_folder(kind)
    made = commits.path(folder)
    made.mkdir(parents=True)
    try:
        yield made
    except BaseException:
        commits.clean()
        raise
    names = {path.name for path in made.iterdir()}
    if not has_links:
        _move(made, out, names | set(former))
        commits.clean()
        return
    adopt(out, kind, names | set(former), folder)
    others = {name: parts for name, parts in commits.parts().items() if not _is_of(kind, parts)}
    commits.commit(others | {name: {WHOLE: f"{folder}/{name}"} for name in names})


def require_unwatched(out: Path) -> None:
    """Raise ConfigurationError if `out` has a watcher's tables, which its checkpoint would no longer match."""
    if (out / CHECKPOINT).exists():
        raise ConfigurationError(f"--out {out} has the tables of a watcher; name another folder")


def adopt(out: Path, kind: str, names: Collection[str], kept: str) -> None:
    """Move what has these names, but leads through no commit, behind links; readers find it there all the time.

    `kept`: a folder that no commit has yet.
    """
    commits = Commits(out)
    old = sorted(name for name in names if os.path.lexists(out / name) and not commits.has_link(name))
    if not old:
        return
    folder = commits.new_folder(kind)
    commits.path(folder).mkdir(parents=True)
    for name in old:
        (commits.path(folder) / name).symlink_to(Path(CURRENT) / name)  # leads somewhere only once it is moved
    commits.commit({**commits.parts(), **{name: {WHOLE: f"{folder}/{name}"} for name in old}}, [kept])
    for name in old:
        _exchange(commits.path(folder) / name, out / name)


def _exchange(link: Path, other: Path) -> None:
    """Exchange a link with something else, in one step where the kernel and the file system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None or rename(_HERE, os.fsencode(link), _HERE, os.fsencode(other), _EXCHANGE) != 0:
        target = link.readlink()
        link.unlink()
        other.rename(link)
        other.symlink_to(target)


def _is_of(kind: str, parts: Mapping[str, str]) -> bool:
    return parts.get(WHOLE, "").startswith(f"{kind}/")


def _require_room(out: Path) -> None:
    """Refuse to take a folder of somebody else for a store, or a copy without links for commits."""
    current, commits, store = out / CURRENT, out / COMMITS, out / STORE
    names = [path.name for path in commits.iterdir()] if commits.exists() else []
    is_ours = all(name.isdecimal() or name.startswith(".") for name in names)
    if not is_ours or (current.exists() and not current.is_symlink()) or (store.exists() and not commits.exists()):
        text = f"--out {out} has {CURRENT}, {COMMITS} or {STORE}, but no commits of tables; name another folder"
        raise ConfigurationError(text)


def _has_links(out: Path) -> bool:
    probe = out / f".{CURRENT}.new"
    try:
        probe.unlink(missing_ok=True)
        probe.symlink_to(COMMITS)
        probe.unlink()
    except OSError:
        _log.warning("no symbolic links can be made in %s: its tables are replaced one after the other", out)
        return False
    return True


def _move(made: Path, out: Path, names: Collection[str]) -> None:
    for name in names:
        if (out / name).is_dir():
            shutil.rmtree(out / name)
        else:
            (out / name).unlink(missing_ok=True)
        if (made / name).exists():
            (made / name).rename(out / name)
