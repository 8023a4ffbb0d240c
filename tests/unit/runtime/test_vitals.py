"""When a process counts as alive, and what it reports to systemd; a socket plays systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from zkrebalancer.runtime.notify import Notifier
from zkrebalancer.runtime.vitals import LOOP_LIMIT_S, MIN_ZOOKEEPER_LIMIT_S, Vitals

SECOND_US = 1_000_000


class Clock:
    now_us = SECOND_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)  # noqa: FBT003
        yield listening


def environment(systemd: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(systemd.getsockname()), **more}


def test_a_process_is_dead_if_its_loop_or_zookeeper_stands_still() -> None:
    clock = Clock()
    vitals = Vitals(6_000, Notifier({}), now_us=clock)
    clock.now_us += int((LOOP_LIMIT_S + 1) * SECOND_US)
    assert vitals.death() == "the loop has not moved for 11 s"
    vitals.looped()
    assert vitals.death() is None
    clock.now_us += int(MIN_ZOOKEEPER_LIMIT_S * SECOND_US)
    vitals.looped()
    assert vitals.death() == "ZooKeeper has not answered for 41 s"
    vitals.answered()
    assert vitals.death() is None


def test_silence_of_zookeeper_is_no_death_where_there_is_work_without_it() -> None:
    """In `Vitals.death`, look at ZooKeeper all the same: relays of all gateways end in its outage."""
    clock, found = Clock(), list[str | None]([None])
    vitals = Vitals(6_000, Notifier({}), now_us=clock, stalled=lambda: found[0])
    clock.now_us += 3_600 * SECOND_US
    assert vitals.death() == "the loop has not moved for 3600 s"
    vitals.looped()
    assert vitals.death() is None
    found[0] = "nothing connects to ZooKeeper any more"
    assert vitals.death() == "nothing connects to ZooKeeper any more"


def test_long_sessions_get_a_longer_limit() -> None:
    clock = Clock()
    vitals = Vitals(60_000, Notifier({}), now_us=clock)
    clock.now_us += 170 * SECOND_US
    vitals.looped()
    assert vitals.death() is None


def test_systemd_is_told_once_that_the_process_is_ready_and_fed_only_while_it_lives(systemd: socket.socket) -> None:
    clock = Clock()
    vitals = Vitals(6_000, Notifier(environment(systemd, WATCHDOG_USEC="600000")), now_us=clock)
    assert vitals.beat_s == pytest.approx(0.2)
    vitals.report(is_ready=False, status="starts")
    vitals.report(is_ready=True, status="leads")
    vitals.report(is_ready=True, status="leads")
    clock.now_us += int((LOOP_LIMIT_S + 1) * SECOND_US)
    vitals.report(is_ready=True, status="leads")
    vitals.stopping()
    assert [systemd.recv(1_000).decode() for _ in range(5)] == [
        "STATUS=starts\nWATCHDOG=1",
        "STATUS=leads\nREADY=1\nWATCHDOG=1",
        "STATUS=leads\nWATCHDOG=1",
        "STATUS=leads",
        "STOPPING=1",
    ]


def test_a_name_in_a_status_is_no_state_of_its_own(systemd: socket.socket) -> None:
    """In `Notifier.send`, pass it on as it is: the name of a group could have the service killed."""
    Notifier(environment(systemd)).send("STATUS=group x\nWATCHDOG=trigger\rSTOPPING=1 is not stored", "WATCHDOG=1")
    assert systemd.recv(1_000) == b"STATUS=group x WATCHDOG=trigger STOPPING=1 is not stored\nWATCHDOG=1"
    Notifier(environment(systemd)).send("STATUS=a\0b " + 5_000 * "ü", "READY=1", "WATCHDOG=1")
    status, *others = systemd.recv(10_000).decode().split("\n")
    assert (status[:11], len(status.encode()), others) == ("STATUS=a b ", 999, ["READY=1", "WATCHDOG=1"])


def test_children_do_not_speak_in_the_name_of_the_process(systemd: socket.socket) -> None:
    variables = environment(systemd, WATCHDOG_USEC="1000000", WATCHDOG_PID=str(os.getpid()), OTHER="x")
    assert Notifier(variables).watchdog_s == 1.0
    assert variables == {"OTHER": "x"}


def test_the_watchdog_of_another_process_is_none_of_ours(systemd: socket.socket) -> None:
    assert Notifier(environment(systemd, WATCHDOG_USEC="1000000", WATCHDOG_PID="1")).watchdog_s is None


def test_a_socket_that_is_full_holds_up_nothing(systemd: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    """In `Notifier`, let the socket block: this test, or a coordinator's loop, waits for systemd for ever."""
    notifier = Notifier(environment(systemd))
    with caplog.at_level("INFO"):
        while not caplog.messages:
            notifier.send("WATCHDOG=1")
    assert caplog.messages[0].startswith("systemd was not told WATCHDOG=1: ")


def test_a_socket_that_is_gone_disturbs_nothing(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).send("READY=1")
    Notifier({}).send("READY=1")


def test_systemd_is_told_again_that_the_process_is_ready_if_its_socket_was_full(systemd: socket.socket) -> None:
    """In `Vitals.report`, count it as told: after TimeoutStartSec, systemd ends the process, which works."""
    notifier = Notifier(environment(systemd))
    while notifier.send("STATUS=others start, too"):
        pass
    vitals = Vitals(6_000, notifier, now_us=Clock())
    vitals.report(is_ready=True, status="leads")
    with suppress(BlockingIOError):
        while True:
            assert b"READY=1" not in systemd.recv(4_096)
    for told in (b"STATUS=leads\nREADY=1\nWATCHDOG=1", b"STATUS=leads\nWATCHDOG=1"):
        vitals.report(is_ready=True, status="leads")
        assert systemd.recv(4_096) == told
