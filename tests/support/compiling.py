"""Compiles the code once, before the workers of a parallel run start; otherwise each of them would compile it."""

from __future__ import annotations

import compileall
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = re.compile(r"/test_[^/]*\.py$")  # compiled with pytest's assertions


def compile_once(folders: Iterable[Path], config: pytest.Config) -> None:
    """Write the missing byte code of all modules."""
    if sys.dont_write_bytecode:
        return
    state = config.stash[rewrite.assertstate_key]
    for folder in folders:
        compileall.compile_dir(folder, rx=TESTS, quiet=1)
        for file in folder.rglob("test_*.py"):
            cached = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
            if rewrite._read_pyc(file, cached) is None:
                source_hash, code = rewrite._rewrite_test(file, config)
                cached.parent.mkdir(exist_ok=True)
                rewrite._write_pyc(state, code, source_hash, cached)
