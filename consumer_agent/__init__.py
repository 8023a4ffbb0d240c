"""The consumer agent: a thin consumer whose partitions the coordinator assigns. `Consumer` is the public API."""

from consumer_agent.aio import AsyncConsumer
from consumer_agent.config import ConsumerConfig
from consumer_agent.consumer import Consumer
from consumer_agent.errors import (
    CommitFailedError,
    CommitTimeoutError,
    ConsumerError,
    ConsumerStateError,
    FencedInstanceError,
    GroupInUseError,
    KafkaUnavailableError,
    NoOffsetError,
    OffsetsElsewhereError,
    RegistrationError,
    TooManyCommitsError,
)
from consumer_agent.records import Batch, DeserializationError, Record
from zkrebalancer.protocol.errors import ConfigurationError
from zkrebalancer.protocol.fields import TopicPartition

__all__ = [
    "AsyncConsumer",
    "Batch",
    "CommitFailedError",
    "CommitTimeoutError",
    "ConfigurationError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerError",
    "ConsumerStateError",
    "DeserializationError",
    "FencedInstanceError",
    "GroupInUseError",
    "KafkaUnavailableError",
    "NoOffsetError",
    "OffsetsElsewhereError",
    "Record",
    "RegistrationError",
    "TooManyCommitsError",
    "TopicPartition",
]
