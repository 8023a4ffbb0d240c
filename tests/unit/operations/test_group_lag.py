"""The lag of a partition."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from zkrebalancer.cli.groups import groups
from zkrebalancer.operations import group_lag
from zkrebalancer.operations.group_lag import PartitionLag, read_lag_times
from zkrebalancer.protocol.fields import TopicPartition


@pytest.mark.parametrize(
    ("known", "lag"),
    [
        (PartitionLag(10, None, 15), 5),
        (PartitionLag(10, 12, 15), 3),
        (PartitionLag(None, 12, 15), 3),
        (PartitionLag(20, None, 15), 0),
        (PartitionLag(None, None, 15), None),
        (PartitionLag(10, 10, None), None),
    ],
)
def test_lag_is_counted_from_the_higher_offset(known: PartitionLag, lag: int | None) -> None:
    assert known.lag == lag


def test_lag_times_are_those_of_the_first_unread_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `read_lag_times`, subtract without a limit; return 0 for what is unknown; ask for partitions without lag."""
    asked: list[object] = []

    def read(kafka: object, unread: dict[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        asked.append((kafka, unread))
        return {("t", 0): 7_500, ("t", 1): None, ("t", 2): 12_000}

    monkeypatch.setattr(group_lag, "first_unread_ms", read)
    behind, level, unknown = PartitionLag(10, 12, 15), PartitionLag(15, None, 15), PartitionLag(None, None, 15)
    lag = {("t", number): behind for number in range(4)} | {("t", 4): level, ("t", 5): unknown}
    kafka = {"bootstrap.servers": "b:1"}
    times = read_lag_times(lag, kafka, 10_000)
    assert list(times.values()) == [2.5, 0.0, 0.0, None, 0.0, None]  # the clock of a producer may be ahead
    assert asked == [(kafka, {("t", number): 12 for number in range(4)})]
    assert read_lag_times({("t", 4): level}, kafka, 10_000) == {("t", 4): 0.0}
    assert len(asked) == 1


def test_lag_time_needs_kafka() -> None:
    for arguments in (["--lag-time"], ["--offsets", "--lag-time"]):
        result = CliRunner().invoke(groups, ["describe", "g", "--zookeeper", "z:1", *arguments])
        assert (result.exit_code, "--lag-time needs --offsets and --bootstrap" in result.stderr) == (2, True)
