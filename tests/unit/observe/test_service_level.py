"""What of a service level was burned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zkrebalancer.observe.service_level import Level, levels
from zkrebalancer.operations import configure
from zkrebalancer.protocol import settings
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.history import Phases, Rebalanced
from zkrebalancer.protocol.settings import GroupSettings

REBALANCED = Rebalanced("a", 1, 1, "eager", 0, (), 0, 2, 4, 2, "finished", 9.0, 500.0, Phases(0, 0, None, None))


def test_pauses_are_those_of_rebalances_that_moved_something() -> None:
    """In `levels`, count all rebalances, or `>=`."""
    pauses = (500.0, 500.5, 9_000.0, None)
    past = [*(replace(REBALANCED, pause_ms_max=pause) for pause in pauses), replace(REBALANCED, moved=0)]
    assert levels({"pause_ms": 500}, past, None) == [Level("pause_ms", 500, 3, 2, 9_000.0)]
    (level,) = levels({"pause_ms": 500}, past, None)
    assert level.line == "slo.pause_ms=500: 2 of 3 rebalances that moved partitions exceed it; the worst: 9000"


def test_lag_is_that_of_partitions_where_it_is_known() -> None:
    assert levels({"lag_s": 30}, [], [0.0, 31.5, None]) == [Level("lag_s", 30, 2, 1, 31.5)]
    (unknown,) = levels({"lag_s": 30}, [], [None])
    assert (unknown.measured, unknown.line) == (0, "slo.lag_s=30: 0 of 0 partitions exceed it")
    assert levels({"lag_s": 30}, [], None) == []
    assert levels({}, [REBALANCED], [1.0]) == []


def test_levels_are_set_one_by_one_and_removed() -> None:
    both = configure.changed(GroupSettings(), ["slo.lag_s=30", "slo.pause_ms=0.5"])
    assert both.slo == {"lag_s": 30, "pause_ms": 0.5}
    assert settings.decode(settings.encode(both)) == both
    assert configure.changed(both, ["slo.lag_s="]).slo == {"pause_ms": 0.5}


@pytest.mark.parametrize(
    "pair", ["slo.lag_s=0", "slo.lag_s=-1", "slo.lag_s=true", "slo.lag_s=NaN", "slo.lag_s=x", "slo.lags=1", "slo=1"]
)
def test_odd_levels_are_refused(pair: str) -> None:
    with pytest.raises(ConfigurationError, match="slo"):
        configure.changed(GroupSettings(), [pair])
