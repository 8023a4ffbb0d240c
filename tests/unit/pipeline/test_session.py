"""Errors wrapped by Spark become one line."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from zkrebalancer.pipeline.python_daemon import without_zip
from zkrebalancer.pipeline.session import LITTLE_BYTES, first_line, for_input, local_cores, shuffle_partitions

WRAPPED = """[STREAM_FAILED] Query [id = 1] terminated with exception: Failed to plan: Traceback (most recent call):
  File "worker.py", line 1, in main
zkrebalancer.pipeline.topic.EventTopicError: t/0 is gone; begin anew
 SQLSTATE: 38000"""

FULL_DISK = """An error occurred while calling o57480.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to /out
\tat org.apache.spark.sql.Writer.write(Writer.scala:1)
Caused by: java.lang.RuntimeException: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.write(Native Method)
Caused by: java.io.IOException: No space left on device
\t... 14 more
"""


def test_data_is_divided_by_the_cores_of_the_cluster() -> None:
    """Always divide it into 32 parts."""
    assert [shuffle_partitions(cores) for cores in (1, 2, 100)] == [32, 32, 300]


def test_the_cores_of_a_local_master_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the cores of the machine, not those that this process may use."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {1, 3, 4})
    masters = (
        "local",
        "local[*]",
        "local[5]",
        "local[2, 3]",
        "local[*,3]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://local:1",
    )
    assert [local_cores(master) for master in masters] == [1, 3, 5, 2, 3, 0, 0, 0]


def test_the_optimizing_compiler_is_only_for_much_input() -> None:
    """Let it never compile anything, or always."""
    (options,) = for_input(LITTLE_BYTES - 1).values()
    assert "-XX:TieredStopAtLevel=1" in options
    assert for_input(LITTLE_BYTES) == {}


def test_workers_import_the_installed_pyspark() -> None:
    assert without_zip(["", "/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-src.zip"]) == [
        "",
        "/spark/python/lib/py4j-src.zip",
    ]


def test_the_cause_is_shown_without_the_call() -> None:
    expected = "[TASK_WRITE_FAILED] Task failed while writing rows to /out: No space left on device"
    assert first_line(Py4JError(FULL_DISK)) == expected
    assert first_line(ValueError("[STREAM_FAILED] a query\nCaused by: java.io.IOException: gone\n\tat x")) == (
        "[STREAM_FAILED] a query: gone"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n[PATH_NOT_FOUND] no such path: x\n\tat org.apache.Frame", "[PATH_NOT_FOUND] no such path: x"),
        (WRAPPED, "t/0 is gone; begin anew"),
        ("", "ValueError"),
    ],
)
def test_the_error_is_one_line(text: str, expected: str) -> None:
    assert first_line(ValueError(text)) == expected
