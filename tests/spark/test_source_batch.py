"""`spark.read.format("ottla")`: the rows of a topic, from Ottla and from Apache Kafka alike. Spec: F1, F5."""

import functools
import itertools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from ottla import Admin, Broker, Producer
from ottla.types import TopicPartition
from tests.support.processes.oracle import Target
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_numbers = itertools.count(1)

Load = Callable[..., "DataFrame"]


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.oracle, id="apache")])
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.getfixturevalue(request.param)
    return chosen


def make_topic(bootstrap: str, partitions: int = 1, configs: dict[str, str] | None = None) -> str:
    name = f"source-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(name, partitions=partitions, configs=configs or {})
    return name


def produce(bootstrap: str, topic: str, values: list[str], partition: int = 0, **settings: Any) -> None:
    with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value.encode(), partition=partition, timestamp=1_700_000_000_000 + number)


def load(spark: "SparkSession", bootstrap: str, **options: str) -> "DataFrame":
    return spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).options(**options).load()


def values(frame: "DataFrame") -> list[str]:
    rows = frame.selectExpr("cast(value as string) as value", "topic", "partition", "offset").collect()
    return [row.value for row in sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))]


def refusal(call: Callable[[], Any]) -> str:
    """The error message: the first line that Spark shows, without a traceback after it."""
    with pytest.raises(PySparkException) as caught:
        call()
    shown = str(caught.value)
    first = re.search(r"ottla\.spark\.explaining\.\w+: (.+)", shown.partition("\n")[0])
    assert first is not None, shown
    assert "Traceback" not in shown, shown
    return first.group(1)


