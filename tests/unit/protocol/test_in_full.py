"""All that is read and refused in nodes, and all rights, are as reviewed: each change of one shows in a file."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.vectors import nodes, rights


@pytest.mark.parametrize("vectors", [nodes, rights])
def test_everything_is_as_reviewed(vectors: ModuleType) -> None:
    """If a change is wanted, run `python -m tests.vectors.nodes` or `….rights`, and read the difference."""
    assert list(vectors.lines()) == vectors.FILE.read_text().splitlines()
