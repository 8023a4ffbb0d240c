"""Runs a command as a process with a separate temporary folder, to check its output and what it leaves behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.waiting import wait_until
from zkrebalancer.localcluster.server import child_environment

TOLD_LINES = 15  # the last lines of a failed command's errors, which contain the verdict


class WatchedCommand:
    """The command, to be started once; `folder` is for its temporary files."""

    def __init__(self, command: Sequence[str], folder: Path, end_s: float, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self._command = command
        self._end_s = end_s
        self._errors = folder.with_name("stderr.txt")

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        with self._errors.open("w") as errors:
            return subprocess.Popen(
                [*self._command, *arguments],
                env={**child_environment(), **self._environment, "TMPDIR": str(self.folder)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def lines(self) -> list[str]:
        return self._errors.read_text().splitlines()

    def told(self) -> str:
        return "\n".join(self.lines()[-TOLD_LINES:])

    def wait_for(self, text: str) -> None:
        wait_until(
            lambda: text in self._errors.read_text(), lambda: f"{text!r} was not printed: {self.told()}", self._end_s
        )

    def processes(self) -> list[psutil.Process]:
        return processes_naming(self.folder)

    def left(self) -> list[str]:
        """Return what the command has left behind: processes, files and mounts, a line each."""
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line]
        return [*mounts, *map(str, self.processes()), *map(str, self.folder.iterdir())]


def processes_naming(folder: Path) -> list[psutil.Process]:
    """Return every process whose command line names the folder, or which began with it as the one for its files."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if any(str(folder) in argument for argument in process.info["cmdline"] or ())
        or (process.info["environ"] or {}).get("TMPDIR") == str(folder)
    ]


@contextmanager
def watched(
    command: Sequence[str], directory: Path, end_s: float, environment: Mapping[str, str] | None = None
) -> Iterator[WatchedCommand]:
    """Give a command a folder; at the end, kill what remains. `end_s` limits every wait for output."""
    (directory / "tmp").mkdir()
    one = WatchedCommand(command, directory / "tmp", end_s, environment or {})
    try:
        yield one
    finally:
        for process in one.processes():
            process.kill()
