"""`--watch` on a terminal, until Ctrl-C."""

from __future__ import annotations

import os
import pty
import subprocess
import termios

import gevent
import gevent.socket

from tests.integration.commands import command_of
from tests.support.deadlines import WITHIN_S
from zkrebalancer.localcluster.cluster import LocalCluster
from zkrebalancer.localcluster.server import child_environment

HIDE_CURSOR = b"\x1b[?25l"
OTHER_SCREEN = b"\x1b[?1049h"


def _read_until(terminal: int, text: bytes) -> bytes:
    """Return what a terminal has shown, up to this text; the test's ZooKeeper session lives on meanwhile."""
    seen = b""
    with gevent.Timeout(WITHIN_S):
        while text not in seen:
            gevent.socket.wait_read(terminal)
            seen += os.read(terminal, 4_096)
    return seen


def test_ctrl_c_ends_a_view_and_leaves_the_terminal_as_it_was(shared_cluster: LocalCluster) -> None:
    ours, its = pty.openpty()
    try:
        before = termios.tcgetattr(its)
        command = command_of("zkrebalancer", "groups", "list", "--watch", "--zookeeper", shared_cluster.zookeeper)
        environment = {**child_environment(), "TERM": "xterm"}
        session = ["setsid", "--ctty", *command]  # the terminal is its own, so that its keys are signals
        process = subprocess.Popen(session, stdin=its, stdout=its, stderr=its, env=environment)
        seen = _read_until(ours, b"Ctrl-C ends\r\n")
        os.write(ours, b"\x03")  # as the key: the terminal sends the signal
        assert gevent.get_hub().threadpool.apply(process.wait, (WITHIN_S,)) == 0
        os.write(its, b"end")
        seen += _read_until(ours, b"end")
        assert termios.tcgetattr(its) == before
    finally:
        os.close(ours)
        os.close(its)
    assert HIDE_CURSOR not in seen
    assert OTHER_SCREEN not in seen
    assert b"Traceback" not in seen
    assert seen.endswith(b"^C\r\nend")  # the shell's prompt begins its own line
