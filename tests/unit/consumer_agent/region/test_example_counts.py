"""The copies that the examples of regions keep in a folder, which their members may share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any
from unittest import mock

from consumer_agent.region import Checkpoint

EXAMPLE = Path(__file__).parents[4] / "docs/examples/region_counts.py"


def counts(folder: Path, member: str) -> Any:
    spec = importlib.util.spec_from_file_location("region_counts", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Counts(folder, member)


def test_a_member_deletes_no_copy_of_another_whose_name_begins_as_its_own(tmp_path: Path) -> None:
    """In `Counts.retire`, look at the number only: a member that is away finds its last copy gone."""
    for member in ("m", "m-1"):
        counts(tmp_path, member).store(Checkpoint(5))
    counts(tmp_path, "m").retire(Checkpoint(6))
    assert [file.name for file in tmp_path.iterdir()] == ["m-1-5.json"]


def test_a_copy_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    """In `write_durably`, leave out `fsync`: after a power failure, the copy that a checkpoint names may be empty."""
    done: list[str] = []

    def sync(_file: int) -> None:
        done.append(f"sync with {sorted(file.suffix for file in tmp_path.iterdir())}")

    with mock.patch("os.fsync", side_effect=sync), mock.patch("os.getpid", return_value=7):
        counts(tmp_path, "m").store(Checkpoint(5))
    assert done == ["sync with ['.7']", "sync with ['.json']"]
