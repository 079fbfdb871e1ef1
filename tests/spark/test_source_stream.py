"""`spark.readStream.format("ottla")`: batches, restarts that repeat them, progress as a consumer group.

Spec: F1, F3, F5.
"""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from ottla import Admin, Broker, Producer
from ottla.clock import monotonic
from ottla.types import TopicPartition
from tests.support.processes.oracle import Target
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LIMIT_S = 1600
"""A bound for a machine with many times more work than cores."""

_numbers = itertools.count(1)


@pytest.fixture(params=["ottla", pytest.param("kafka", marks=pytest.mark.oracle, id="apache")])
def target(request: pytest.FixtureRequest) -> Target:
    chosen: Target = request.getfixturevalue(request.param)
    return chosen


def make_topic(bootstrap: str, partitions: int = 1) -> str:
    name = f"stream-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(name, partitions=partitions)
    return name


def produce(bootstrap: str, topic: str, values: Any, partition: int = 0) -> None:
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            producer.send(topic, str(value).encode(), partition=partition)


def end_transaction(producer: Producer, *, commit: bool) -> None:
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


class Pipeline:
    """A query on one checkpoint, which can be started several times; keeps the records of each batch."""

    def __init__(self, spark: "SparkSession", bootstrap: str, directory: Path, **options: str) -> None:
        self.spark = spark
        self.options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options}
        self.checkpoint = directory / "checkpoint"
        self.batches: list[tuple[int, list[int]]] = []
        self.fails_in: int | None = None

    def start(self, *, available_now: bool = True, **changes: str) -> "StreamingQuery":
        frame = self.spark.readStream.format("ottla").options(**{**self.options, **changes}).load()
        writer = frame.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def run(self, **changes: str) -> "StreamingQuery":
        """Reads the available records and ends."""
        query = self.start(available_now=True, **changes)
        assert query.awaitTermination(LIMIT_S)
        return query

    def take(self, frame: "DataFrame", batch_id: int) -> None:
        rows = frame.selectExpr("cast(value as string) as value").collect()
        self.batches.append((batch_id, sorted(int(row.value) for row in rows)))
        if batch_id == self.fails_in:
            raise RuntimeError("the driver failed")

    @property
    def values(self) -> list[int]:
        return sorted(value for _, batch in self.batches for value in batch)

    def end_offset(self) -> Any:
        last = max(int(file.name) for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit())
        return json.loads((self.checkpoint / "offsets" / str(last)).read_text().splitlines()[-1])


def wait_until(condition: Callable[[], bool], query: "StreamingQuery", timeout_s: float = LIMIT_S) -> None:
    deadline = monotonic() + timeout_s
    while not condition():
        assert monotonic() < deadline, "the condition was not met in time"
        query.awaitTermination(0.05)  # type: ignore[arg-type]


