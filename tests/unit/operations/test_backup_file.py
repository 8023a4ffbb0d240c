"""The file of a backup appears whole, whoever else writes there, and replaces nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EIO, EPERM
from pathlib import Path

import pytest

from zkrebalancer.operations.backup_file import Node, check, write
from zkrebalancer.protocol import paths


def test_two_backups_at_once_do_not_touch_each_others_files(tmp_path: Path) -> None:
    """In `write`, name the file by the process id, which is 1 in each container, or remove what another one made."""
    file, root = tmp_path / "backup", Node(paths.CONSUMERS, b"")

    def nodes() -> Iterator[Node]:
        yield root
        assert write(tmp_path / "other" / ".." / "backup", [root], 1) == 1

    (tmp_path / "other").mkdir()
    with pytest.raises(FileExistsError, match="backup exists"):
        write(file, nodes(), 1)
    assert check(file) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "other"]


def test_a_backup_needs_no_hard_links_and_replaces_nothing_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `_publish`, fail without links, as on FAT, or rename over what is there."""
    root = Node(paths.CONSUMERS, b"")

    def refuse(*_: object) -> None:
        raise PermissionError(EPERM, os.strerror(EPERM), "partial")

    monkeypatch.setattr(os, "link", refuse)
    file = tmp_path / "backup"

    def nodes() -> Iterator[Node]:
        yield root
        if not file.exists():
            file.write_text("of another program")

    assert write(tmp_path / "first", [root], 1) == check(tmp_path / "first") == 1
    with pytest.raises(FileExistsError) as refused:
        write(file, nodes(), 1)
    assert refused.value.filename == str(file)
    assert file.read_text() == "of another program"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "first"]


def test_a_backup_whose_renaming_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `_publish`, leave the empty file: the next backup is refused because of it."""

    def refuse(*_: object) -> None:
        raise OSError(EIO, os.strerror(EIO), "partial")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match=os.strerror(EIO)):
        write(tmp_path / "backup", [Node(paths.CONSUMERS, b"")], 1)
    assert not [*tmp_path.iterdir()]
