"""Settings of all tests, and which of them share a worker when they run in parallel (`make test`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.light_spark import LIGHT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# On a busy machine a deadline fails without saying anything about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

SHARED_BY_A_MODULE = ("module", "package", "class")
# Long work first, so that short tests fill the gaps at the end.
ORDER = ("tests/unit/pipeline", "tests/integration", "tests/campaign", "tests/simulation", "tests")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Share one small session among all tests that need Spark in this process: a JVM takes seconds to start."""
    from zkrebalancer.pipeline.session import spark_session  # noqa: PLC0415  # only those that ask for it pay

    with spark_session("local[2]", "1g", {**LIGHT, "spark.sql.shuffle.partitions": "2"}) as session:
        yield session


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep tests on one worker that share something expensive; this has to come before xdist reads the groups.

    Tests with the shared Spark session form one group, so that only one worker starts it. Tests that share a module's
    fixture form a group each. Every other test goes to the next free worker.
    """
    group = _group(item)
    if group is not None:
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next(rank for rank, folder in enumerate(ORDER) if item.nodeid.startswith(folder))


def _group(item: pytest.Item) -> str | None:
    assert isinstance(item, pytest.Function)
    definitions = item._fixtureinfo.name2fixturedefs
    if "spark" in definitions:
        return "spark"
    if any(definition[-1].scope in SHARED_BY_A_MODULE for definition in definitions.values()):
        return item.nodeid.partition("::")[0]
    return None
