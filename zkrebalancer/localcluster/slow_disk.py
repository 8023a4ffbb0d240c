"""Makes syncs to disk take longer in the servers of a cluster, by a C library that is preloaded into their JVMs.

A virtual disk that syncs in a fraction of a millisecond flatters whoever waits for each sync. `slow_sync.c` says which
calls are made longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from zkrebalancer.localcluster import commands
from zkrebalancer.localcluster.errors import LocalClusterError, MissingToolError

CALLS = ("fsync", "fdatasync", "msync")
COMPILE_DEADLINE_S = 60.0
_SOURCE = Path(__file__).parent / "slow_sync.c"
_LIBRARY = "slow_sync.so"
_PRELOAD = "LD_PRELOAD"


def compiler() -> str | None:
    """Return the path of the C compiler, None if there is none."""
    return shutil.which("cc")


def environment(directory: Path, sync_ms: float) -> dict[str, str]:
    """Return what makes a program's syncs take at least so long; compiles the library into the folder.

    Raises:
        MissingToolError: there is no C compiler.
        LocalClusterError: the library does not compile.

    """
    library = directory / _LIBRARY
    _compile(library, round(sync_ms * 1_000))
    return {_PRELOAD: preloaded(library)}


def preloaded(library: Path, variables: Mapping[str, str] = os.environ) -> str:
    """Return the variable's text with this library first; others stay."""
    return ":".join(filter(None, [str(library), variables.get(_PRELOAD)]))


def acts_in(pid: int) -> bool:
    """Whether the library is loaded in a running process: a loader only warns of one that it cannot load."""
    return any(line.endswith(f"/{_LIBRARY}") for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def _compile(library: Path, least_us: int) -> None:
    program = compiler()
    if program is None:
        raise MissingToolError("no cc found, which compiles what makes syncs slow: install a C compiler, such as gcc")
    command = [program, "-O2", "-D_GNU_SOURCE", f"-DLEAST_US={least_us}L", "-shared", "-fPIC"]
    command += ["-o", str(library), str(_SOURCE)]
    try:
        done = commands.run(command, COMPILE_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise LocalClusterError(f"{program} did not compile {_SOURCE.name} within {COMPILE_DEADLINE_S:g} s") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise LocalClusterError(f"{_SOURCE.name} does not compile: {reason}")
