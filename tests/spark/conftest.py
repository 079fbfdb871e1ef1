"""A Spark session that the tests of a worker share."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A session on this machine with two cores; the format is registered."""
    from ottla.errors import OttlaError
    from ottla.spark import session

    try:
        started = session("ottla-tests", master="local[2]", conf=spark_conf(tmp_path_factory.mktemp("spark")))
    except OttlaError as error:
        if "Java" in str(error):
            pytest.skip(str(error))
        raise
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


def spark_conf(directory: Path) -> dict[str, Any]:
    return {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
