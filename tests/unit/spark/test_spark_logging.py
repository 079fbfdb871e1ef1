"""PySpark's loggers, next to those of tests."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def sparks_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the logger of Spark Connect, which exists from its first import on: it does not propagate."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("tests.as_spark_connect")
    monkeypatch.setattr(logger, "propagate", False)
    yield
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


@pytest.mark.usefixtures("sparks_logger")
def test_a_test_reads_plain_messages_although_spark_logs_json(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("ottla").warning("because 'of this'")
    assert "because 'of this'" in caplog.text
    assert not caplog.text.startswith("{")
