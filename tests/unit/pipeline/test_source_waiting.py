"""How long a query with `Trigger.AvailableNow` waits for partitions, and others for a query."""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import mock

import pytest

from consumer_agent.membership.events import Origin
from consumer_agent.spark import Advance, PlanningConsumer
from tests.support.deadlines import WITHIN_S
from zkrebalancer.pipeline.source import incarnations, membership, stream
from zkrebalancer.pipeline.source.kafka import DataLossError, KafkaReadError, Logs
from zkrebalancer.pipeline.source.offsets import Document, Range
from zkrebalancer.pipeline.source.options import parse
from zkrebalancer.pipeline.source.stream import ConsumerGroupStreamReader
from zkrebalancer.protocol.errors import RebalancerError, ZooKeeperUnavailableError
from zkrebalancer.protocol.fields import TopicPartition

PARTITION = ("orders", 0)
OPTIONS = {"zookeeper": "z:1", "bootstrap": "b:1", "group": "g", "topics": "orders"}


class Setting:
    """A query whose member owns no partition at first; `waits` counts its waits for one, which end at once."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.consumer = mock.Mock(spec=PlanningConsumer)
        self.consumer.assignment.return_value, self.consumer.position.return_value = [], {}
        self.consumer.advance.return_value, self.consumer.origins.return_value = {}, {}
        self.consumer.has_lease.return_value = True
        self.logs = mock.Mock(spec=Logs)
        self.reader = ConsumerGroupStreamReader(parse(OPTIONS))
        self._caplog = caplog

    @property
    def waits(self) -> int:
        return sum("assigned no partition" in record.getMessage() for record in self._caplog.records)

    def lose(self) -> None:
        """Let the next poll report an eviction."""
        on_lost: Callable[[object], object] = self.consumer.subscribe.call_args.kwargs["on_lost"]
        reports = iter([[PARTITION]])
        self.consumer.poll.side_effect = lambda *_, **__: [on_lost(lost) for lost in reports]

    def own(self, position: int | None) -> None:
        """Own the partition, of whose log 10 records are to be read; None: it is not known where it begins."""
        lease = self.consumer.has_lease
        self.consumer.assignment.return_value = [PARTITION]
        self.consumer.position.return_value = {} if position is None else {PARTITION: position}
        self.consumer.origins.return_value = {PARTITION: Origin("", 0)}
        self.consumer.advance.side_effect = lambda offsets, _generations: (
            dict.fromkeys(offsets, Advance(position or 0, 1)) if lease.return_value else {}
        )

    def plan(self) -> None:
        assert self.reader.latestOffset({}, self.reader.getDefaultReadLimit()) == {}


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Setting:
    setting = Setting(caplog)
    logs = setting.logs
    logs.offsets.return_value = setting.consumer.ends.return_value = {PARTITION: 10}
    monkeypatch.setattr(membership, "ASSIGNMENT_TIMEOUT_S", 0.0)
    monkeypatch.setattr(membership, "PlanningConsumer", mock.Mock(return_value=setting.consumer))
    monkeypatch.setattr(membership, "Logs", mock.Mock(return_value=logs))
    monkeypatch.setattr(stream, "_leave_on_sigterm", lambda: None)
    return setting


def test_a_query_without_partitions_waits_once(setting: Setting) -> None:
    """It waited twice, and again at every plan after its partitions had moved to others."""
    setting.reader.prepareForTriggerAvailableNow()
    assert setting.waits == 1
    setting.plan()
    assert setting.waits == 1


def test_a_batch_that_spark_has_not_started_is_not_finished(setting: Setting) -> None:
    """In `latestOffset`, plan another one: its records would count as read, and no batch ever has them."""
    setting.own(4)
    limit = setting.reader.getDefaultReadLimit()
    end = setting.reader.latestOffset({}, limit)
    assert end != {}
    assert setting.reader.latestOffset({}, limit) == end
    setting.consumer.finish.assert_not_called()
    setting.own(10)
    assert setting.reader.latestOffset(end, limit) == end
    assert setting.consumer.finish.call_count == 1


def test_only_a_batch_of_a_former_process_is_compared_with_its_topics(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `partitions`, compare none: a batch that is repeated would have records of another topic of that name."""
    compared = mock.Mock(side_effect=lambda _options, ranges: ranges)
    monkeypatch.setattr(stream, "still_there", compared)
    setting.own(4)
    end = setting.reader.latestOffset({}, setting.reader.getDefaultReadLimit())
    assert setting.reader.partitions({}, end)
    compared.assert_not_called()
    assert ConsumerGroupStreamReader(parse(OPTIONS)).partitions({}, end)
    compared.assert_called_once()