def test_every_column_is_read_as_produced(spark: "SparkSession", target: Target) -> None:
    topic = make_topic(target.bootstrap, 2)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send(topic, b"first", key=b"k", partition=0, timestamp=1_700_000_000_123, headers=[("a", b"1")])
        producer.send(topic, None, key=b"gone", partition=0, timestamp=1_700_000_000_124)
        producer.send(
            topic, b"", partition=1, timestamp=1_700_000_000_125, headers=[("a", b"1"), ("a", None), ("é", b"")]
        )
    frame = load(spark, target.bootstrap, subscribe=topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr(
        "key", "value", "topic", "partition", "offset", "unix_millis(timestamp) as at", "timestampType", "headers"
    ).collect()
    found = {(row.partition, row.offset): row for row in rows}
    assert len(rows) == 3
    assert {row.topic for row in rows} == {topic}
    first, second, third = found[0, 0], found[0, 1], found[1, 0]
    assert (first.key, first.value, first.at, first.timestampType) == (b"k", b"first", 1_700_000_000_123, 0)
    assert [tuple(header) for header in first.headers] == [("a", b"1")]
    assert (second.key, second.value, second.headers) == (b"gone", None, [])
    assert (third.key, third.value) == (None, b"")
    assert [tuple(header) for header in third.headers] == [("a", b"1"), ("a", None), ("é", b"")]


def test_without_include_headers_there_is_no_such_column_and_timestamp_type_is_the_brokers(
    spark: "SparkSession", target: Target
) -> None:
    topic = make_topic(target.bootstrap, configs={"message.timestamp.type": "LogAppendTime"})
    produce(target.bootstrap, topic, ["a"])
    frame = load(spark, target.bootstrap, subscribe=topic)
    assert "headers" not in frame.columns
    assert frame.select("timestampType").first()[0] == 1  # type: ignore[index]


def test_compressed_records_are_read(spark: "SparkSession", ottla: Target) -> None:
    topic = make_topic(ottla.bootstrap)
    codecs = ["gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        produce(ottla.bootstrap, topic, [f"{codec} {n}" for n in range(100)], compression_type=codec)
    found = values(load(spark, ottla.bootstrap, subscribe=topic))
    assert found == [f"{codec} {n}" for codec in codecs for n in range(100)]


def test_only_committed_records_are_read_up_to_a_marker_at_the_end(spark: "SparkSession", target: Target) -> None:
    """The last offsets are transaction markers, which are not returned. Reading must still end.

    Spec: F1, E8.
    """
    topic = make_topic(target.bootstrap)
    produce(target.bootstrap, topic, ["plain"])
    with Producer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for is_kept, value in ((True, b"kept"), (False, b"dropped"), (True, b"kept too"), (False, b"dropped too")):
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            producer.flush()
            if is_kept:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"undecided", partition=0)
        producer.flush()
        assert values(load(spark, target.bootstrap, subscribe=topic)) == ["plain", "kept", "kept too"]
        everything = load(spark, target.bootstrap, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
        assert values(everything) == ["plain", "kept", "dropped", "kept too", "dropped too", "undecided"]
        producer.abort_transaction()


def test_a_range_is_selected_by_offsets_and_by_timestamps(spark: "SparkSession", target: Target) -> None:
    topic = make_topic(target.bootstrap, 2)
    produce(target.bootstrap, topic, [f"a{n}" for n in range(10)], 0)
    produce(target.bootstrap, topic, [f"b{n}" for n in range(10)], 1)

    def cut(**options: str) -> list[str]:
        return values(load(spark, target.bootstrap, subscribe=topic, **options))

    offsets = cut(
        startingOffsets=f'{{"{topic}": {{"0": 7, "1": -2}}}}', endingOffsets=f'{{"{topic}": {{"0": -1, "1": 2}}}}'
    )
    assert offsets == ["a7", "a8", "a9", "b0", "b1"]
    assert cut(startingTimestamp="1700000000008") == ["a8", "a9", "b8", "b9"]
    assert cut(endingTimestamp="1700000000001") == ["a0", "b0"]
    per_partition = f'{{"{topic}": {{"0": 1700000000009, "1": 1700000099999}}}}'
    assert cut(startingOffsetsByTimestamp=per_partition, startingOffsetsByTimestampStrategy="latest") == ["a9"]
    shown = refusal(lambda: cut(startingOffsetsByTimestamp=per_partition))
    assert f"{topic}-1 has no record at 1700000099999 or later" in shown


def test_topics_by_pattern_and_partitions_by_name(spark: "SparkSession", ottla: Target) -> None:
    first, second = make_topic(ottla.bootstrap), make_topic(ottla.bootstrap, 2)
    produce(ottla.bootstrap, first, ["a"])
    produce(ottla.bootstrap, second, ["b"], 0)
    produce(ottla.bootstrap, second, ["c"], 1)
    assert values(load(spark, ottla.bootstrap, subscribePattern=f"{first}|{second}")) == ["a", "b", "c"]
    assert values(load(spark, ottla.bootstrap, assign=f'{{"{second}": [1]}}')) == ["c"]
    assert values(load(spark, ottla.bootstrap, subscribePattern="no-such-.*")) == []


def test_large_partitions_are_split_into_more_tasks_and_nothing_is_read_twice(
    spark: "SparkSession", ottla: Target
) -> None:
    topic = make_topic(ottla.bootstrap, 2)
    wanted = [str(n) for n in range(1000)]
    produce(ottla.bootstrap, topic, wanted, 0)
    frame = load(spark, ottla.bootstrap, subscribe=topic, minPartitions="7")
    assert frame.rdd.getNumPartitions() == 7
    assert values(frame) == wanted
    assert load(spark, ottla.bootstrap, subscribe=topic, maxRecordsPerPartition="300").rdd.getNumPartitions() == 4
    produce(ottla.bootstrap, topic, ["one more"], 1)
    together = load(spark, ottla.bootstrap, subscribe=topic)
    assert together.rdd.getNumPartitions() == 1, "few records need no second task"
    assert load(spark, ottla.bootstrap, subscribe=topic, minRecordsPerPartition="1").rdd.getNumPartitions() == 2
    assert values(together) == [*wanted, "one more"]


def test_a_view_in_sql_reads_a_topic(spark: "SparkSession", ottla: Target) -> None:
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, ["a", "b"])
    options = f"kafka.bootstrap.servers '{ottla.bootstrap}', subscribe '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING ottla OPTIONS ({options})")
    assert spark.sql("SELECT count(*) AS found FROM records WHERE value = X'61'").first().found == 1  # type: ignore[union-attr]


def test_an_empty_topic_gives_no_rows(spark: "SparkSession", ottla: Target) -> None:
    assert load(spark, ottla.bootstrap, subscribe=make_topic(ottla.bootstrap, 3)).count() == 0


def test_a_limit_stops_reading_early(spark: "SparkSession", ottla: Target) -> None:
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, [str(n) for n in range(50_000)])
    assert load(spark, ottla.bootstrap, subscribe=topic).limit(3).count() == 3
    assert load(spark, ottla.bootstrap, subscribe=topic).count() == 50_000, "the worker's consumer can be used again"


