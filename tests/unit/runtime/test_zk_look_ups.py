"""Look-ups of ZooKeeper's servers."""

from __future__ import annotations

import subprocess
import sys
import threading
from socket import AI_NUMERICHOST
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from kazoo.client import KazooClient

from tests.support.deadlines import WITHIN_S
from zkrebalancer.runtime.zk_connection import LookUps

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


def test_a_name_that_is_not_answered_delays_the_others_only_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `LookUps.addresses`, wait LOOK_UP_S for all of them: a short session ended before each reconnect."""
    released = threading.Event()

    def look_up(host: str, port: int, *hints: int) -> list[tuple[Any, ...]]:
        if host == "unknown" or AI_NUMERICHOST in hints:
            raise OSError
        if host == "silent":
            released.wait(WITHIN_S)
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr("zkrebalancer.runtime.zk_connection._look_up", look_up)
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection.LOOK_UP_S", WITHIN_S)
    monkeypatch.setattr("zkrebalancer.runtime.zk_connection.OTHERS_S", 0.001)
    asked = SimpleNamespace(hosts=[("unknown", 1), ("silent", 2), ("known", 3)])
    try:
        with gevent.Timeout(WITHIN_S / 2):
            found = LookUps(cast("KazooClient", asked)).addresses()
    finally:
        released.set()
    assert found == [("known", "127.0.0.1", 3)]
