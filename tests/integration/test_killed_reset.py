"""`groups reset-offsets` is killed while starts are paused: its pause ends without an operator."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.integration.commands import begin, end
from tests.integration.scenario import Scenario
from tests.support.next_version import next_version
from zkrebalancer.protocol.settings import INCREMENTAL

LIMIT_S = 6
SOON = {"zkrebalancer/rebalance/expiry.py": ("PAUSE_LIMIT_US = 60_000_000", f"PAUSE_LIMIT_US = {LIMIT_S}_000_000")}


def test_a_reset_that_is_killed_stops_starts_for_a_while_and_nothing_else(scenario: Scenario, tmp_path: Path) -> None:
    """Kill it while it waits for a broker that never answers: after its pause, before its first offset."""
    scenario.add_coordinator(environment=next_version(tmp_path, SOON))
    scenario.lab.wait_leader()
    scenario.add_topic("t")
    group = scenario.add_group(INCREMENTAL, 1)
    scenario.settle()
    scenario.stop(scenario.take_out(group))
    began_us = scenario.now_us()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = ("--to-earliest", "--bootstrap", address, "--zookeeper", scenario.lab.cluster.zookeeper)
        reset = begin("zkrebalancer", "groups", "reset-offsets", group, *options)
        try:
            scenario.wait_group("paused", group, lambda report: report.settings.starts_paused)
            scenario.join(group)
            scenario.wait_group("a member", group, lambda report: bool(report.members))
        finally:
            reset.kill()
            killed = end(reset)
    assert killed.returncode == -9
    scenario.settle()
    assert not scenario.report(group).settings.starts_paused
    started = scenario.events("command_sent", since_us=began_us, group=group, option="start-fetcher")
    assert started[0]["mono_us"] - began_us >= LIMIT_S * 1_000_000
    scenario.verify()