def failure(call: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        call()
    shown = str(caught.value)
    assert "Traceback" not in shown.partition("ExplainedError: ")[2], shown
    return shown.partition("ExplainedError: ")[2].partition("\n")[0]


def lag_of(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        committed = admin.list_group_offsets(group)
        ends = admin.list_offsets(dict.fromkeys(committed, -1))
    return {partition: ends[partition].offset - at.offset for partition, at in committed.items()}  # type: ignore[union-attr]


def test_starting_streams_add_nothing_to_the_environment_they_share(
    spark: "SparkSession", ottla: Target, tmp_path: Path
) -> None:
    """Two streams that add a name at the same moment corrupt the map, and every task of the format fails."""
    from ottla.spark.spark_session import WORKER_ENVIRONMENT, preset_environment

    source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("ottla")  # noqa: SLF001
    variables = source.dataSourceCls().envVars()
    for name in WORKER_ENVIRONMENT:
        variables.remove(name)
    before = set(variables.keySet())
    preset_environment(spark)
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, range(3))
    pipeline = Pipeline(spark, ottla.bootstrap, tmp_path, subscribe=topic)
    pipeline.run()
    assert pipeline.values == [0, 1, 2]
    assert set(variables.keySet()) == before | set(WORKER_ENVIRONMENT), (
        "Spark adds only the variables that we had added"
    )


def test_available_now_reads_in_batches_of_the_limit_and_commits_group_offsets(
    spark: "SparkSession", target: Target, tmp_path: Path
) -> None:
    """Each record once, in batches of at most maxOffsetsPerTrigger; the group's lag is 0 afterwards.

    Spec: F1, F3.
    """
    topic = make_topic(target.bootstrap, 2)
    produce(target.bootstrap, topic, range(75), 0)
    produce(target.bootstrap, topic, range(75, 100), 1)
    pipeline = Pipeline(spark, target.bootstrap, tmp_path, subscribe=topic, maxOffsetsPerTrigger="40")
    query = pipeline.run()
    assert pipeline.values == list(range(100))
    assert [len(batch) for _, batch in pipeline.batches] == [40, 40, 20]
    assert [sum(value < 75 for value in batch) for _, batch in pipeline.batches] == [30, 30, 15], "in proportion"
    end = pipeline.end_offset()
    assert end[topic] == {"0": 75, "1": 25}, "as Spark's own source writes it"
    assert end["@group"].startswith(f"ottla-source-{topic}-")
    assert lag_of(target.bootstrap, end["@group"]) == {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
    assert json.loads(query.recentProgress[0].sources[0].latestOffset or "{}") == {topic: {"0": 75, "1": 25}}

    produce(target.bootstrap, topic, range(100, 110))
    pipeline.run()
    assert pipeline.values == list(range(110)), "after a restart it continues at its position"
    assert pipeline.end_offset()["@group"] == end["@group"], "with the same group"


def test_a_running_query_continues_and_finds_new_partitions(
    spark: "SparkSession", target: Target, tmp_path: Path
) -> None:
    topic = make_topic(target.bootstrap)
    produce(target.bootstrap, topic, range(5))
    group = f"shown-{topic}"
    pipeline = Pipeline(spark, target.bootstrap, tmp_path, subscribe=topic, **{"kafka.group.id": group})
    query = pipeline.start(available_now=False)
    try:
        wait_until(lambda: pipeline.values == list(range(5)), query)
        with Admin(bootstrap_servers=target.bootstrap) as admin:
            admin.create_partitions({topic: 2})
            eventually(lambda: len(admin.describe_topics([topic])[0].partitions) == 2)
        produce(target.bootstrap, topic, range(5, 8), 1)
        wait_until(lambda: pipeline.values == list(range(8)), query)
        # Committed without waiting for the next batch, which may never start.
        wait_until(lambda: list(lag_of(target.bootstrap, group).values()) == [0, 0], query)
        with Producer(bootstrap_servers=target.bootstrap, transactional_id=topic) as producer:
            producer.init_transactions()
            for value, is_kept in ((8, True), (99, False)):
                producer.begin_transaction()
                producer.send(topic, str(value).encode(), partition=0)
                producer.flush()
                assert value not in pipeline.values, "records of an open transaction are not read"
                end_transaction(producer, commit=is_kept)
        produce(target.bootstrap, topic, [9])
        wait_until(lambda: pipeline.values == list(range(10)), query)
    finally:
        query.stop()


def test_the_first_batch_is_repeated_with_the_same_records_even_if_the_initial_offset_changed(
    spark: "SparkSession", ottla: Target, tmp_path: Path
) -> None:
    """If batch 0 was planned and not finished, Spark asks for the initial offset again, which has changed.

    Spec: F1.
    """
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, range(5))
    pipeline = Pipeline(spark, ottla.bootstrap, tmp_path, subscribe=topic)
    pipeline.fails_in = 0
    with pytest.raises(PySparkException, match="the driver failed"):
        pipeline.run()
    assert pipeline.batches == [(0, [0, 1, 2, 3, 4])]
    assert not list((pipeline.checkpoint / "commits").glob("[0-9]*")), "batch 0 was planned and not finished"
    produce(ottla.bootstrap, topic, range(5, 9))
    pipeline.fails_in = None
    pipeline.run(startingOffsets="latest")
    assert pipeline.batches[1:] == [(0, [0, 1, 2, 3, 4]), (1, [5, 6, 7, 8])]


def test_a_query_that_failed_before_its_first_record_misses_none(
    spark: "SparkSession", ottla: Target, tmp_path: Path
) -> None:
    """With startingOffsets=latest, the query begins at the latest offset of its first start."""
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, range(5))
    pipeline = Pipeline(spark, ottla.bootstrap, tmp_path, subscribe=topic, startingOffsets="latest")
    pipeline.fails_in = 0
    with pytest.raises(PySparkException, match="the driver failed"):
        pipeline.run()
    produce(ottla.bootstrap, topic, range(5, 9))
    pipeline.fails_in = None
    pipeline.run()
    assert pipeline.values == [5, 6, 7, 8]


def test_lost_records_stop_the_query_unless_fail_on_data_loss_is_off(
    spark: "SparkSession", ottla: Target, tmp_path: Path
) -> None:
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, range(5))
    pipeline = Pipeline(spark, ottla.bootstrap, tmp_path, subscribe=topic)
    pipeline.run()
    produce(ottla.bootstrap, topic, range(5, 10))
    with Admin(bootstrap_servers=ottla.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 8})
    shown = failure(pipeline.run)
    assert shown.startswith(f"data loss: offsets 5 to 7 of {topic}-0 no longer exist; it begins at 8.")
    assert "failOnDataLoss" in shown
    assert "retention.ms" in shown
    pipeline.run(failOnDataLoss="false")
    assert pipeline.values == [0, 1, 2, 3, 4, 8, 9]


