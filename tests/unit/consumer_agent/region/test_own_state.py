"""Arguments of regions with a state of the application's own, and their figures."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from consumer_agent import CommitFailedError, CommitTimeoutError, Consumer, ConsumerStateError
from consumer_agent.region import ConsistentRegion
from consumer_agent.region.figures import Figures
from consumer_agent.region.partition_states import PartitionStates
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


@pytest.mark.parametrize("error", [CommitTimeoutError("no answer"), CommitFailedError("lost")])
def test_a_commit_without_an_outcome_ends_no_iteration_and_is_repeated(error: Exception) -> None:
    """ZooKeeper is away, for example. The former copies stay until a commit has said which one is valid."""
    consumer, handlers = mock.Mock(), mock.Mock()
    consumer._frontend.is_closed = False
    states = PartitionStates(consumer, 3_600.0, handlers)
    batch = mock.MagicMock()
    batch.by_partition.return_value = {("orders", 0): [mock.Mock(offset=6)]}
    consumer.poll.return_value, consumer.position.return_value = batch, {("orders", 0): 7}
    consumer.commit.side_effect = [error, None]
    batches = states.batches()
    next(batches)
    for retired in (0, 1):
        states._due_s = 0.0
        next(batches)
        assert handlers.retire.call_count == retired
    assert consumer.commit.call_args_list == [mock.call({("orders", 0): 7})] * 2
    consumer.commit.side_effect = [error]
    states._stored.clear()
    with pytest.raises(type(error)):
        states.checkpoint(1.0)
