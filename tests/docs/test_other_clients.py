"""The page about other clients names each of their methods, and none that they do not have."""

from __future__ import annotations

import dataclasses
import re

import aiokafka  # type: ignore[import-untyped]  # none of them has types
import confluent_kafka
import kafka  # type: ignore[import-untyped]
import pytest
from kafka.consumer.fetcher import ConsumerRecord  # type: ignore[import-untyped]

from consumer_agent import AsyncConsumer, Consumer, Record
from tests.style.sources import ROOT

PAGE = (ROOT / "docs/reference/other-clients.md").read_text()
CONSUMERS = (Consumer, confluent_kafka.Consumer, kafka.KafkaConsumer, aiokafka.AIOKafkaConsumer)  # as the columns
NAMES = re.compile(r"`(\w+)`")  # what is no name, such as a loop, has blanks


def table(heading: str) -> list[list[str]]:
    """Return the rows of a section's table, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" |") for line in section.splitlines() if line.startswith("| ")]
    assert len({len(row) for row in rows}) == 1
    return rows[1:]


def named(rows: list[list[str]], column: int) -> set[str]:
    return {name for row in rows for name in NAMES.findall(row[column])}


def methods(of: type) -> set[str]:
    """Return the public methods of a class; what is in capitals is a constant."""
    return {name for name in dir(of) if not name.startswith("_") and not name.isupper() and callable(getattr(of, name))}


@pytest.mark.parametrize("column", range(len(CONSUMERS)))
def test_all_methods_are_there(column: int) -> None:
    known = methods(CONSUMERS[column])
    own = {"kafka_config", "oauth_cb"} if CONSUMERS[column] is Consumer else set()  # settings that replace a method
    assert len(known) > 20
    assert named(table("Methods"), column) - own == {name for name in known if not name.startswith("DEFAULT")}


def test_all_of_a_record_is_there() -> None:
    rows = table("Records")
    others = {*ConsumerRecord._fields, *(field.name for field in dataclasses.fields(aiokafka.ConsumerRecord))}
    assert named(rows, 0) == set(Record._fields)
    assert named(rows, 1) == methods(confluent_kafka.Message)
    assert named(rows, 2) == others


def test_the_asynchronous_consumer_has_the_same_methods() -> None:
    assert methods(Consumer) - methods(AsyncConsumer) == {"run"}
    assert methods(AsyncConsumer) - methods(Consumer) == set()
