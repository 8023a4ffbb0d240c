"""Look-ups of ZooKeeper's servers."""

from __future__ import annotations

import subprocess
import sys

from tests.support.deadlines import WITHIN_S

PATCHED = """
import gevent.monkey
gevent.monkey.patch_all()
import gc, os
from unittest.mock import Mock
from zkrebalancer.runtime.zk_connection import LookUps

gc.disable()
look_ups = LookUps(Mock(hosts=[("localhost", 1)]))

def opened():
    found = look_ups.addresses()
    assert {host for host, _address, _port in found} == {"localhost"}, found
    return len(os.listdir("/proc/self/fd"))

print(len({opened() for _ in range(5)}))
"""


def test_in_a_program_that_gevent_has_patched_a_look_up_leaves_no_descriptors() -> None:
    """In `zk_connection`, use `socket.getaddrinfo`: such a program ran out of descriptors while servers were away."""
    command = [sys.executable, "-c", PATCHED]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    assert (done.stdout, done.stderr) == ("1\n", "")
