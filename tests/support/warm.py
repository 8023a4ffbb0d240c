"""Starts a scenario's processes, and commands, from an interpreter that has already imported their code.

A new interpreter spends 0.3 s of processor time on imports before an agent does anything. Here each process is a fork
of one that has done them. It has its own pid, session, signals, environment and exit code, so tests can kill, suspend
and stop it like any other. `python -m tests.support.warm FD` is the server that forks; it ends with the process that
started it. Each test process has one server for all of its clusters and commands.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.hosts import HostCluster
from zkrebalancer.localcluster.server import Program, child_environment

MAIN = "zkrebalancer.cli.main"
COMMANDS = (MAIN, "consumer_agent.sidecar.cli", "zkrebalancer.experiments.producer")
# Loaded when the first one is run.
ALSO_WARM = tuple(
    f"zkrebalancer.experiments.{name}"
    for name in ("members.program", "members.central", "members.kafka", "bulk_producer", "pulse")
)
# What each agent would import when it joins: half of the time that its fork works.
ALSO_LOADED = ("consumer_agent.runtime.engine",)
# Subcommands, loaded when the first one is run.
LOADED_LATE = (
    "backup",
    "cluster",
    "coordinator",
    "events",
    "experiment",
    "group-coordinator",
    "groups",
    "restore",
    "security",
    "shards",
    "topics",
)
# One begins as a user's program does, the other patches the standard library before anything is imported.
COLD = ("consume.py", "greenlets.py")
EXAMPLES = tuple(
    path for path in (Path(__file__).parents[2] / "docs" / "examples").glob("*.py") if path.name not in COLD
)
READ_AT_IMPORT = {"CONSUMER_AGENT_FAILPOINT": "consumer_agent.runtime.failpoints"}  # variable -> what imports it again
READ_BY_PYTHON = "PYTHON"  # variables that begin so: only a new interpreter follows them
MAX_REQUEST_BYTES = 131_072
PIECE_BYTES = 65_536
STATUS_BYTES = 8


class WarmPrograms(LocalCluster):
    """A cluster whose Python programs of this project are forks."""

    warm: tuple[str, ...] = (*COMMANDS, *ALSO_WARM)  # these modules; others import what the starter has not imported
    warm_files: tuple[Path, ...] = EXAMPLES

    def program(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str] | None = None,
        *,
        takes_orders: bool = False,
    ) -> Program:
        """Return a program of this cluster; one with a variable for the interpreter is no fork."""
        is_module = command[:2] == [sys.executable, "-m"] and command[2] in self.warm
        is_warm = is_module or (command[0] == sys.executable and Path(command[1]) in self.warm_files)
        if not is_warm or any(one.startswith(READ_BY_PYTHON) for one in environment or ()):
            return super().program(name, command, environment, takes_orders=takes_orders)
        log = self.directory / f"{name}.log"
        program = WarmProgram(name, command, log, self._write_state, environment, takes_orders=takes_orders)
        self._programs.append(program)
        return program


class WarmCluster(WarmPrograms):
    """A ZooKeeper and a broker.

    The tests kill processes, not the machine, so ZooKeeper need not wait for the disk. That, and reading and writing
    in its selector threads, saves it a third of the processor time of a write.
    """

    def __init__(self, *, chroot: str, tick_ms: int, kafka_properties: Mapping[str, str] | None = None) -> None:
        super().__init__(
            chroot=chroot,
            tick_ms=tick_ms,
            zookeeper_properties={"enforceQuota": "true", "forceSync": "no", "nio.numWorkerThreads": "0"},
            kafka_properties=kafka_properties,
        )


class WarmHostCluster(WarmPrograms, HostCluster):
    """Docker hosts; the programs on them are ordinary ones, those of the lab are forks."""


class WarmProgram(Program):
    """A program that the starter starts."""

    def _begin(self, log: int) -> subprocess.Popen[bytes]:
        arguments = self._command[2:] if self._command[1] == "-m" else self._command[1:]
        if not self._takes_orders:
            return cast("subprocess.Popen[bytes]", starter().begin(arguments, log, log, self._environment))
        orders, mine = os.pipe()
        try:
            process = starter().begin(arguments, log, log, self._environment, orders)
        finally:
            os.close(orders)
        process.stdin = open(mine, "wb")  # noqa: PTH123, SIM115  # until the process is forgotten
        return cast("subprocess.Popen[bytes]", process)


class WarmStarter:
    """Starts the server, and sends it requests."""

    def __init__(self) -> None:
        self._requests, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with served:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(served.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # no terminal, so that its forks buffer their output as for a file
                pass_fds=[served.fileno()],
                env={**child_environment(), "OPENBLAS_NUM_THREADS": "1"},  # numpy's own threads would not be forked
                start_new_session=True,
            )

    def begin(
        self,
        command: Sequence[str],
        out: int,
        err: int,
        environment: Mapping[str, str] | None = None,
        orders: int | None = None,
    ) -> WarmProcess:
        """Run a module, or a file, with arguments; its output goes to the files `out` and `err`.

        It reads from `orders`, by default from no file.
        """
        return WarmProcess(self.request(command, out, err, environment, orders))

    def request(
        self,
        command: Sequence[str],
        out: int,
        err: int,
        environment: Mapping[str, str] | None = None,
        orders: int | None = None,
    ) -> socket.socket:
        """Begin this; return the socket on which the server answers the pid and then the exit code."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([list(command), {**child_environment(), **(environment or {})}]).encode()
        assert len(request) <= MAX_REQUEST_BYTES
        with theirs:
            given = [out, err] if orders is None else [out, err, orders]
            socket.send_fds(self._requests, [request], [theirs.fileno(), *given])
        return mine

    def close(self) -> None:
        self._requests.close()
        self._server.wait(WITHIN_S)


