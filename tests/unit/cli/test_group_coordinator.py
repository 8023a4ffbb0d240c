"""`zkrebalancer group-coordinator` refuses what clients could not be told."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from zkrebalancer.cli.group_coordinator import group_coordinator, group_settings
from zkrebalancer.group_protocol.settings import GroupProtocolSettings


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("localhost:9192", "", "--advertise '': expected a host name"),
        ("localhost:9192", "gw1:9192", "--advertise 'gw1:9192': expected a host name"),
        ("localhost:9192", "a b", "--advertise 'a b': expected a host name"),
        ("localhost:9192", "0.0.0.0", "set the host name for clients with --advertise"),  # noqa: S104  # it is refused
        ("0.0.0.0:9192", None, "set the host name for clients with --advertise"),
        ("[::]:9192", None, "set the host name for clients with --advertise"),
        ("0.0.0.0:9192", "", "expected a host name"),
        ("localhost:65436", None, "--listen localhost:65436: brokers get the 100 ports after it; use 65435 at most"),
    ],
)
def test_an_address_that_clients_cannot_use_is_refused(listen: str, advertise: str | None, expected: str) -> None:
    options = ["--listen", listen, "--upstream", "localhost:9092", "--zookeeper", "localhost:1"]
    if advertise is not None:
        options += ["--advertise", advertise]
    result = CliRunner().invoke(group_coordinator, options)
    assert result.exit_code == 2
    assert expected in result.output


def test_a_session_has_to_outlast_the_heartbeat_interval() -> None:
    there = ["--listen", "gw:9192", "--upstream", "b:9092", "--zookeeper", "localhost:1"]
    result = CliRunner().invoke(
        group_coordinator, [*there, "--assign", "client", "--consumer-session-timeout-ms", "5000"]
    )
    assert "5000 is not longer than the heartbeat interval, 5000 ms" in result.output


def test_a_short_heartbeat_interval_is_not_longer_when_something_is_pending() -> None:
    settings = group_settings(GroupProtocolSettings(), "central", 100)
    assert settings.consumer_heartbeat_interval_ms == settings.consumer_urgent_heartbeat_interval_ms == 100
