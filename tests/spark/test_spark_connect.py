"""Source and sink through Spark Connect: the client has no JVM, a server does the work. Spec: F1."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

from ottla import Admin, Consumer, Producer
from ottla.errors import OttlaError
from ottla.spark.java import java_home
from ottla.types import TopicPartition
from tests.support.processes.oracle import Target
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]

SERVER = """
import sys
from ottla.spark import session
spark = session(
    "connect",
    master="local[2]",
    conf={
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.memory": "1g",
    },
)
service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
print("ready", getattr(service, "MODULE$").localPort(), flush=True)
sys.stdin.read()
"""

CLIENT = """
import json, sys
remote, bootstrap, topic, directory = sys.argv[1:]
from ottla.spark import session
from ottla.pipeline.running.failures import is_slow_start
spark = session(master=remote)
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
found = {"session": type(spark).__module__}
def patiently(step):
    # What failed because its Python process took longer to start than Spark waits is repeated.
    while True:
        try:
            return step()
        except Exception as error:
            if not is_slow_start(error):
                raise
def run(writer):
    patiently(lambda: writer.trigger(availableNow=True).start().awaitTermination())
found["batch"] = patiently(lambda: spark.read.format("ottla").options(**options).load().count())
run(
    spark.readStream.format("ottla").options(**options).load()
    .writeStream.format("parquet").option("path", directory + "/out").option("checkpointLocation", directory + "/cp")
)
rows = spark.read.parquet(directory + "/out").selectExpr("cast(value as string) as value").collect()
found["stream"] = sorted(int(row.value) for row in rows)
to = {"kafka.bootstrap.servers": bootstrap, "topic": topic + "-out"}
for _ in range(2):  # the second run finds the checkpoint and nothing to do
    run(
        spark.readStream.format("ottla").options(**options).load().selectExpr("key", "value")
        .writeStream.format("ottla").options(**to).option("checkpointLocation", directory + "/cp-out")
    )
row = spark.sql("SELECT 'one' AS key, 'written as a batch' AS value")
row.write.format("ottla").options(**to).mode("append").save()
def read(name):
    copied = spark.read.format("ottla").options(**{**options, "subscribe": name}).load()
    return copied.selectExpr("cast(value as string) as value").collect()
found["sink"] = sorted(row.value for row in patiently(lambda: read(topic + "-out")))
try:
    patiently(lambda: read(topic + "x"))
except Exception as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


PIPELINE = """
name: connected
source: {topic: TOPIC, name: numbers, schema: n int}
sql: select n + 1000 as n from numbers where n >= 40
sink: {topic: TOPIC-sums, key: n}
checkpoint: DIRECTORY/pipeline
"""


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """The address of a Connect server for this module."""
    try:
        java_home()
    except OttlaError as error:
        pytest.skip(str(error))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            ready = server.stdout.readline().split()
            assert ready[:1] == ["ready"], f"the server ended before it was ready: {ready}"
            yield f"sc://127.0.0.1:{ready[1]}"
        finally:
            server.stdin.close()
            try:
                server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                server.kill()


@pytest.mark.slow
def test_batch_stream_and_errors_are_the_same_through_connect(
    remote: str, ottla: Target, topic: str, tmp_path: Path
) -> None:
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        admin.create_topic(f"{topic}-out", partitions=2)
    with Producer(bootstrap_servers=ottla.bootstrap) as producer:
        for number in range(50):
            producer.send(topic, str(number).encode(), partition=number % 2)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, remote, ottla.bootstrap, topic, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect"), "it went through Connect"
    assert found["batch"] == 50
    assert found["stream"] == list(range(50))
    assert found["sink"] == sorted([*map(str, range(50)), "written as a batch"])
    assert f"there is no topic {topic}x at {ottla.bootstrap}. Did you mean {topic}" in found["error"]


@pytest.mark.slow
def test_a_pipeline_runs_on_a_connect_server(
    remote: str, ottla: Target, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec: F3, F4."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "connected.yaml"
    file.write_text(PIPELINE.replace("TOPIC", topic).replace("DIRECTORY", str(tmp_path)))
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        admin.create_topic(f"{topic}-sums", partitions=1)
    with Producer(bootstrap_servers=ottla.bootstrap) as producer:
        for number in range(50):
            producer.send(topic, json.dumps({"n": number}).encode(), partition=number % 2)
    command = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "-b", ottla.bootstrap, "--json"]
    done = subprocess.run([*command, "--once", "--master", remote], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    partition = TopicPartition(f"{topic}-sums", 0)
    with Consumer(bootstrap_servers=ottla.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        values = []
        while consumer.position(partition) < consumer.end_offsets([partition])[partition]:
            values += [json.loads(record.value or b"")["n"] for record in consumer.poll(1000)]
    assert sorted(values) == list(range(1040, 1050))