@functools.cache
def starter() -> WarmStarter:
    """Return the only starter of this process, for `close_starter` to end."""
    return WarmStarter()


def close_starter() -> None:
    """End the starter, if there is one."""
    if starter.cache_info().currsize:
        starter().close()
        starter.cache_clear()


@contextmanager
def ending_starter() -> Iterator[None]:
    """End the starter after the block, if there is one."""
    try:
        yield
    finally:
        close_starter()


class WarmProcess:
    """The part of `subprocess.Popen` that `Program` uses; the server waits for the process and sends its exit code."""

    stdin: IO[bytes] | None = None

    def __init__(self, answers: socket.socket) -> None:
        answers.settimeout(WITHIN_S)
        self.returncode: int | None = None
        self._answers = answers
        self.pid = int(answers.recv(STATUS_BYTES))

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._answers, select.POLLIN)
            if not poller.poll(timeout_s * 1_000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
            self.returncode = int(self._answers.recv(STATUS_BYTES))
            self._answers.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # the server has reaped it meanwhile
                os.kill(self.pid, 9)


class WarmPopen(WarmProcess):
    """The part of `subprocess.Popen` that tests use of a process whose output they read while it runs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a module with arguments; the environment adds to that of this process."""
        self.args = command
        (out, child_out), (err, child_err) = os.pipe(), os.pipe()
        try:
            super().__init__(starter().request(command, child_out, child_err, environment))
        finally:
            os.close(child_out)
            os.close(child_err)
        self.stdout, self.stderr = open(out), open(err)  # noqa: PTH123, SIM115  # descriptors; `communicate` closes them
        self._read = {out: b"", err: b""}

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float = WITHIN_S) -> tuple[str, str]:
        """Read both outputs to their ends, and wait for the end; after a TimeoutExpired, the next call continues."""
        give_up_at = time.monotonic() + timeout
        poller = select.poll()
        left = {stream.fileno(): stream for stream in (self.stdout, self.stderr) if not stream.closed}
        for descriptor in left:
            poller.register(descriptor, select.POLLIN)
        while left:
            readable = poller.poll(max(0.0, give_up_at - time.monotonic()) * 1_000)
            if not readable:
                raise subprocess.TimeoutExpired(self.args, timeout)
            for descriptor, _ in readable:
                piece = os.read(descriptor, PIECE_BYTES)
                self._read[descriptor] += piece
                if not piece:
                    poller.unregister(descriptor)
                    left.pop(descriptor).close()
        self.wait(max(0.0, give_up_at - time.monotonic()))
        out, err = (text.decode() for text in self._read.values())
        return out, err


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request; return its command in the child. When the requests end, end what runs, and exit."""
    loaded: set[str] = set()  # of ALSO_WARM
    running: dict[int, tuple[int, socket.socket]] = {}  # descriptor of a process -> pid, socket for its exit code
    poller = select.poll()
    poller.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in running:
                poller.unregister(descriptor)
                pid, answers = running.pop(descriptor)
                _, status = os.waitpid(pid, 0)
                os.close(descriptor)
                with answers, suppress(BrokenPipeError):
                    answers.send(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            content, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
            if not content:
                for pid, _answers in running.values():  # the process that started this one may have been killed
                    os.kill(pid, signal.SIGKILL)
                sys.exit(0)
            command, environment = json.loads(content)
            answers, files = socket.socket(fileno=descriptors[0]), descriptors[1:]
            _load(command, loaded)
            pid = os.fork()
            if pid == 0:
                for one in (requests, answers, *(waiting for _, waiting in running.values())):
                    one.close()
                for handle in running:
                    os.close(handle)
                _become(environment, files)
                return cast("list[str]", command)
            for file in files:
                os.close(file)
            handle = os.pidfd_open(pid)
            running[handle] = (pid, answers)
            poller.register(handle, select.POLLIN)
            answers.send(str(pid).encode())


def _load(command: Sequence[str], loaded: set[str]) -> None:
    """Import what only this module or subcommand needs, before the first process that runs it."""
    if command[0] in ALSO_WARM and command[0] not in loaded:
        importlib.import_module(command[0])
        loaded.add(command[0])
        _settle()
    if command[0] == MAIN and len(command) > 1 and command[1] in LOADED_LATE:
        name = f"zkrebalancer.cli.{command[1].replace('-', '_')}"
        if name not in sys.modules:
            importlib.import_module(name)
            _settle()


def _settle() -> None:
    """Keep loaded modules in memory that forks share; forget those that a fork imports again as its __main__."""
    for name in (*COMMANDS, *ALSO_WARM):
        sys.modules.pop(name, None)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has only one of the threads"
    gc.freeze()


def _become(environment: Mapping[str, str], files: Sequence[int]) -> None:
    os.setsid()
    for given, number in zip(files, (1, 2, 0), strict=False):  # without the last one, it reads what the starter does
        os.dup2(given, number)
        os.close(given)
    # Those of the starter take what is written for /dev/null, of which each place can be sought: not so a pipe.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    for variable, module in READ_AT_IMPORT.items():
        if variable in environment and module in sys.modules:
            importlib.reload(sys.modules[module])  # in place: those that have imported its functions see the new values


def main() -> None:
    for name in (*COMMANDS, *ALSO_LOADED):
        importlib.import_module(name)
    _settle()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        command = serve(requests)
    sys.argv = command
    if command[0].endswith(".py"):
        sys.path[0] = str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")
    else:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
