"""Faults for tests, the demo and experiments: kill or suspend a process, expire a session, restart ZooKeeper."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from pathlib import Path

from zkrebalancer.localcluster import processes
from zkrebalancer.localcluster.errors import LocalClusterError
from zkrebalancer.localcluster.server import Server
from zkrebalancer.localcluster.zookeeper import split_hosts

EFFECT_DEADLINE_S = 10.0
CONNECT_TIMEOUT_S = 5.0
ASK_INTERVAL_S = 0.005
EXPIRE_TRIES = 30  # a try fails if the session's owner reconnects at once
HOLD_S = 0.01  # shorter than the pause of a client that has tried all servers
_SESSION_TIMEOUT_MS = 10_000
_CLOSE_SESSION = -11
_MAX_REPLY_BYTES = 1024


def kill(pid: int) -> None:
    """Send SIGKILL to a process and wait for its end (our own child stays a zombie until it is reaped)."""
    handle = os.pidfd_open(pid)
    try:
        processes.kill(handle, pid, EFFECT_DEADLINE_S)
    finally:
        os.close(handle)


def freeze(pid: int) -> None:
    """Suspend a process (SIGSTOP) and wait until all its threads are stopped."""
    os.kill(pid, signal.SIGSTOP)
    give_up_at = time.monotonic() + EFFECT_DEADLINE_S
    while any(_thread_state(task) not in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > give_up_at:
            raise LocalClusterError(f"process {pid} did not stop within {EFFECT_DEADLINE_S:g} s of SIGSTOP")
        time.sleep(ASK_INTERVAL_S)


def thaw(pid: int) -> None:
    """Resume a suspended process (SIGCONT)."""
    os.kill(pid, signal.SIGCONT)


def stop_zookeeper(server: Server) -> None:
    """Kill one ZooKeeper server; an ensemble elects a new leader if it has to."""
    server.kill()


def restart_zookeeper(server: Server) -> None:
    """Kill one ZooKeeper server, start it on the same port and data, and wait until it serves; sessions survive."""
    server.kill()
    server.start()


def expire_session(hosts: str, session_id: int, password: bytes) -> None:
    """End another client's session at "HOST:PORT[,…][/CHROOT]" as if it had expired: join the session, then close it.

    On return, the session's ephemeral nodes are gone; its owner notices when it reconnects. Has no effect if the
    session is over already or the password is wrong, which ZooKeeper does not distinguish.

    Raises:
        LocalClusterError: no server closed the session.

    """
    problem: OSError | str = "its owner reconnected each time"
    for host, port in split_hosts(hosts):
        try:
            for _ in range(EXPIRE_TRIES):
                with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
                    if _close_session(connection, session_id, password):
                        return
        except OSError as error:
            problem = error
    raise LocalClusterError(f"session {session_id:#x} could not be ended at {hosts}: {problem}")


def _close_session(connection: socket.socket, session_id: int, password: bytes) -> bool:
    """Connect to the session and close it, with ZooKeeper's length-prefixed messages; return whether it ended.

    Connecting disconnects the session's owner, which may reconnect at once and disconnect us. If it did so during our
    close, it would keep a connection to a dead session; hence the close waits until the owner is gone for HOLD_S.
    """
    protocol_version, last_zxid, read_only = 0, 0, False
    connect = struct.pack(">iqiqi", protocol_version, last_zxid, _SESSION_TIMEOUT_MS, session_id, len(password))
    try:
        _send(connection, connect + password + struct.pack(">?", read_only))
        _version, granted_timeout_ms, _session_id = struct.unpack_from(">iiq", _receive(connection))
        if granted_timeout_ms > 0:  # otherwise the session was over already
            if select.select([connection], [], [], HOLD_S)[0]:
                return False  # the server has closed our connection: the owner is back
            _send(connection, struct.pack(">ii", 1, _CLOSE_SESSION))
            _receive(connection)
    except ConnectionError:
        return False
    return True


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(struct.pack(">i", len(message)) + message)


def _receive(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", _receive_exactly(connection, 4))
    if not 0 <= length <= _MAX_REPLY_BYTES:
        raise OSError(f"a reply of {length} bytes is not from ZooKeeper")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError("the server closed the connection")
        received += chunk
    return received


def _thread_state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"  # ended meanwhile
