"""Arguments of regions with a state of the application's own, and their figures."""

from __future__ import annotations

from typing import Any

import pytest

from consumer_agent import Consumer, ConsumerStateError
from consumer_agent.region import ConsistentRegion
from consumer_agent.region.figures import Figures
from zkrebalancer.protocol.errors import ConfigurationError, InvalidNameError


def region(consumer: dict[str, Any] | None = None, **arguments: Any) -> ConsistentRegion:
    made = Consumer(zookeeper="z:1", bootstrap="b:1", group="g", **(consumer or {}))
    return ConsistentRegion(made, name="r", **arguments)


HANDLERS: dict[str, Any] = {"on_checkpoint": print, "on_reset": print}


@pytest.mark.parametrize(
    ("consumer", "arguments", "text"),
    [
        ({}, {"recovery": "all"}, "recovery must be one of sink, partition, group, forced, not 'all'"),
        ({}, {"recovery": "group"}, "recovery='group' needs on_checkpoint and on_reset"),
        ({}, {"recovery": "partition", "on_reset": print}, "recovery='partition' needs on_checkpoint and on_reset"),
        ({}, {"on_reset": print}, "need another recovery than 'sink'"),
        ({}, {"recovery": "group", "on_checkpoint": 3, "on_reset": print}, "on_checkpoint: a function is expected"),
        ({}, {"recovery": "forced", **HANDLERS}, "is for unmodified clients: see ForcedRegion"),
        ({}, {"recovery": "group", "reset_s": 0, **HANDLERS}, "reset_s must be a number of seconds, 1 to 86400"),
        ({}, {"recovery": "group", "reset_s": 101, **HANDLERS}, "reset_s=101 needs 303000 or more"),
        ({"offsets_storage": "kafka"}, {"recovery": "group", **HANDLERS}, "needs offsets_storage 'zookeeper'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    consumer: dict[str, Any], arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        region(consumer, **arguments)


def test_a_members_name_has_to_be_legal() -> None:
    with pytest.raises(InvalidNameError, match="member name 'a/b'"):
        region(recovery="group", member="a/b", **HANDLERS)


def test_a_region_with_a_sink_has_no_checkpoints_and_one_without_has_no_transactions() -> None:
    sink = region()
    for call in (sink.checkpoint, lambda: sink.reset(None), sink.metrics):
        with pytest.raises(ConsumerStateError, match="the region recovers by a sink"):
            call()
    with pytest.raises(ConsumerStateError, match="does not recover by a sink"):
        region(recovery="partition", **HANDLERS).transaction(None)


def test_figures_have_the_last_and_the_longest_duration() -> None:
    figures = Figures(rebalances=3)
    for elapsed_ms in (7, 9, 2):
        figures.drains.note(elapsed_ms)
    known = figures.by_name(partitions=4, topics=2)
    assert (known["region_drain_last_ms"], known["region_drain_longest_ms"]) == (2, 9)
    assert (known["region_assigned_partitions"], known["region_consumed_topics"]) == (4, 2)
    assert known["region_rebalances_total"] == 3
    assert known["region_resets_total"] == known["region_checkpoints_total"] == 0
