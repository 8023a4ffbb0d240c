"""The library that makes syncs slow, in a process without servers; and what is told if it cannot be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zkrebalancer.localcluster import slow_disk
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError
from zkrebalancer.localcluster.slow_disk import acts_in, environment, preloaded

SYNC_MS = 30.0
# Prints the time of each call by which a JVM syncs, in milliseconds, and how a sync of a pipe fails.
PROGRAM = """
import json, mmap, os, sys, time
with open(sys.argv[1], "w+b") as file:
    file.write(bytes(mmap.PAGESIZE))
    file.flush()
    number, memory, (pipe, _) = file.fileno(), mmap.mmap(file.fileno(), mmap.PAGESIZE), os.pipe()
    taken = {}
    for name, call in (
        ("fsync", lambda: os.fsync(number)), ("fdatasync", lambda: os.fdatasync(number)), ("msync", memory.flush)
    ):
        began = time.perf_counter()
        call()
        taken[name] = (time.perf_counter() - began) * 1_000
    try:
        os.fsync(pipe)
    except OSError as error:
        taken["error"] = error.errno
print(json.dumps(taken))
"""


@pytest.mark.skipif(slow_disk.compiler() is None, reason="no C compiler: apt-get install gcc")
def test_each_call_that_syncs_takes_so_long_and_fails_as_before(tmp_path: Path) -> None:
    """In `slowed`, return 0: a sync that failed would pass for one that was done."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
    slowed = {**os.environ, **environment(tmp_path, SYNC_MS)}
    plain, slow = (
        json.loads(subprocess.run(command, env=variables, capture_output=True, check=True).stdout)
        for variables in (None, slowed)
    )
    assert plain.pop("error") == slow.pop("error")
    assert slow.keys() == {*slow_disk.CALLS}
    assert min(slow.values()) >= SYNC_MS
    assert not acts_in(os.getpid())


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=r"no cc found.* install a C compiler, such as gcc"):
        environment(tmp_path, SYNC_MS)


def test_a_compiler_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'no time.h' >&2\necho 'and more' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalClusterError, match=r"^slow_sync\.c does not compile: no time\.h$"):
        environment(tmp_path, SYNC_MS)


def test_other_libraries_stay_preloaded() -> None:
    assert preloaded(Path("/a/slow.so"), {}) == "/a/slow.so"
    assert preloaded(Path("/a/slow.so"), {"LD_PRELOAD": "/b/other.so"}) == "/a/slow.so:/b/other.so"
