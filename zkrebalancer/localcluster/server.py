"""One program of a local cluster: begun in its own session, logging to its own file, asked until it is ready."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError, ServerStartError
from zkrebalancer.localcluster.ports import HOST, is_free
from zkrebalancer.localcluster.processes import ProcessRecord, record
from zkrebalancer.protocol import addresses

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
ASK_INTERVAL_S = 0.03
LOG_TAIL_LINES = 12
_REASON = re.compile(r"^(Caused by: )?[\w.$]+(Exception|Error)\b")
_TROUBLE = re.compile(r"\b(ERROR|FATAL)\b")


class Program:
    """A process that logs to a file and is told apart from any other by its record."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        on_begin: Callable[[], None],
        environment: Mapping[str, str] | None = None,
        *,
        takes_orders: bool = False,
    ) -> None:
        """Prepare a program; `on_begin` is called whenever it was begun, so that it can be written down.

        `environment` adds to this process's own. One that takes orders reads them as lines from its standard input.
        """
        self.name = name
        self.log = log
        self.process: ProcessRecord | None = None
        self._command = command
        self._on_begin = on_begin
        self._environment = dict(environment or {})
        self._takes_orders = takes_orders
        self.has_failed = False
        self._child: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Begin the process, in its own session so that a terminal's Ctrl-C does not reach it."""
        if self.is_running:
            raise LocalClusterError(f"{self.name} is running already (pid {self.pid})")
        self.has_failed = False
        with self.log.open("ab") as log, _interrupts_held_back():
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE if self._takes_orders else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**child_environment(), **self._environment},
                start_new_session=True,
            )
            self.process = record(self._child.pid)
            self._on_begin()

    @property
    def is_running(self) -> bool:
        """Whether the process was begun and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The process id; raises LocalClusterError if it was never begun."""
        return self._begun().pid

    def tell(self, order: str) -> None:
        """Give an order, one line; raises LocalClusterError if the program has ended or takes none."""
        orders = self._begun().stdin
        if orders is None:
            raise LocalClusterError(f"{self.name} takes no orders")
        try:
            orders.write(order.encode() + b"\n")
            orders.flush()
        except BrokenPipeError:
            raise LocalClusterError(f"{self.name} has ended: {order!r} does not reach it") from None

    def wait_until(self, is_ready: Callable[[], bool], deadline_s: float = START_DEADLINE_S) -> None:
        """Ask `is_ready` until it says yes.

        Raises:
            ServerStartError: the process ended meanwhile, or the answer was not yes within the deadline.

        """
        give_up_at = time.monotonic() + deadline_s
        while not is_ready():
            if not self.is_running:
                raise self._failure(f"ended with exit code {self._begun().returncode} while it was started")
            if time.monotonic() > give_up_at:
                raise self._failure(f"(pid {self.pid}) was not ready within {deadline_s:g} s")
            time.sleep(ASK_INTERVAL_S)

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the process has ended by itself without an error.

        Raises:
            ServerStartError: it ended with an error.
            LocalClusterError: it runs on after `timeout_s`.

        """
        code = self._wait(timeout_s)
        if code != 0:
            raise self._failure(f"ended with exit code {code}")

    def kill(self) -> None:
        """End the process at once (SIGKILL) and wait until it is gone; nothing happens if it is not running.

        Raises:
            LocalClusterError: it is still there after STOP_DEADLINE_S.

        """
        if self.is_running:
            self._begun().kill()
            self._wait(STOP_DEADLINE_S)

    def _wait(self, timeout_s: float) -> int:
        """Return the exit code."""
        try:
            return self._begun().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LocalClusterError(f"{self.name} (pid {self.pid}) did not end within {timeout_s:g} s") from None

    def _begun(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise LocalClusterError(f"{self.name} was not started")
        return self._child

    def _failure(self, what: str) -> ServerStartError:
        self.has_failed = True
        lines = self.log.read_text(errors="replace").splitlines()
        reasons = [line for line in lines if _REASON.search(line)] or [line for line in lines if _TROUBLE.search(line)]
        told = (reasons or lines or ["nothing was logged"])[-1].strip()
        error = ServerStartError(f"{self.name} {what} ({told}); log: {self.log}")
        error.add_note("\n".join(lines[-LOG_TAIL_LINES:]))
        return error


class Server(Program):
    """A program that listens on a port and can be asked whether it is ready."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        on_begin: Callable[[], None],
        *,
        port: int,
        is_ready: Callable[[], bool],
    ) -> None:
        """Prepare a server; `is_ready` asks it once and returns within a second or two."""
        super().__init__(name, command, log, on_begin)
        self.port = port
        self._is_ready = is_ready

    def spawn(self) -> None:
        """Begin the process; raises LocalClusterError if its port is taken."""
        if not self.is_running and not is_free(self.port):
            raise LocalClusterError(
                f"port {self.port} on {HOST}, which {self.name} needs, is in use by another program"
            )
        super().spawn()

    def start(self) -> None:
        """Begin the server and wait until it is ready; raises ServerStartError if it ends or never answers."""
        self.spawn()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the server is ready; raises ServerStartError if it ends or never answers."""
        self.wait_until(self._is_ready)

    def stop(self) -> None:
        """End the server in an orderly way (SIGTERM), after STOP_DEADLINE_S by force; nothing if it is not running."""
        if not self.is_running:
            return
        os.kill(self.pid, signal.SIGTERM)
        try:
            self._begun().wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait: a process that was begun and not written down yet would be ended by nobody."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals never interrupt another thread
        return
    received: list[int] = []
    held = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, lambda number, _frame: received.append(number))) for number in held]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    for late in received:
        signal.raise_signal(late)


def child_environment() -> dict[str, str]:
    """Return this process's environment, with which a Python child finds the same packages.

    Without what is set for Kafka's clients: a local cluster's broker knows nothing of it.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(addresses.KAFKA_VARIABLES)}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
