"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.light_spark import LIGHT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine that others use is slow at times, which says nothing about what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give all tests one small session: a JVM takes seconds to start."""
    from zkrebalancer.pipeline.session import spark_session  # noqa: PLC0415  # only those that ask for it pay

    with spark_session("local[2]", "1g", {**LIGHT, "spark.sql.shuffle.partitions": "2"}) as session:
        yield session
