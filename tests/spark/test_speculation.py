"""Speculation is rejected where users turn it on: in the SparkConf of the application."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla import Admin, Broker
from ottla.errors import OttlaError
from ottla.spark.java import java_home

DRIVER = "tests.support.processes.speculative_driver"


def test_speculation_in_the_spark_conf_is_refused(tmp_path: Path, topic: str) -> None:
    """Spec: F2. Streams and tables: Spark passes the setting to their tasks."""
    pytest.importorskip("pyspark")
    try:
        java_home()
    except OttlaError as error:
        pytest.skip(str(error))
    with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=1)
        done = subprocess.run(
            [sys.executable, "-m", DRIVER, str(tmp_path), broker.bootstrap, topic],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    for name in ("stream", "table"):
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{name} ")] or [done.stderr[-3000:]]
        assert "delivery=exactly-once does not work with spark.speculation=true" in line
