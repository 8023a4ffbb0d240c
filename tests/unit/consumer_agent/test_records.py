"""A batch: a sequence of complete records, built from Kafka's messages."""

from __future__ import annotations

import copy
import pickle

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from consumer_agent.errors import NoOffsetError
from consumer_agent.records import Batch, DeserializationError, Record
from consumer_agent.runtime.record_buffer import Run
from tests.unit.consumer_agent.messages import messages
from zkrebalancer.protocol.errors import (
    ConfigurationError,
    ConsumerRebalanceFailedError,
    RebalancerError,
    ZooKeeperRefusedError,
)

FULL = Message(
    topic="t",
    partition=0,
    offset=5,
    key=b"k",
    value=b"v",
    headers=[("h", b"1"), ("h", None)],
    timestamp=(TIMESTAMP_CREATE_TIME, 1_700_000_000_000),
)
EMPTY = Message(topic="t", partition=0, offset=7)
FIRST = Record("t", 0, 5, b"k", b"v", (("h", b"1"), ("h", None)), 1_700_000_000_000, 3, "CreateTime")
SECOND = Record("t", 0, 7, None, None, (), None, 3)
BATCH = Batch([Run("t", 0, 3, [FULL, EMPTY]), Run("u", 1, 4, messages(("u", 1), [0]))])
THIRD = Record("u", 1, 0, None, b"v", (), None, 4)


def test_records_have_every_field() -> None:
    assert list(BATCH) == [FIRST, SECOND, THIRD]
    assert all(isinstance(record, Record) for record in BATCH)
    assert next(iter(BATCH)).headers[0] == ("h", b"1")


def test_it_is_a_sequence() -> None:
    assert (len(BATCH), bool(BATCH), bool(Batch())) == (3, True, False)
    assert (BATCH[0], BATCH[2], BATCH[-1], BATCH[-3]) == (FIRST, THIRD, THIRD, FIRST)
    assert BATCH[1:] == [SECOND, THIRD]
    assert SECOND in BATCH
    assert list(reversed(BATCH)) == [THIRD, SECOND, FIRST]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"there are 3 records, and none at {index}"):
            BATCH[index]


def test_values_alone_and_partitions_apart() -> None:
    assert BATCH.values() == [b"v", None, b"v"]
    apart = BATCH.by_partition()
    assert {partition: list(records) for partition, records in apart.items()} == {
        ("t", 0): [FIRST, SECOND],
        ("u", 1): [THIRD],
    }


def test_it_is_a_mapping_of_partitions_too() -> None:
    assert BATCH.keys() == [("t", 0), ("u", 1)]
    assert [(partition, list(records)) for partition, records in BATCH.items()] == [
        (("t", 0), [FIRST, SECOND]),
        (("u", 1), [THIRD]),
    ]
    assert list(BATCH["u", 1]) == [THIRD]
    assert {partition: len(records) for partition, records in BATCH.items()} == {("t", 0): 2, ("u", 1): 1}
    assert ("t", 0) in BATCH  # type: ignore[comparison-overlap]  # of a sequence; it is a mapping too
    assert ("t", 1) not in BATCH  # type: ignore[comparison-overlap]
    with pytest.raises(KeyError):
        BATCH["t", 1]
    assert (Batch().keys(), Batch().items()) == ([], [])


@pytest.mark.parametrize(
    ("kind", "at_ms", "shown"),
    [
        (TIMESTAMP_CREATE_TIME, 5, (5, "CreateTime")),
        (TIMESTAMP_LOG_APPEND_TIME, 6, (6, "LogAppendTime")),
        (TIMESTAMP_NOT_AVAILABLE, 0, (None, None)),
    ],
)
def test_whose_clock_gave_the_time(kind: int, at_ms: int, shown: tuple[int | None, str | None]) -> None:
    message = Message(topic="t", partition=0, offset=5, timestamp=(kind, at_ms))
    (record,) = Batch([Run("t", 0, 3, [message])])
    assert (record.timestamp_ms, record.timestamp_type) == shown


def test_a_copy_can_be_sent_to_another_process() -> None:
    copied = pickle.loads(pickle.dumps(list(BATCH)))  # noqa: S301  # made in this line
    assert copied == [FIRST, SECOND, THIRD]
    assert all(type(record) is Record for record in copied)


def test_a_fetched_record_is_one_that_anybody_can_make() -> None:
    fetched = BATCH[0]
    assert (fetched, hash(fetched), repr(fetched)) == (FIRST, hash(FIRST), repr(FIRST))
    assert fetched._replace(key=None) == FIRST._replace(key=None)
    assert fetched._asdict() == FIRST._asdict()
    assert type(copy.copy(fetched)) is Record
    match fetched:
        case Record(topic="t", offset=5):
            pass
        case _:
            raise AssertionError(fetched)
    with pytest.raises(AttributeError):
        fetched.note = "x"  # type: ignore[attr-defined]  # that is what is tested


def test_it_says_what_it_is() -> None:
    assert repr(BATCH) == "<Batch: 3 records of 2 partitions>"


@pytest.mark.parametrize(
    "error",
    [
        NoOffsetError("t/0: gone", ("t", 0), 5, 7, 9),
        DeserializationError("value", FIRST, ValueError("no number")),
        ConsumerRebalanceFailedError("g", ("m",), 3),
        ZooKeeperRefusedError("refused", "/consumers", "READ"),
        ConfigurationError("wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_goes_from_process_to_process(error: RebalancerError) -> None:
    """In `RebalancerError`, keep Python's `__reduce__`: a pool of processes hangs or breaks when a worker raises it."""
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own
    assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
    assert str(copy.copy(error)) == str(error)
