"""A region whose session can never begin fails with the reason, instead of waiting."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from consumer_agent.region import ForcedRegion
from zkrebalancer.protocol.errors import ConfigurationError


def test_a_password_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `RegionSession._run`, let the error end the thread: the loop waits for ever."""
    monkeypatch.setenv("ZKREBALANCER_ZOOKEEPER_USER", "orders")
    monkeypatch.setenv("ZKREBALANCER_ZOOKEEPER_PASSWORD_FILE", "/missing")
    client = Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    with (
        ForcedRegion(
            client,
            ["t"],
            zookeeper="127.0.0.1:1",
            group="g",
            name="counts",
            member="m",
            on_checkpoint=lambda _checkpoint: None,
            on_reset=lambda _checkpoint: None,
        ) as region,
        pytest.raises(ConfigurationError, match="/missing: cannot be read: No such file"),
    ):
        next(iter(region))
