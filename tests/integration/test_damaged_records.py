"""A byte of a record changes in a broker's file: the record is not returned, and the other partitions continue."""

from __future__ import annotations

from tests.integration.fake_coordinator import Application, Stage
from tests.support.waiting import wait_until


def test_a_partition_with_a_changed_byte_stays_before_its_batch(stage: Stage) -> None:
    for partition in (0, 1):
        for values in ([b"first", b"second"], [b"third", b"fourth"], [b"fifth"]):
            stage.send_values(partition, *values)
    (log,) = stage.cluster.directory.glob(f"**/{stage.topic}-0/*.log")
    at = log.read_bytes().index(b"fourth")
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"F")
    with Application(stage).start() as application:
        stage.wait_ack(stage.start(stage.wait_member(), 0, 1))
        wait_until(lambda: application.offsets(1) == list(range(5)), "the records of the other partition")
        wait_until(lambda: application.consumer.metrics()["unreadable_partitions"] == 1, "the metric")
        application.hold()
        before = application.consumer.position()[stage.topic, 0]
        assert before <= 3
        assert application.offsets(0) == list(range(before))  # the batch may have the third record, too
        application.consumer.seek({(stage.topic, 0): 4})
        application.release()
        wait_until(lambda: application.offsets(0) == [*range(before), 4], "the records after the damaged batch")
        assert application.consumer.metrics()["unreadable_partitions"] == 0
    assert stage.offset(0) == 5
