"""Arguments of regions with a state of the application's own, and their figures."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from consumer_agent import Batch, CommitFailedError, CommitTimeoutError, Consumer, ConsumerStateError
from consumer_agent.kafka.elsewhere import Found, LookAtKafka, Silence
from consumer_agent.membership.duties import Duties
from consumer_agent.region import ConsistentRegion
from consumer_agent.region.figures import Figures
from consumer_agent.region.own_state import Checkpoint
from consumer_agent.region.partition_states import PartitionStates
from consumer_agent.runtime.engine import Engine
from consumer_agent.runtime.machine_thread import MachineThread
from consumer_agent.runtime.notices import Tell
from consumer_agent.runtime.record_buffer import Advance, Finished
from consumer_agent.spark import PlanningConsumer
from zkrebalancer.protocol.errors import ConfigurationError, InvalidNameError


def region(consumer: dict[str, Any] | None = None, **arguments: Any) -> ConsistentRegion:
    return ConsistentRegion(Consumer(**SETTINGS, **(consumer or {})), name="r", **arguments)


async def waiting(_checkpoint: object) -> None: ...


SETTINGS: dict[str, Any] = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g"}
HANDLERS: dict[str, Any] = {"on_checkpoint": print, "on_reset": print}
ORDERS = ("orders", 0)
FIRST = {ORDERS: 1}  # its generation


@pytest.mark.parametrize(
    ("consumer", "arguments", "text"),
    [
        ({}, {"recovery": "all"}, "recovery must be one of sink, partition, group, forced, not 'all'"),
        ({}, {"recovery": "group"}, "recovery='group' needs on_checkpoint and on_reset"),
        ({}, {"recovery": "partition", "on_reset": print}, "recovery='partition' needs on_checkpoint and on_reset"),
        ({}, {"on_reset": print}, "need another recovery than 'sink'"),
        ({}, {"recovery": "group", "on_checkpoint": 3, "on_reset": print}, "on_checkpoint: a function is expected"),
        ({}, {"recovery": "group", **HANDLERS, "on_checkpoint": waiting}, "on_checkpoint may not be a coroutine"),
        ({}, {"recovery": "partition", **HANDLERS, "on_reset": waiting}, "on_reset may not be a coroutine function"),
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


def begun(consumer: Consumer) -> MachineThread:
    """Return the machine thread of a consumer that has polled; it does not run."""
    consumer.subscribe(["orders"])
    with mock.patch("consumer_agent.kafka.fetcher.KafkaConsumer"), mock.patch.object(Engine, "start"):
        consumer.poll(0.0)
    thread = consumer._frontend.machine_thread
    assert thread is not None
    return thread


@pytest.mark.parametrize("recovery", ["partition", "group", "sink"])
def test_a_region_keeps_its_own_offsets_and_by_partition_stores_none_without_a_copy(recovery: str) -> None:
    consumer = Consumer(**SETTINGS)
    ConsistentRegion(consumer, name="r", recovery=recovery, **({} if recovery == "sink" else HANDLERS))
    thread = begun(consumer)
    duties = Duties(tells_origins=True, in_region=True, keeps_copies=recovery == "partition")
    assert (thread._machine._settings.member.duties, thread._look) == (duties, None)


@pytest.mark.parametrize("ignores", [True, False])
def test_a_spark_query_may_have_a_sink_but_its_offsets_are_those_of_its_group(ignores: bool) -> None:
    """As it was: it stored nothing before its first batch; with `latest`, what came before its next start was skipped.

    And it did not look at Kafka: it read again what plain consumers had read, also beside them.
    """
    thread = begun(PlanningConsumer(enable_auto_commit=False, ignore_kafka_offsets=ignores, **SETTINGS))
    assert thread._machine._settings.member.duties == Duties(tells_origins=True)
    assert (thread._look is None) is ignores


def planning() -> tuple[PlanningConsumer, LookAtKafka]:
    """Return a Spark query's member with a lease and a partition, and its look at Kafka, which sends no requests."""
    consumer = PlanningConsumer(enable_auto_commit=False, **SETTINGS)
    thread, shared = begun(consumer), consumer._frontend.shared
    assert not consumer.has_lease()
    shared.emit_until(2**62)
    assert consumer.has_lease()
    shared.admit(ORDERS, 1, 5)
    assert thread._look is not None
    return consumer, thread._look


@mock.patch.object(LookAtKafka, "_send", mock.Mock())
def test_a_spark_query_reads_nothing_while_kafka_is_asked_who_else_uses_its_group() -> None:
    """In `PlanningConsumer.advance`, do not ask: its first batch is read before the answer that forbids it."""
    consumer, look = planning()
    shared = consumer._frontend.shared
    look.check({ORDERS: 5}, shared.break_down, lambda: None)
    assert consumer.advance({ORDERS: 9}, FIRST) == {}
    look._note(Found([], {}, []))
    assert consumer.advance({ORDERS: 9}, FIRST) == {ORDERS: Advance(5, 1)}
    shared.break_down(ConsumerStateError("the group has members of Kafka's own protocol"))
    assert consumer.advance({ORDERS: 12}, FIRST) == {}