def test_a_recreated_topic_is_detected(spark: "SparkSession", target: Target, tmp_path: Path) -> None:
    """Even if the new topic has grown past the query's offset: its records are different."""
    topic = make_topic(target.bootstrap)
    produce(target.bootstrap, topic, range(3))
    pipeline = Pipeline(spark, target.bootstrap, tmp_path, subscribe=topic)
    pipeline.run()
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.delete_topics([topic])
        eventually(lambda: topic not in [known.name for known in admin.list_topics()])
        shown = failure(pipeline.run)
        assert shown.startswith(f"data loss: {topic}-0 no longer exists")
        admin.create_topic(topic, partitions=1)
    produce(target.bootstrap, topic, range(10, 20))
    assert failure(pipeline.run).startswith(f"data loss: topic {topic} was deleted and recreated")
    pipeline.run(failOnDataLoss="false")
    assert pipeline.values == [0, 1, 2, *range(10, 20)]


def test_a_checkpoint_of_another_query_is_refused(spark: "SparkSession", ottla: Target, tmp_path: Path) -> None:
    first, second = make_topic(ottla.bootstrap), make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, first, [1])
    produce(ottla.bootstrap, second, [2])
    pipeline = Pipeline(spark, ottla.bootstrap, tmp_path, subscribe=first)
    pipeline.run()
    shown = failure(lambda: pipeline.run(subscribe=second))
    assert shown.startswith(f"the checkpoint belongs to a query that read {first}; this one reads {second}.")
    assert "checkpointLocation" in shown
    pipeline.run(subscribe=f"{first},{second}")
    assert pipeline.values == [1, 2], "a topic may be added"
    shown = failure(lambda: pipeline.run(subscribe=second))
    assert f"offsets of {first}, which this query no longer reads" in shown, "removing one needs failOnDataLoss=false"
    pipeline.run(subscribe=second, failOnDataLoss="false")


def test_a_query_waits_for_min_offsets_until_max_trigger_delay(
    spark: "SparkSession", ottla: Target, tmp_path: Path
) -> None:
    # Spark reports every trigger, not only those that found enough records.
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "10ms")
    topic = make_topic(ottla.bootstrap)
    produce(ottla.bootstrap, topic, range(3))
    pipeline = Pipeline(spark, ottla.bootstrap, tmp_path, subscribe=topic, minOffsetsPerTrigger="10")
    query = pipeline.start(available_now=False, maxTriggerDelay="1h")
    spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")

    def has_seen(end: int) -> bool:
        shown = [json.loads(progress.sources[0].latestOffset or "{}") for progress in query.recentProgress]
        return {topic: {"0": end}} in shown

    try:
        wait_until(lambda: pipeline.values == [0, 1, 2], query)  # the first batch does not wait
        produce(ottla.bootstrap, topic, range(3, 5))
        wait_until(lambda: has_seen(5), query)
        assert len(pipeline.batches) == 1, "it has seen the two records, and waits for more"
        # Ten with the two. With more, a trigger in the middle would find enough and leave the rest for an hour.
        produce(ottla.bootstrap, topic, range(5, 13))
        wait_until(lambda: len(pipeline.values) == 13, query)
        assert [len(batch) for _, batch in pipeline.batches] == [3, 10]
    finally:
        query.stop()
    query = pipeline.start(available_now=False, maxTriggerDelay="1s")
    try:
        produce(ottla.bootstrap, topic, [13])
        # Nor does the first batch of this start. The previous batch is repeated if the stop interrupted it.
        wait_until(lambda: set(pipeline.values) == set(range(14)), query)
        produce(ottla.bootstrap, topic, [14])
        wait_until(lambda: set(pipeline.values) == set(range(15)), query)  # the delay is over
    finally:
        query.stop()


def test_a_query_survives_a_broker_outage(spark: "SparkSession", tmp_path: Path) -> None:
    with Broker.embedded() as broker:
        topic = make_topic(broker.bootstrap)
        produce(broker.bootstrap, topic, range(5))
        pipeline = Pipeline(spark, broker.bootstrap, tmp_path, subscribe=topic)
        query = pipeline.start(available_now=False)
        try:
            wait_until(lambda: pipeline.values == list(range(5)), query)
            broker.kill()
            query.awaitTermination(3)
            assert query.isActive
            broker.restart()
            produce(broker.bootstrap, topic, range(5, 9))
            wait_until(lambda: pipeline.values == list(range(9)), query)
        finally:
            query.stop()


def test_mistakes_are_reported_when_the_query_starts(spark: "SparkSession", ottla: Target, tmp_path: Path) -> None:
    topic = make_topic(ottla.bootstrap)
    for options, shown in (
        ({"subscribe": topic + "x"}, f"there is no topic {topic}x"),
        ({"subscribe": topic, "endingOffsets": "latest"}, "endingOffsets is not for streaming queries"),
        ({"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 7}}}}'}, "which has offsets 0 to 0"),
    ):
        pipeline = Pipeline(spark, ottla.bootstrap, tmp_path / str(next(_numbers)), **options)
        assert shown in failure(pipeline.run)
