"""Test files are compiled as pytest does it, so that the workers find their byte code."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.support.compiling import compile_once


def test_pytest_reads_what_was_compiled(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / "test_it.py"
    file.write_text("def test_it():\n    assert 1 + 1 == 3\n")
    (tmp_path / "helper.py").write_text("X = 1\n")

    compile_once([tmp_path], pytestconfig)

    code = rewrite._read_pyc(file, rewrite.get_cache_dir(file) / f"test_it{rewrite.PYC_TAIL}")
    assert code is not None
    assert "@pytest_ar" in code.co_names
    assert [
        path.name.split(".")[0] for path in (tmp_path / "__pycache__").glob("*.pyc") if "pytest" not in path.name
    ] == ["helper"]
