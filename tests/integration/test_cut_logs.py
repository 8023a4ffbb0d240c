"""A broker loses the end of a log that a member has read, and new records take the offsets of the lost ones."""

from __future__ import annotations

import pytest

from tests.integration.fake_coordinator import Application, Stage
from tests.support.waiting import wait_until

LOST_FROM = 6


def lose_the_end(stage: Stage, partition: int) -> None:
    """Kill the broker, cut the log as if it had not been on the disk, and start the broker again."""
    broker = stage.cluster.broker
    (log,) = stage.cluster.directory.glob(f"**/{stage.topic}-{partition}/*.log")
    at = log.read_bytes().index(f"record {LOST_FROM}".encode())
    broker.kill()
    with log.open("r+b") as file:
        file.truncate(at)  # within a batch, which the broker drops as well
    broker.start()


def test_who_has_read_what_is_lost_goes_on_with_what_came_after_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """In `Fetcher._without_errors`, note None: new records are skipped, or all are read again."""
    for number in range(10):
        stage.send_values(0, f"record {number}".encode())
    with Application(stage).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        wait_until(lambda: len(application.records) == 10, "the records")
        lose_the_end(stage, 0)
        # The broker leads in the same epoch: only a fetch beyond the end shows the loss, until new records fill it.
        wait_until(lambda: application.consumer.metrics()["offsets_out_of_range_total"] == 1, "the loss to be noticed")
        stage.send_values(0, *(f"new {number}".encode() for number in range(20)))
        wait_until(lambda: len(application.records) == 10 + 20, "the new records")
        assert application.consumer.metrics()["offsets_out_of_range_total"] == 1
    assert [record.value for record in application.records[10:]] == [f"new {number}".encode() for number in range(20)]
    assert application.offsets(0) == [*range(10), *range(LOST_FROM, LOST_FROM + 20)]
    text = f"{stage.topic}/0: Kafka has lost 4 offsets that were read, from 6 on; continuing at 6"
    assert text in [record.message for record in caplog.records]
    assert stage.offset(0) == LOST_FROM + 20


def test_what_the_broker_has_kept_is_returned_though_it_was_fetched_before(stage: Stage) -> None:
    """In `take_due`, drop nothing: reading went on at the cut, beyond records that the application did not have yet."""
    stage.send_values(0, b"record 0", b"record 1")
    with Application(stage).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0))
        wait_until(lambda: len(application.records) == 2, "the first records")
        application.hold()
        for number in range(2, 10):
            stage.send_values(0, f"record {number}".encode())
        wait_until(lambda: application.consumer.metrics()["retained_records"] == 8, "records that wait")
        lose_the_end(stage, 0)
        wait_until(lambda: application.consumer.metrics()["retained_records"] != 8, "the loss to be noticed")
        stage.send_values(0, *(f"new {number}".encode() for number in range(20)))
        application.release()
        wait_until(lambda: application.offsets(0)[-1] == LOST_FROM + 19, "the new records")
    kept = [f"record {number}".encode() for number in range(LOST_FROM)]
    values = [record.value for record in application.records]
    assert values == kept + [f"new {number}".encode() for number in range(20)]
