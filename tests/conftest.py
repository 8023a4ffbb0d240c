"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine that others use is slow at times, which says nothing about what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give all tests one small session: a JVM takes seconds to start."""
    from zkrebalancer.pipeline.session import spark_session  # noqa: PLC0415  # only those that ask for it pay

    # What is compiled for a handful of rows takes longer than they do without it.
    light = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with spark_session("local[2]", "1g", light) as session:
        yield session