def test_compacted_records_are_no_data_loss(spark: "SparkSession") -> None:
    """Gaps in the middle and at the end of a range are skipped, with failOnDataLoss too."""
    settings = {"log.cleaner.backoff.ms": 50, "log.retention.check.interval.ms": 100}
    shape = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    with Broker.embedded(settings=settings) as broker:
        topic = make_topic(broker.bootstrap, configs=shape)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(50):
                producer.send_and_wait(topic, str(number).encode(), key=b"same" if number < 40 else b"%d" % number)
        eventually(lambda: len(values(load(spark, broker.bootstrap, subscribe=topic))) < 30, 600)
        found = values(load(spark, broker.bootstrap, subscribe=topic, failOnDataLoss="true"))
        assert found[-10:] == [str(number) for number in range(40, 50)]
        middle = f'{{"{topic}": {{"0": 5}}}}'
        ending = f'{{"{topic}": {{"0": 20}}}}'
        assert (
            values(load(spark, broker.bootstrap, subscribe=topic, startingOffsets=middle, endingOffsets=ending)) == []
        )


def test_records_deleted_by_retention_are_a_data_loss_with_their_offsets(spark: "SparkSession", target: Target) -> None:
    topic = make_topic(target.bootstrap)
    produce(target.bootstrap, topic, [str(n) for n in range(10)])
    wanted = load(spark, target.bootstrap, subscribe=topic)
    pieces = wanted.rdd  # planned now, with offsets 0 to 10
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(Exception, match=f"offsets 0 to 5 of {topic}-0 no longer exist; it begins at 6") as caught:
        pieces.count()
    assert "failOnDataLoss" in str(caught.value)
    from_gone = f'{{"{topic}": {{"0": 2}}}}'
    shown = refusal(lambda: load(spark, target.bootstrap, subscribe=topic, startingOffsets=from_gone).collect())
    assert f"startingOffsets has 2 for {topic}-0, which has offsets 6 to 10" in shown
    lenient = load(spark, target.bootstrap, subscribe=topic, startingOffsets=from_gone, failOnDataLoss="false")
    assert values(lenient) == ["6", "7", "8", "9"]


def test_without_fail_on_data_loss_a_task_continues_after_deleted_records(spark: "SparkSession", ottla: Target) -> None:
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, [str(n) for n in range(10)])
    pieces = load(spark, ottla.bootstrap, subscribe=topic, failOnDataLoss="false").select("offset").rdd
    assert pieces.getNumPartitions() == 1
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    assert sorted(row.offset for row in pieces.collect()) == [6, 7, 8, 9]


def test_a_missing_topic_is_reported_with_a_similar_name(spark: "SparkSession", target: Target) -> None:
    topic = make_topic(target.bootstrap)
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        eventually(lambda: topic in [known.name for known in admin.list_topics()])
    shown = refusal(lambda: load(spark, target.bootstrap, subscribe=f"{topic}x").count())
    assert shown.startswith(f"there is no topic {topic}x at {target.bootstrap}. Did you mean {topic}?")


def test_the_error_names_an_unreachable_broker(spark: "SparkSession") -> None:
    brief = {"kafka.default.api.timeout.ms": "500"}
    shown = refusal(lambda: load(spark, "127.0.0.1:1", subscribe="orders", **brief).count())
    assert shown.startswith("no broker answered")
    assert "Is a broker running at 127.0.0.1:1" in shown


def test_mistakes_in_options_are_shown_in_one_line(spark: "SparkSession", ottla: Target) -> None:
    topic = make_topic(ottla.bootstrap, 2)
    mistakes: list[tuple[dict[str, str], str]] = [
        (
            {"startingOffset": "earliest"},
            "unknown option startingoffset of the source ottla. Did you mean startingOffsets?",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch query"),
        ({"startingOffsets": f'{{"{topic}": {{"0": 0}}}}'}, f"startingOffsets has no entry for {topic}-1"),
        ({"startingOffsets": f'{{"{topic}": {{"0": 0, "1": 0, "7": 0}}}}'}, f"{topic} has partitions 0 to 1."),
        ({"endingOffsets": f'{{"{topic}": {{"0": 99, "1": -1}}}}'}, f"99 for {topic}-0, which has offsets 0 to 0"),
        ({"kafka.auto.offset.reset": "earliest"}, "Set startingOffsets to earliest or latest."),
    ]

    def count(options: dict[str, str]) -> int:
        return load(spark, ottla.bootstrap, subscribe=topic, **options).count()

    for options, message in mistakes:
        assert message in refusal(functools.partial(count, options))
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", ottla.bootstrap).schema("amount int")
    shown = refusal(lambda: reader.option("subscribe", topic).load().count())
    assert shown.startswith("the columns of format ottla are fixed")
    assert "struct<amount:int>" in shown
    shown = refusal(lambda: load(spark, ottla.bootstrap, assign=f'{{"{topic}": [5]}}').count())
    assert f"assign has {topic}-5, which does not exist. {topic} has partitions 0 to 1." in shown
