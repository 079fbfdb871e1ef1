"""The sink in Spark: streams and batch writes, each guarantee with a crash, and error messages."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla import Broker
from ottla.client.blocking import Admin, Consumer
from ottla.client.core.model import ConsumerRecord
from ottla.spark import session
from ottla.spark.sink.checkpoints import plan_of
from ottla.spark.sink.decisions import SinkState
from ottla.types import TopicPartition
from tests.support.processes.oracle import Target
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from ottla.broker.embedded.broker import EmbeddedBroker

PARTITIONS = 2
NUMBERS = [f"{number:03}" for number in range(60)]


@pytest.fixture(scope="module")
def two_phase() -> "Iterator[EmbeddedBroker]":
    settings = {"transaction.two.phase.commit.enable": True, "auto.create.topics.enable": False}
    with Broker.embedded(settings=settings) as running:
        yield running


@pytest.fixture
def out(two_phase: "EmbeddedBroker", topic: str) -> str:
    with Admin(bootstrap_servers=two_phase.bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    return topic


def read(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    # A coordinator answers when it has decided; its markers reach the partitions a moment later.
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert until(lambda: not being_ended(admin, topic), 600), being_ended(admin, topic)
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found: list[ConsumerRecord] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            found += consumer.poll(1000)
    return found


def being_ended(admin: Admin, topic: str) -> list[str]:
    """The transactions whose markers are not in this topic yet; the broker is shared with other tests."""
    decided = admin.list_transactions(states=["PrepareCommit", "PrepareAbort"])
    described = admin.describe_transactions([listing.transactional_id for listing in decided]) if decided else []
    return [
        f"{found.transactional_id}: {found.state}"
        for found in described
        if any(partition.topic == topic for partition in found.partitions)
    ]


def values(bootstrap: str, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in read(bootstrap, topic))


class Lines:
    """A directory of text files that Spark reads as a stream, with a limit of files per batch."""

    def __init__(self, spark: "SparkSession", directory: Path) -> None:
        self.spark, self.directory = spark, directory
        (directory / "in").mkdir()

    def add(self, name: str, lines: list[str]) -> None:
        (self.directory / "in" / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))

    def write(self, bootstrap: str, topic: str, expect_failure: bool = False, **options: str) -> str:
        """Runs the stream to its end. Returns the error's text if it fails."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 2).text(str(self.directory / "in"))
        writer = lines.writeStream.format("ottla").trigger(availableNow=True)
        for name, value in {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}.items():
            writer = writer.option(name, value)
        query = writer.option("checkpointLocation", str(self.directory / "checkpoint")).start()
        try:
            ended = query.awaitTermination(900)
        except Exception as error:
            if not expect_failure:
                raise
            return str(error)
        assert ended, f"the query still runs: {query.status}"
        assert not expect_failure
        return ""


@pytest.fixture
def lines(spark: "SparkSession", tmp_path: Path) -> Lines:
    made = Lines(spark, tmp_path)
    for start in range(0, len(NUMBERS), 15):
        made.add(f"{start:03}", NUMBERS[start : start + 15])
    return made


def test_a_stream_continues_where_it_stopped(lines: Lines, two_phase: "EmbeddedBroker", out: str) -> None:
    """Spec: F2. One run, then another on the same checkpoint."""
    lines.write(two_phase.bootstrap, out)
    assert values(two_phase.bootstrap, out) == NUMBERS
    lines.add("more", ["more"])
    lines.write(two_phase.bootstrap, out)
    assert values(two_phase.bootstrap, out) == sorted([*NUMBERS, "more"])


