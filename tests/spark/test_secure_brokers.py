"""A stream from and to a broker with TLS and SASL, with the options of Spark's own connector. No secret is left."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from ottla import Admin, Broker, Consumer, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secure() -> Iterator[Any]:
    with Broker.embedded(secure=True) as broker:
        yield broker


def options_for(broker: Any, password: str) -> dict[str, str]:
    """As they are written for format("kafka")."""
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{MODULE} required username="ottla" password="{password}";',
        "kafka.ssl.truststore.location": broker.client_settings["ssl.ca.location"],
        "kafka.ssl.truststore.type": "PEM",
    }


def test_a_stream_goes_through_and_its_password_is_nowhere(
    spark: "SparkSession", secure: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    password = secure.client_settings["sasl.password"]
    with Admin(secure.client_settings) as admin, Producer(secure.client_settings) as producer:
        for topic in ("spark-in", "spark-out"):
            admin.create_topic(topic, partitions=1)
        for number in range(10):
            producer.send("spark-in", str(number))
    options = options_for(secure, password)
    rows = spark.readStream.format("ottla").options(**options, subscribe="spark-in", startingOffsets="earliest").load()
    writer = rows.selectExpr("value").writeStream.format("ottla").options(**options, topic="spark-out")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    with Consumer(
        {**secure.client_settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    ) as consumer:
        consumer.assign([("spark-out", 0)])
        found: list[Any] = []
        while len(found) < 10:
            found += consumer.poll(1_000)
    assert [record.value for record in found] == [b"%d" % number for number in range(10)]

    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for frame in (rows, query):
            frame.explain(True)
    seen = [shown.getvalue(), str(query.recentProgress), *capfd.readouterr()]
    seen += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert "ottla" in seen[0]
    assert len(seen) > 6, "the checkpoint has files"
    assert not [text for text in seen if password in text]


def test_a_wrong_password_ends_the_query_with_one_sentence(spark: "SparkSession", secure: Any) -> None:
    wrong = options_for(secure, "wrong-s3cr3t")
    with pytest.raises(PySparkException) as raised:
        spark.read.format("ottla").options(**wrong, subscribe="spark-in").load().count()
    assert "rejected SCRAM-SHA-512 as ottla: Authentication failed" in str(raised.value)
    assert "Check the user name and password" in str(raised.value)
    assert "wrong-s3cr3t" not in str(raised.value)
