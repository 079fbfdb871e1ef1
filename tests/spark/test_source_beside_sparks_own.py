"""Spark's own Kafka connector reads the same rows from Ottla, and a query can migrate from it to ours. Spec: F1.

The connector's jars go on the class path of a session, so each test starts its own Spark in another process.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ottla import Admin, Producer
from tests.support.processes.oracle import Target, extras_directory

JARS = sorted(str(jar) for jar in (extras_directory() / "spark-kafka").glob("*.jar"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not JARS, reason="Spark's Kafka connector is not installed: run ./run setup-extras"),
]

SCRIPT = """
import json, sys
from ottla.spark import session
from tests.support.spark_queries import start_with_retries
jars, bootstrap, topic, directory = sys.argv[1:]
spark = session("beside", master="local[2]", conf={"spark.jars": jars, "spark.driver.memory": "1g"})
spark.sparkContext.setLogLevel("ERROR")
options = {
    "kafka.bootstrap.servers": bootstrap,
    "subscribe": topic,
    "startingOffsets": "earliest",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
}
found = {}
for source in ("kafka", "ottla"):
    frame = spark.read.format(source).options(**options).load()
    found[source + " schema"] = frame.schema.json()
    # Without headers their column is NULL and ours is empty.
    rows = frame.selectExpr("to_json(struct(key, value, topic, partition, offset, timestamp, timestampType,"
                            " coalesce(headers, array()) as headers)) as row", "partition", "offset")
    found[source] = [row.row for row in rows.orderBy("partition", "offset").collect()]
"""

MOVE = """
batches = []
def take(frame, batch_id):
    batches.append([batch_id, sorted(int(row.v) for row in frame.selectExpr("cast(value as string) as v").collect())])
def run(source, **more):
    frame = spark.readStream.format(source).options(**{**options, **more}).load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", directory)
    start_with_retries(writer.trigger(availableNow=True).start).awaitTermination()
run("kafka")
print("half", flush=True)
sys.stdin.readline()
run("ottla", startingOffsets="latest")
found["batches"] = batches
"""


def start(script: str, target: Target, topic: str, directory: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, ",".join(JARS), target.bootstrap, topic, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def finish(process: "subprocess.Popen[str]", text: str = "") -> dict[str, Any]:
    try:
        output, errors = process.communicate(text)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def test_both_read_the_same_rows_and_a_query_migrates_with_its_checkpoint(
    ottla: Target, topic: str, tmp_path: Path
) -> None:
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.create_topic(topic, partitions=3)
    with Producer(bootstrap_servers=ottla.bootstrap, compression_type="zstd") as producer:
        for number in range(300):
            headers = [("n", str(number).encode()), ("empty", None)] if number % 3 == 0 else None
            key = None if number % 5 == 0 else b"k%d" % (number % 7)
            producer.send(topic, str(number).encode(), key=key, partition=number % 3, headers=headers)
    with Producer(bootstrap_servers=ottla.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for value, is_kept in ((300, True), (999, False)):
            producer.begin_transaction()
            producer.send(topic, str(value).encode(), partition=0)
            producer.flush()
            if is_kept:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    process = start(SCRIPT + MOVE + "print(json.dumps(found))", ottla, topic, tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().strip() == "half", process.stderr.read()[-3000:]
    with Producer(bootstrap_servers=ottla.bootstrap) as producer:
        for number in range(301, 310):
            producer.send(topic, str(number).encode(), partition=1)
    found = finish(process, "go on\n")
    assert found["kafka schema"] == found["ottla schema"]
    assert len(found["kafka"]) == 301
    assert found["ottla"] == found["kafka"]
    # The first batch was read by Spark's connector, the second by ours, from the same checkpoint.
    assert found["batches"] == [[0, list(range(301))], [1, list(range(301, 310))]]
