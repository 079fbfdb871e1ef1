"""A Spark session that the tests of a worker share."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
# Short queries are done before Java's second compiler has paid off: for every driver that a test starts.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first query of a session starts a handful of Python processes: on a busy machine that takes its time."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def spark(spark_of_the_worker: "SparkSession") -> "SparkSession":
    """The worker's session. Nobody knows what the tests before did to this thread's."""
    from ottla.spark.spark_session import make_active

    make_active(spark_of_the_worker)
    return spark_of_the_worker


@pytest.fixture(scope="session")
def spark_of_the_worker(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
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
    java = started.sparkContext._gateway.proc
    yield started
    # A query that a failed test left hanging would keep stop() waiting for ever.
    stopping = threading.Thread(target=started.stop, daemon=True)
    stopping.start()
    stopping.join(timeout=30)
    if stopping.is_alive():
        java.kill()
        stopping.join(timeout=30)


def spark_conf(directory: Path) -> dict[str, Any]:
    return {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