def test_the_decision_stores_a_hash_of_sparks_plan(lines: Lines, two_phase: "EmbeddedBroker", out: str) -> None:
    """It distinguishes the batch from one with the same number of a restored checkpoint."""
    lines.write(two_phase.bootstrap, out, sinkName=f"{out}-sink")
    partition = TopicPartition(f"{out}-sink-decisions", 0)
    with Consumer(bootstrap_servers=two_phase.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([partition])[partition]
        state = SinkState()
        while consumer.position(partition) < end:
            for record in consumer.poll(1000):
                state = state.replay(record.key, record.value)
    assert state.decision is not None
    assert state.decision.plan
    assert state.decision.plan == plan_of(str(lines.directory / "checkpoint"), state.decision.batch)


def test_a_thread_of_the_user_can_write_after_calling_session(
    lines: Lines, two_phase: "EmbeddedBroker", out: str
) -> None:
    """Spark looks up Python formats only in the thread's active session, and a new thread has none."""

    def write() -> None:
        session()
        lines.write(two_phase.bootstrap, out)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    assert values(two_phase.bootstrap, out) == NUMBERS


@pytest.mark.oracle
def test_a_stream_is_written_to_apache_kafka(lines: Lines, kafka: Target, topic: str) -> None:
    """Spec: F5."""
    with Admin(bootstrap_servers=kafka.bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
    lines.write(kafka.bootstrap, topic)
    assert values(kafka.bootstrap, topic) == NUMBERS


def test_a_sink_that_belongs_to_another_checkpoint_is_refused(
    lines: Lines, two_phase: "EmbeddedBroker", out: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines.write(two_phase.bootstrap, out, sinkName=out)
    others = Lines(lines.spark, tmp_path_factory.mktemp("other"))
    others.add("a", ["it would be silently lost otherwise"])
    error = others.write(two_phase.bootstrap, out, expect_failure=True, sinkName=out)
    assert "this sink belongs to another query" in error
    assert "Give this query its own sinkName" in error


def test_speculation_is_refused_with_its_reason(lines: Lines, two_phase: "EmbeddedBroker", out: str) -> None:
    lines.spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        error = lines.write(two_phase.bootstrap, out, expect_failure=True)
    finally:
        lines.spark.sparkContext.setLocalProperty("spark.speculation", None)  # type: ignore[arg-type]
    assert "delivery=exactly-once does not work with spark.speculation=true" in error
    assert "Set spark.speculation=false, or delivery=at-least-once" in error


def test_a_missing_topic_stops_the_query_with_its_name(lines: Lines, two_phase: "EmbeddedBroker", topic: str) -> None:
    error = lines.write(two_phase.bootstrap, topic, expect_failure=True, **{"kafka.max.block.ms": "5000"})
    assert topic in error
    assert "Create the topic" in error
    assert "Traceback" not in error


# --- the three guarantees, each with a crash in between. Spec: D1. --------------------------------------------------


def test_at_least_once_may_duplicate_and_never_loses(lines: Lines, two_phase: "EmbeddedBroker", out: str) -> None:
    """Spec: D1. Rows are visible before Spark's commit log has the batch. A crash in between repeats them."""
    lines.write(two_phase.bootstrap, out, delivery="at-least-once")
    assert values(two_phase.bootstrap, out) == NUMBERS
    forget_commits(lines.directory / "checkpoint")
    lines.write(two_phase.bootstrap, out, delivery="at-least-once")
    counts = Counter(values(two_phase.bootstrap, out))
    assert sorted(counts) == NUMBERS
    assert sorted(counts.values()) == [1] * 30 + [2] * 30, "two of the four files"


def test_at_most_once_may_lose_and_never_duplicates(lines: Lines, two_phase: "EmbeddedBroker", out: str) -> None:
    """After the same crash the batch is not written again; a batch that only has its ledger entry is lost.

    Spec: D1.
    """
    lines.write(two_phase.bootstrap, out, delivery="at-most-once")
    assert values(two_phase.bootstrap, out) == NUMBERS
    forget_commits(lines.directory / "checkpoint")
    lines.write(two_phase.bootstrap, out, delivery="at-most-once")
    assert values(two_phase.bootstrap, out) == NUMBERS


def test_exactly_once_neither_loses_nor_duplicates(lines: Lines, two_phase: "EmbeddedBroker", out: str) -> None:
    """Spec: D1. The same crash again."""
    lines.write(two_phase.bootstrap, out)
    forget_commits(lines.directory / "checkpoint")
    lines.write(two_phase.bootstrap, out)
    assert values(two_phase.bootstrap, out) == NUMBERS


def forget_commits(checkpoint: Path) -> None:
    """As if the driver had died after the sink committed the last batch and before Spark's commit log had it."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


# --- batch writes ---------------------------------------------------------------------------------------------


def frame(spark: "SparkSession", count: int = 20) -> "DataFrame":
    return spark.range(0, count, 1, 2).selectExpr("CAST(id AS STRING) AS key", "CONCAT('row-', id) AS value")


def save(rows: "DataFrame", bootstrap: str, mode: str = "append", **options: str) -> None:
    writer = rows.write.format("ottla").mode(mode)
    for name, value in {"kafka.bootstrap.servers": bootstrap, **options}.items():
        writer = writer.option(name, value)
    writer.save()


def test_a_dataframe_is_written_with_all_its_columns(
    spark: "SparkSession", two_phase: "EmbeddedBroker", out: str
) -> None:
    rows = spark.range(4).selectExpr(
        "CASE WHEN id = 0 THEN NULL ELSE CAST(id AS STRING) END AS key",
        "CASE WHEN id = 1 THEN NULL ELSE CAST(CONCAT('v', id) AS BINARY) END AS value",
        f"'{out}' AS topic",
        "CAST(id % 2 AS INT) AS partition",
        "array(struct('n' AS key, CAST(id AS STRING) AS text)) AS h",
        "TIMESTAMP '2026-11-15 12:00:00' + make_interval(0, 0, 0, 0, 0, 0, id) AS timestamp",
        "id AS offset",
    ).selectExpr(
        "key", "value", "topic", "partition", "timestamp", "offset",
        "transform(h, x -> struct(x.key AS key, CAST(x.text AS BINARY) AS value)) AS headers",
    )  # fmt: skip
    save(rows, two_phase.bootstrap, includeTimestamp="true")
    found = sorted(read(two_phase.bootstrap, out), key=lambda record: record.timestamp)
    assert [record.key for record in found] == [None, b"1", b"2", b"3"]
    assert [record.value for record in found] == [b"v0", None, b"v2", b"v3"]
    assert [record.partition for record in found] == [0, 1, 0, 1]
    assert [record.headers for record in found] == [(("n", str(n).encode()),) for n in range(4)]
    assert [record.timestamp for record in found] == [1_794_744_000_000 + 1000 * n for n in range(4)]


def test_a_dataframe_is_written_atomically(spark: "SparkSession", two_phase: "EmbeddedBroker", out: str) -> None:
    from pyspark.sql import functions as f

    poisoned = frame(spark).withColumn(
        "value", f.when(f.col("key") == "19", f.raise_error(f.lit("poison"))).otherwise(f.col("value"))
    )
    for options in ({}, {"sinkName": f"{out}-named"}):
        with pytest.raises(Exception, match="poison"):
            save(poisoned, two_phase.bootstrap, topic=out, **options)
        assert values(two_phase.bootstrap, out) == []
        until_nothing_is_open(two_phase.bootstrap, out)
    save(frame(spark), two_phase.bootstrap, topic=out)
    assert len(values(two_phase.bootstrap, out)) == 20


def until_nothing_is_open(bootstrap: str, topic: str) -> None:
    """A task that Spark kills may take a moment to end."""
    with Admin(bootstrap_servers=bootstrap) as admin:

        def left() -> list[str]:
            names = [listing.transactional_id for listing in admin.list_transactions(states=["Ongoing"])]
            return [name for name in names if name.startswith((f"{topic}-named", "ottla-batch-"))]

        assert until(lambda: not left(), 600), left()


def test_a_job_with_an_id_is_written_once_even_if_it_runs_again(
    spark: "SparkSession", two_phase: "EmbeddedBroker", out: str
) -> None:
    for _ in range(2):
        save(frame(spark), two_phase.bootstrap, topic=out, sinkName=f"{out}-daily", jobId="2026-11-15")
        assert len(values(two_phase.bootstrap, out)) == 20
    save(frame(spark), two_phase.bootstrap, topic=out, sinkName=f"{out}-daily", jobId="2026-11-16")
    assert len(values(two_phase.bootstrap, out)) == 40


def test_a_dataframe_can_be_written_at_least_once(spark: "SparkSession", two_phase: "EmbeddedBroker", out: str) -> None:
    save(frame(spark), two_phase.bootstrap, topic=out, delivery="at-least-once")
    assert len(values(two_phase.bootstrap, out)) == 20


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["CAST(id AS INT) AS value"], {"topic": "t"}, "column value has type int; it must be string"),
        (["'a' AS value"], {}, "there is no topic to write to"),
        (["'a' AS value"], {"topic": "t", "linger": "5"}, "unknown option linger"),
        (["'a' AS value", "CAST(NULL AS STRING) AS topic"], {}, "row 0 of this task has no topic"),
    ],
    ids=["type", "topic", "option", "null topic"],
)
def test_a_mistake_is_reported_with_its_cause(
    spark: "SparkSession", two_phase: "EmbeddedBroker", columns: list[str], options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=words) as refused:
        save(spark.range(1).selectExpr(*columns), two_phase.bootstrap, **options)
    assert "Traceback" not in str(refused.value), "one line, as for mistakes in the use of the source"


def test_a_topic_cannot_be_overwritten(spark: "SparkSession", two_phase: "EmbeddedBroker", out: str) -> None:
    with pytest.raises(Exception, match=r"a topic cannot be overwritten\. Write with mode\('append'\)"):
        save(frame(spark), two_phase.bootstrap, mode="overwrite", topic=out)
    with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*\"Append\""):  # raised by Spark itself
        save(frame(spark), two_phase.bootstrap, mode="error", topic=out)