def test_a_batch_that_is_repeated_has_no_record_of_another_topic_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `still_there`, take a topic that was not known when the batch was planned for a deleted one."""
    present = {"same": "id-1", "anew": "id-2"}
    monkeypatch.setattr(incarnations, "BlockingZk", mock.MagicMock())
    monkeypatch.setattr(incarnations, "present_identities", lambda _zk, _topics: present)
    known = {"same": "id-1", "unknown": "", "anew": "id-1", "gone": "id-1"}
    ranges = [Range(topic, 0, 0, 1, 1, identity) for topic, identity in known.items()]
    loses, options = parse({**OPTIONS, "failOnDataLoss": "false"}), parse(OPTIONS)
    assert incarnations.still_there(loses, ranges) == ranges[:2] == incarnations.still_there(options, ranges[:2])
    for one in ranges[2:]:
        with pytest.raises(DataLossError, match=f"{one.topic} was deleted"):
            incarnations.still_there(options, [one])


def test_a_query_that_ends_leaves_the_group_once(setting: Setting) -> None:
    """In `stop`, only forget the member: its partitions are read by nobody until its session ends."""
    setting.own(4)
    setting.reader.latestOffset({}, setting.reader.getDefaultReadLimit())
    for _ in range(2):
        setting.reader.stop()
    assert setting.consumer.close.call_count == 1


def test_a_query_that_was_evicted_waits_again(setting: Setting) -> None:
    setting.reader.prepareForTriggerAvailableNow()
    setting.lose()
    setting.plan()
    assert setting.waits == 2
    setting.plan()
    assert setting.waits == 2


def test_a_query_whose_partitions_are_all_stopped_waits_for_the_end_of_the_rebalance(setting: Setting) -> None:
    """As it was: each rebalance of an `eager` group ended it as a success, with records left."""
    setting.own(10)
    setting.reader.prepareForTriggerAvailableNow()
    setting.plan()
    setting.consumer.assignment.return_value, setting.consumer.position.return_value = [], {}
    setting.plan()
    assert setting.waits == 1
    setting.plan()  # others own them now
    assert setting.waits == 1


@pytest.mark.parametrize("position", [4, 10])
def test_a_query_whose_partitions_are_stopped_while_it_plans_waits_too(setting: Setting, position: int) -> None:
    """In `Membership.plan_rest`, take an empty plan for the end. At 10 it has read all: others may come instead."""
    setting.own(position)
    setting.reader.prepareForTriggerAvailableNow()

    def ends(_partitions: object, _timeout_s: float) -> dict[TopicPartition, int]:
        setting.consumer.assignment.return_value, setting.consumer.position.return_value = [], {}
        setting.consumer.advance.side_effect = lambda *_: {}
        return {PARTITION: 10}

    setting.consumer.ends.side_effect = ends
    setting.plan()
    assert setting.waits == 1


def test_a_query_goes_on_once_it_has_its_lease_again(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: nothing could be reserved without a lease, and the query ended as a success."""
    setting.own(4)
    setting.reader.prepareForTriggerAvailableNow()
    setting.consumer.has_lease.return_value = False
    monkeypatch.setattr(membership, "ASSIGNMENT_TIMEOUT_S", WITHIN_S)
    renew = setting.consumer.has_lease

    def poll(timeout_s: float, **_: object) -> None:
        renew.return_value = renew.return_value or timeout_s > 0  # it is renewed while the query waits

    setting.consumer.poll.side_effect = poll
    end = setting.reader.latestOffset({}, setting.reader.getDefaultReadLimit())
    assert end == {"orders": {"0": {"from": 4, "to": 10, "generation": 1}}}


@pytest.mark.parametrize("owns", [True, False])
def test_a_query_without_a_lease_fails_rather_than_ends(setting: Setting, owns: bool) -> None:
    """Without partitions, too: its session may have ended while ZooKeeper was away."""
    setting.own(4)
    setting.reader.prepareForTriggerAvailableNow()
    setting.consumer.has_lease.return_value = False
    if not owns:
        setting.consumer.assignment.return_value = []
    with pytest.raises(ZooKeeperUnavailableError, match="the query has had no lease in group g"):
        setting.plan()


def test_a_query_does_not_end_before_a_partition_whose_beginning_is_not_known(setting: Setting) -> None:
    """In `Membership._note_wait_in_vain`, raise nothing: the query ends, and its records are left."""
    setting.own(10)
    setting.reader.prepareForTriggerAvailableNow()
    setting.own(None)
    with pytest.raises(KafkaReadError, match="orders/0: where it begins is not known after 0 s"):
        setting.plan()


def test_a_query_needs_no_position_where_nothing_is_to_be_read(setting: Setting) -> None:
    """Its topic was empty when the query began, and has no leader now."""
    setting.own(10)
    setting.reader.prepareForTriggerAvailableNow()
    assert setting.reader._targets is not None
    setting.reader._targets[PARTITION] = 0
    setting.own(None)
    setting.plan()


def test_a_query_of_whose_group_kafka_does_not_say_who_uses_it_fails(setting: Setting) -> None:
    """Nothing can be reserved meanwhile. In `Membership.plan`, forget that: the query ends as a success."""
    setting.own(4)
    setting.reader.prepareForTriggerAvailableNow()
    setting.consumer.advance.side_effect = lambda *_: {}
    with pytest.raises(RebalancerError, match="Kafka at b:1 does not say who else uses group g"):
        setting.plan()


def test_a_query_whose_batches_are_long_whatever_their_size_says_so_once(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s, end = 0.0, Document()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    setting.own(4)
    setting.consumer.ends.return_value = {PARTITION: 10**9}
    for _ in range(5):
        end = setting.reader.latestOffset(end, setting.reader.getDefaultReadLimit())
        now_s += 300.0
    lines = [line for record in caplog.records if "whatever its size" in (line := record.getMessage())]
    assert [line.partition(": ")[0] for line in lines] == [
        "a batch takes 300 s whatever its size, and other members wait 300 s for it"
    ]
