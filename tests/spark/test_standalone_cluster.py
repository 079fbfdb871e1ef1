"""A standalone Spark cluster of the installed PySpark: a master, a worker, and its executors, each with its own JVM.

The commands are those of docs/exactly-once-on-spark.md ("To a cluster"): executors need a Python with ottla, no jar.
Spec: F3.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark

from ottla import Admin, Consumer, Producer
from ottla.errors import OttlaError
from ottla.spark.java import java_home
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.long]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
PIPELINE = """
name: standalone
source: {topic: TOPIC, name: numbers, schema: n int}
sql: select n + 1000 as n from numbers
sink: {topic: TOPIC-out, key: n}
checkpoint: DIRECTORY/checkpoint
spark:
  spark.driver.host: 127.0.0.1
  spark.executor.memory: 512m
  spark.cores.max: 2
"""


class Server:
    """A process of the cluster; what it prints goes to a file."""

    def __init__(self, directory: Path, name: str, *words: str) -> None:
        self._log = directory / f"{name}.log"
        environment = {**os.environ, "JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("wb") as log:
            command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def wait_for(self, pattern: str) -> str:
        """The text that the process has printed."""
        found: list[Any] = []

        def has_printed() -> bool:
            assert self.process.poll() is None, self._log.read_text()[-3000:]
            found[:] = re.findall(pattern, self._log.read_text())
            return bool(found)

        eventually(has_printed, 300)
        return str(found[0])

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    try:
        java_home()
    except OttlaError as error:
        pytest.skip(str(error))
    master = Server(tmp_path, "master.Master", "--port", "0", "--webui-port", "0")
    servers = [master]
    try:
        address = master.wait_for(r"spark://127\.0\.0\.1:\d+")
        work = (
            "--port",
            "0",
            "--webui-port",
            "0",
            "--cores",
            "2",
            "--memory",
            "1g",
            "--work-dir",
            str(tmp_path / "work"),
        )
        servers.append(Server(tmp_path, "worker.Worker", address, *work))
        servers[-1].wait_for("Successfully registered with master")
        yield address
    finally:
        for server in reversed(servers):
            server.close()


def run_once(file: Path, bootstrap: str, master: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "ottla",
        "pipeline",
        "run",
        str(file),
        "-b",
        bootstrap,
        "--master",
        master,
        "--once",
    ]
    more = {"SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.run(
        [*command, "--max-restarts", "0"], capture_output=True, text=True, check=False, env={**os.environ, **more}
    )


def test_a_pipeline_runs_on_the_executors_of_a_standalone_cluster(
    cluster: str, broker: Any, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "standalone.yaml"
    file.write_text(PIPELINE.replace("TOPIC", topic).replace("DIRECTORY", str(tmp_path)))
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        admin.create_topic(f"{topic}-out", partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(50):
            producer.send(topic, json.dumps({"n": number}).encode(), partition=number % 2)

    done = run_once(file, broker.bootstrap, cluster, PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr[-3000:]
    with Consumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(f"{topic}-out", 0)])
        consumer.seek_to_beginning()
        (end,) = consumer.end_offsets(consumer.assignment()).values()
        values: list[int] = []
        while consumer.position((f"{topic}-out", 0)) < end:
            values += [json.loads(record.value or b"")["n"] for record in consumer.poll(1000)]
    assert sorted(values) == list(range(1000, 1050))
    assert any((tmp_path / "work").glob("app-*/*/stderr")), "the work was done by executors of the worker"
