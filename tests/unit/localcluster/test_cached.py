"""A folder of the cache is made by one process at a time, as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkrebalancer.localcluster.cached import made_by_one


def test_what_the_block_made_is_kept_and_made_once(tmp_path: Path) -> None:
    with made_by_one(tmp_path / "cache" / "x") as partial:
        assert partial is not None
        (partial / "content").touch()
        assert not (tmp_path / "cache" / "x").exists()
    assert (tmp_path / "cache" / "x" / "content").exists()
    with made_by_one(tmp_path / "cache" / "x") as again:
        assert again is None
    assert not partial.exists()


def test_another_process_does_not_wait(tmp_path: Path) -> None:
    """Wait for the lock."""
    with made_by_one(tmp_path / "x") as first, made_by_one(tmp_path / "x") as second:
        assert first is not None
        assert second is None


def test_nothing_stays_of_a_failure_or_of_what_the_block_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), made_by_one(tmp_path / "x"):
        raise ValueError("no")
    with made_by_one(tmp_path / "x") as partial:
        assert partial is not None
        partial.rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


def test_what_cannot_be_renamed_is_removed_and_only_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with made_by_one(tmp_path / "x") as partial:
        assert partial is not None
        (tmp_path / "x" / "another").mkdir(parents=True)  # made without the lock
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x.lock"]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"{tmp_path}/x cannot be kept"]
    with made_by_one(tmp_path / "y"):
        pass
    assert (tmp_path / "y").is_dir()


def test_a_killed_process_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "x.partial" / "half").touch()
    with made_by_one(tmp_path / "x") as partial:
        assert partial is not None
    assert list((tmp_path / "x").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "x", Path("/proc/none/x")):
        with made_by_one(place) as partial:
            assert partial is None