@mock.patch.object(LookAtKafka, "_send", mock.Mock())
def test_a_spark_query_reads_on_while_the_coordinator_of_its_group_is_away() -> None:
    """In `LookAtKafka.is_asking`, look only whether something waits: five of seven seconds, nothing is read."""
    consumer, look = planning()
    for offset in (9, 12):
        look.check({ORDERS: 5}, consumer._frontend.shared.break_down, lambda: None)
        assert bool(consumer.advance({ORDERS: offset}, FIRST)) is (offset == 12)
        look._note(Silence("no answer"))
    look._note(Found([], {}, []))
    look._when_found(mock.Mock(), is_anew=True)  # the answer was old, and forbids to read
    assert consumer.advance({ORDERS: 15}, FIRST) == {}


@mock.patch.object(LookAtKafka, "_send", mock.Mock())
def test_a_spark_query_reads_nothing_between_the_answer_and_the_error_that_it_means() -> None:
    """In `LookAtKafka._note`, do not count what is being judged."""
    consumer, look = planning()
    refuse = mock.Mock(side_effect=lambda _error: consumer.advance({ORDERS: 9}, FIRST))
    look.check({ORDERS: 5}, lambda error: advanced.append(refuse(error)), lambda: None)
    advanced: list[Any] = []
    look._note(Found(["plain"], {}, []))
    assert advanced == [{}]


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
    consumer._frontend = mock.MagicMock(is_closed=False)
    consumer._frontend.shared.buffer.generations.return_value = {}
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
    assert handlers.checkpoint.call_count == 2  # no sign that a commit has succeeded in between
    assert consumer.commit.call_args_list == [mock.call({("orders", 0): 7})] * 2
    consumer.commit.side_effect = [error]
    states._stored.clear()
    with pytest.raises(type(error)):
        states.checkpoint(1.0)


class PlayedStates:
    """The states of one partition; the test plays the consumer."""

    def __init__(self, committed: int | None = 5) -> None:
        self.consumer, self.handlers = mock.Mock(), mock.Mock()
        self.consumer._frontend = mock.MagicMock(is_closed=False)
        self.consumer.generation.return_value = {ORDERS: 1}
        self.buffer = self.consumer._frontend.shared.buffer
        self.consumer._frontend.shared.buffer.generations.return_value = {ORDERS: 1}
        self.consumer.committed.return_value = {ORDERS: committed}
        self.consumer.position.return_value = {ORDERS: 5}
        batch = mock.MagicMock()
        batch.by_partition.return_value = {ORDERS: [mock.Mock(offset=6)]}
        self.consumer.poll.return_value = batch
        self.states = PartitionStates(self.consumer, 3_600.0, self.handlers)
        self.hooks = self.states.hooks
        self.hooks[Tell.ASSIGNED]([ORDERS])
        self.batches = self.states.batches()
        next(self.batches)
        self.consumer.position.return_value = {ORDERS: 7}
        self.consumer.close.side_effect = lambda: self.hooks[Tell.REVOKE]([ORDERS])

    def revoke(self) -> None:
        """Give the partition up within the poll for the next batch, and stop."""

        def poll(_timeout_s: float) -> Batch:
            self.hooks[Tell.REVOKE]([ORDERS])
            self.states.stop()
            return Batch()

        self.consumer.poll.side_effect = poll
        assert list(self.batches) == []


def test_a_commit_that_has_failed_is_repeated_though_no_more_records_come() -> None:
    """In `PartitionStates._store_and_commit`, take the copy for valid before: nothing commits it until others come."""
    played = PlayedStates()
    played.consumer.commit.side_effect = [CommitTimeoutError("no answer"), None]
    polls = 0

    def poll(_timeout_s: float) -> Batch:
        nonlocal polls
        polls += 1
        played.states._due_s = 0.0
        if polls == 3:
            played.states.stop()
        return Batch()

    played.states._due_s, played.consumer.poll.side_effect = 0.0, poll
    assert list(played.batches) == []
    assert played.consumer.commit.call_args_list == [mock.call({ORDERS: 7})] * 2
    played.handlers.retire.assert_called_once_with(Checkpoint(offsets={ORDERS: 7}))


def test_what_was_processed_is_stored_before_its_partition_moves() -> None:
    """Also the last batch, although the application has not asked for another one yet: `close` comes between two."""
    played = PlayedStates()
    played.states.stop()
    assert list(played.batches) == []
    played.states.close(is_clean=True)
    played.handlers.checkpoint.assert_called_once_with(Checkpoint(offsets={ORDERS: 7}))
    played.consumer.finish.assert_called_once_with({ORDERS: 7})


