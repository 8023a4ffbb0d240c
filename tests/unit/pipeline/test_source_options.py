"""Options are texts with names in any case; all faults are reported together."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.style.sources import ROOT
from tests.support import spark_connector
from zkrebalancer.pipeline.source import ConsumerGroupSource, register
from zkrebalancer.pipeline.source.checkpoint import ranges_of
from zkrebalancer.pipeline.source.connector import _is_in_checkpoint
from zkrebalancer.pipeline.source.options import _OF_THE_AGENT, _OWN, DRIVER_CORES, parse
from zkrebalancer.protocol.errors import ConfigurationError

REQUIRED = {"zookeeper": "localhost:2181", "bootstrap": "localhost:9092", "group": "g", "topics": "a, b"}


def test_the_guide_has_every_option_and_its_example_is_accepted() -> None:
    """Rename an option in `_OWN`, or in the guide."""
    guide = (ROOT / "docs" / "how-to" / "spark.md").read_text()
    table = guide.partition("| option |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines()[1:] for name in re.findall(r"`([\w.*]+)`", row.split("|")[1])}
    assert named == {*_OWN, *_OF_THE_AGENT, "kafka.*"}
    example = dict(
        re.findall(r'\.option\("(\w+)", "([^"]+)"\)', guide.partition("readStream")[2].partition(".load()")[0])
    )
    assert parse(example).topics == ("orders", "refunds")


def test_the_guide_names_the_connector_that_is_tested() -> None:
    guide = (ROOT / "docs" / "how-to" / "spark.md").read_text()
    (group, artifact, version), *_ = spark_connector.ARTIFACTS
    assert re.findall(r"--packages (\S+?)`", guide) == [f"{group}:{artifact}:{version}"]


def test_names_are_case_insensitive() -> None:
    given = {key.lower(): text for key, text in REQUIRED.items()}
    given |= {"maxoffsetspertrigger": "10", "failondataloss": "FALSE", "kafka.security.protocol": "ssl"}
    options = parse({**given, "startingoffsets": "latest", "sessiontimeoutms": "2000"})
    assert options.topics == ("a", "b")
    assert (options.max_offsets_per_trigger, options.fail_on_data_loss) == (10, False)
    assert options.agent["auto_offset_reset"] == "latest"
    assert options.agent["session_timeout_ms"] == 2_000
    assert parse({**given, "ignorekafkaoffsets": "True"}).agent["ignore_kafka_offsets"] is True
    assert options.agent["kafka_config"] == options.kafka == {"security.protocol": "ssl"}


def test_a_query_can_do_as_much_as_the_executors_by_default() -> None:
    """In `parse`, take the number of tasks: more of them, for topics with a hot partition, do no more at once."""
    assert parse(REQUIRED).agent["capacity"] == DRIVER_CORES
    assert parse({**REQUIRED, "minPartitions": "200"}, cores=8).agent["capacity"] == 8
    assert parse({**REQUIRED, "minPartitions": "6", "capacity": "2.5"}).agent["capacity"] == 2.5
    named = parse({**REQUIRED, "instanceId": "report", "rack": "r1"}).agent
    assert (named["group_instance_id"], named["rack"]) == ("report", "r1")


def sent(value: Any) -> Any:
    """Return what another process gets from Spark."""
    return cloudpickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def test_a_registered_source_knows_the_cores_of_the_executors() -> None:
    """In `register`, register `ConsumerGroupSource` itself: on a cluster, a query was as large as its driver's host."""
    registered: list[type[ConsumerGroupSource]] = []
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(defaultParallelism=DRIVER_CORES + 38),
        dataSource=SimpleNamespace(register=registered.append),
    )
    register(cast("SparkSession", session))
    source = sent(registered[0])(REQUIRED)  # as Spark's planner gets it
    options = source.streamReader(None)._options
    assert (options.task_count, options.agent["capacity"]) == (DRIVER_CORES + 38,) * 2
    assert sent(source).name() == "consumer_group"


class Remote:
    """A session of Spark Connect, which refuses a Spark context by an AttributeError."""

    def __init__(self) -> None:
        self.registered: list[type[ConsumerGroupSource]] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)  # Spark's name


def test_a_session_of_spark_connect_knows_the_format_but_reads_no_checkpoint() -> None:
    """In `register`, ask every session for the cores of its executors."""
    session = Remote()
    register(cast("SparkSession", session))
    options = sent(session.registered[0])(REQUIRED).streamReader(None)._options
    assert options.task_count == DRIVER_CORES
    assert not _is_in_checkpoint(cast("SparkSession", session), "checkpoint", 1)
    with pytest.raises(ConfigurationError, match="a session of Spark Connect cannot read the checkpoint"):
        ranges_of(cast("SparkSession", session), "checkpoint", 1)


def test_a_topic_named_twice_is_read_once() -> None:
    assert parse({**REQUIRED, "topics": "a, b,a"}).topics == ("a", "b")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("minPartitions", "-1"),
        ("failOnDataLoss", "yes"),
        ("includeHeaders", ""),
        ("rows", "lines"),
        ("startingOffsets", "beginning"),
        ("sessionTimeoutMs", "soon"),
        ("capacity", "much"),
        ("capacity", "-1"),
        ("capacity", "nan"),
        ("rack", "a/b"),
        ("instanceId", ""),
        ("offsetsStorage", "disk"),
        ("ignoreKafkaOffsets", "perhaps"),
        ("zookeeper", "nowhere"),
        ("bootstrap", "localhost"),
        ("topics", "a,,b"),
        ("topics", "a/b"),
        ("group", ""),
        ("subscribe", "a"),
        ("kafka.group.id", "other"),
    ],
)
def test_a_wrong_option_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse({**REQUIRED, name: text})
    assert f"{name.split('.', maxsplit=1)[0]}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_faults_are_one_error() -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse({"group": "g", "minpartitions": "x"})
    for name in ("zookeeper", "bootstrap", "topics", "minPartitions"):
        assert f"{name}: " in str(refused.value)


def test_ranges_have_no_headers() -> None:
    with pytest.raises(ConfigurationError, match="includeHeaders: ranges have no headers"):
        parse({**REQUIRED, "rows": "ranges", "includeHeaders": "true"})
    assert parse({**REQUIRED, "rows": "ranges"}).gives_ranges
    assert not parse({**REQUIRED, "rows": "records"}).gives_ranges
