"""A Spark session that the tests of a worker share, and what keeps Spark working on a busy machine."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
LIMIT_S = 3600
"""For one test, on a machine with many times more work than cores."""
# For every driver that a test starts. Short queries end before Java's second compiler pays off.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that pytest interrupts leaves the shared session unusable, so the bound is generous."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture
def spark(spark_of_the_worker: "SparkSession") -> "SparkSession":
    """The worker's session, made the active one: an earlier test may have changed this thread's."""
    from ottla.spark.spark_session import make_active

    make_active(spark_of_the_worker)
    return spark_of_the_worker


@pytest.fixture(autouse=True)
def _patient_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every streaming query of a test survives Spark's ten seconds for a Python process to start."""
    readwriter = pytest.importorskip("pyspark.sql.streaming.readwriter")
    from tests.support.spark_queries import start_with_retries

    start = readwriter.DataStreamWriter.start

    def patient(writer: Any, *args: Any, **kwargs: Any) -> Any:
        return start_with_retries(lambda: start(writer, *args, **kwargs))

    monkeypatch.setattr(readwriter.DataStreamWriter, "start", patient)


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
    gateway = started.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    java = gateway.proc
    yield started
    # A query that a failed test left running would block stop() forever.
    stopping = threading.Thread(target=started.stop, daemon=True)
    stopping.start()
    stopping.join(timeout=120)
    if stopping.is_alive():
        java.kill()
        stopping.join(timeout=120)


def spark_conf(directory: Path) -> dict[str, Any]:
    return {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