def test_a_state_without_a_copy_is_stored_before_its_first_record() -> None:
    """An unclean end commits where its partition began; the next owner needs a copy for that."""
    played = PlayedStates(committed=None)
    assert played.handlers.mock_calls == [
        mock.call.reset(Checkpoint(offsets={ORDERS: None})),
        mock.call.checkpoint(Checkpoint(offsets={ORDERS: 5})),
    ]
    played.consumer.finish.assert_called_once_with({ORDERS: 5})


def test_after_an_exception_not_even_a_state_that_begins_is_stored() -> None:
    played = PlayedStates(committed=None)
    played.handlers.reset_mock()
    played.consumer.close.side_effect = lambda: played.hooks[Tell.ASSIGNED]([ORDERS])  # it has just been started
    played.states.close(is_clean=False)
    played.handlers.checkpoint.assert_not_called()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_batch_that_was_left_halfway_is_not_stored(is_clean: bool) -> None:
    played = PlayedStates()
    played.states.close(is_clean=is_clean)
    played.handlers.checkpoint.assert_not_called()
    played.consumer.finish.assert_not_called()


def test_a_partition_that_is_revoked_within_a_poll_takes_its_last_batch_along() -> None:
    played = PlayedStates()
    played.revoke()
    played.handlers.checkpoint.assert_called_once_with(Checkpoint(offsets={ORDERS: 7}))
    assert played.states.metrics()["region_assigned_partitions"] == 0


@pytest.mark.parametrize(("generation", "offset"), [(1, 7), (2, 5)])
def test_after_a_move_that_is_cancelled_the_copy_that_was_stored_for_it_is_restored(
    generation: int, offset: int
) -> None:
    """Reading goes on behind it: at the committed offset, the state would lack the records between."""
    played = PlayedStates()
    played.revoke()
    played.consumer.generation.return_value = {ORDERS: generation}
    played.consumer.position.return_value = {ORDERS: offset}
    played.hooks[Tell.ASSIGNED]([ORDERS])
    assert played.handlers.reset.call_args == mock.call(Checkpoint(offsets={ORDERS: offset}))
    played.states.checkpoint(1.0)  # it is committed soon, else the former copy would stay the valid one
    assert played.consumer.commit.call_args_list == [mock.call({ORDERS: 7}, timeout_s=1.0)] * (generation == 1)
    assert played.states._given_up == {}


def test_what_is_remembered_of_moves_ends_with_them() -> None:
    played = PlayedStates()
    played.revoke()
    assert played.states._given_up == {ORDERS: (1, 7)}
    played.consumer.generation.return_value = {}
    played.hooks[Tell.REVOKE]([])
    assert played.states._given_up == {}


def test_after_a_reset_to_the_beginning_no_offset_further_on_is_committed() -> None:
    """A partition that moves takes along what is finished: the next owner would look for a copy that is gone."""
    played = PlayedStates()
    played.consumer.beginning_offsets.return_value = {ORDERS: 0, ("lost", 0): 0}
    gone = CommitFailedError("it is lost")
    played.buffer.finish_at.side_effect = lambda finished: None if ORDERS in finished else raise_it(gone)
    played.states._processed["lost", 0] = 3
    played.states.reset(None, 1.0)
    assert mock.call({ORDERS: Finished(0)}) in played.buffer.finish_at.call_args_list
    played.handlers.checkpoint.assert_called_once_with(Checkpoint(offsets={ORDERS: 0, ("lost", 0): 0}))


def test_a_reset_where_the_valid_copy_is_stores_the_new_state_in_its_place() -> None:
    """Retention has deleted what was processed. As it was: the next owner restored the state from before the reset."""
    played = PlayedStates(committed=0)
    played.consumer.beginning_offsets.return_value = {ORDERS: 0}
    played.states.reset(None, 1.0)
    assert played.handlers.mock_calls[-2:] == [
        mock.call.reset(Checkpoint(offsets={ORDERS: None})),
        mock.call.checkpoint(Checkpoint(offsets={ORDERS: 0})),
    ]


def raise_it(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("lost", [{ORDERS}, {ORDERS, ("orders", 1)}])
def test_partitions_that_are_lost_while_on_assign_begins_end_no_iteration(lost: set[tuple[str, int]]) -> None:
    played, both = PlayedStates(), [ORDERS, ("orders", 1)]
    played.handlers.reset.reset_mock()
    left = {partition: 1 for partition in both if partition not in lost}
    played.consumer.generation.side_effect = [dict.fromkeys(both, 1), left, left]
    played.consumer.committed.side_effect = [ConsumerStateError("in no group"), dict.fromkeys(left)]
    played.hooks[Tell.ASSIGNED](both)
    assert played.handlers.reset.call_args_list == [mock.call(Checkpoint(offsets=dict.fromkeys(left)))] * bool(left)
    played.consumer.generation.side_effect = None
    played.consumer.committed.side_effect = ConsumerStateError("closed")
    with pytest.raises(ConsumerStateError):
        played.hooks[Tell.ASSIGNED]([ORDERS])
