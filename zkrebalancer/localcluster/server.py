"""A program of a local cluster: runs in its own process session, logs to its own file, and is probed until ready."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from zkrebalancer.localcluster.errors import LocalClusterError, ServerStartError
from zkrebalancer.localcluster.interrupts import interrupts_deferred
from zkrebalancer.localcluster.ports import HOST, is_free
from zkrebalancer.localcluster.processes import ProcessRecord, record
from zkrebalancer.protocol import addresses

START_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0
ASK_INTERVAL_S = 0.03
LOG_TAIL_LINES = 12
_REASON = re.compile(r"^(Caused by: )?[\w.$]+(Exception|Error)\b")
_TROUBLE = re.compile(r"\b(ERROR|FATAL)\b")


class Program:
    """A process that logs to a file, identified by its process record."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        on_spawn: Callable[[], None],
        environment: Mapping[str, str] | None = None,
        *,
        takes_orders: bool = False,
    ) -> None:
        """Prepare a program; `on_spawn` is called after each spawn, to record the process.

        `environment` adds to this process's own. With `takes_orders`, the program reads lines from its standard input.
        """
        self.name = name
        self.log = log
        self.process: ProcessRecord | None = None
        self._command = command
        self._on_spawn = on_spawn
        self._environment = dict(environment or {})
        self._takes_orders = takes_orders
        self.has_failed = False
        self._child: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Spawn the process, in its own session so that a terminal's Ctrl-C does not reach it."""
        if self.is_running:
            raise LocalClusterError(f"{self.name} is running already (pid {self.pid})")
        self.has_failed = False
        with self.log.open("ab") as log, interrupts_deferred():
            self._child = self._begin(log.fileno())
            self.process = record(self._child.pid)
            self._on_spawn()

    def _begin(self, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE if self._takes_orders else subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**child_environment(), **self._environment},
            start_new_session=True,
        )

    @property
    def is_running(self) -> bool:
        """Whether the process was spawned and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus the signal that ended it; None while it runs."""
        return self._spawned().poll()

    @property
    def pid(self) -> int:
        """The process id; raises LocalClusterError if it was never spawned."""
        return self._spawned().pid

    def tell(self, order: str) -> None:
        """Send one line to the program; raises LocalClusterError if it has ended or was not created to take orders."""
        orders = self._spawned().stdin
        if orders is None:
            raise LocalClusterError(f"{self.name} takes no orders")
        try:
            orders.write(order.encode() + b"\n")
            orders.flush()
        except BrokenPipeError:
            raise LocalClusterError(f"{self.name} has ended: cannot send {order!r}") from None

    def wait_until(self, is_ready: Callable[[], bool], deadline_s: float = START_DEADLINE_S) -> None:
        """Call `is_ready` repeatedly until it returns True.

        Raises:
            ServerStartError: the process ended meanwhile, or was not ready within the deadline.

        """
        give_up_at = time.monotonic() + deadline_s
        while not is_ready():
            if not self.is_running:
                raise self._failure(f"ended with exit code {self._spawned().returncode} while starting")
            if time.monotonic() > give_up_at:
                raise self._failure(f"(pid {self.pid}) was not ready within {deadline_s:g} s")
            time.sleep(ASK_INTERVAL_S)

    def wait_end(self, timeout_s: float) -> None:
        """Wait until the process ends by itself.

        Raises:
            ServerStartError: the exit code is not 0.
            LocalClusterError: it still runs after `timeout_s`.

        """
        code = self._wait(timeout_s)
        if code != 0:
            raise self._failure(f"ended with exit code {code}")

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process; has no effect if it is not running.

        Raises:
            LocalClusterError: it still exists after STOP_DEADLINE_S.

        """
        if self.is_running:
            self._spawned().kill()
            self._wait(STOP_DEADLINE_S)

    def _wait(self, timeout_s: float) -> int:
        """Return the exit code."""
        try:
            return self._spawned().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise LocalClusterError(f"{self.name} (pid {self.pid}) did not end within {timeout_s:g} s") from None

    def _spawned(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise LocalClusterError(f"{self.name} was not started")
        return self._child

    def _failure(self, what: str) -> ServerStartError:
        self.has_failed = True
        lines = self.log.read_text(errors="replace").splitlines()
        reasons = [line for line in lines if _REASON.search(line)] or [line for line in lines if _TROUBLE.search(line)]
        reason = (reasons or lines or ["nothing was logged"])[-1].strip()
        error = ServerStartError(f"{self.name} {what} ({reason}); log: {self.log}")
        error.add_note("\n".join(lines[-LOG_TAIL_LINES:]))
        return error


class Server(Program):
    """A program that listens on a port and has a readiness probe."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        on_spawn: Callable[[], None],
        *,
        port: int,
        is_ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a server; `is_ready` probes it once and must return within about two seconds."""
        super().__init__(name, command, log, on_spawn, environment)
        self.port = port
        self._is_ready = is_ready

    def spawn(self) -> None:
        """Spawn the process; raises LocalClusterError if its port is in use."""
        if not self.is_running and not is_free(self.port):
            raise LocalClusterError(
                f"port {self.port} on {HOST}, which {self.name} needs, is in use by another program"
            )
        super().spawn()

    def start(self) -> None:
        """Spawn the server and wait until it is ready; raises ServerStartError if it ends or does not become ready."""
        self.spawn()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the server is ready; raises ServerStartError if it ends or does not become ready."""
        self.wait_until(self._is_ready)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Send SIGTERM, after `deadline_s` SIGKILL, and wait for the end; has no effect if it is not running."""
        if not self.is_running:
            return
        os.kill(self.pid, signal.SIGTERM)
        try:
            self._spawned().wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()


def child_environment() -> dict[str, str]:
    """Return this process's environment, extended so that a Python child finds the same packages.

    Variables with settings of Kafka clients are left out, because they do not apply to a local cluster's broker.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith(addresses.KAFKA_VARIABLES)}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
