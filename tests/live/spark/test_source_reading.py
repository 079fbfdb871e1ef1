"""The task's side of the source, without Spark: a range of offsets as Arrow batches, with a reused consumer.

Spec: F1.
"""

import os
import pickle
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from ottla import Admin, Broker, Producer
from ottla.client.consumer.fetcher import Fetcher
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.spark.explaining import BrokersUnavailable
from ottla.spark.source import reading
from ottla.spark.source.offsets import OffsetRange
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.source import BatchReader, StreamReader, read, spark_schema
from ottla.types import TopicPartition
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def _no_idle_consumers() -> Iterator[None]:
    yield
    while reading.idle:
        reading.idle.popitem()[1].close()


@pytest.fixture
def empty_fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a task waited for records that do not exist. Existing records arrive within a minute."""
    monkeypatch.setattr(reading, "EXISTENCE_CHECK_MS", 60_000)
    vain: list[int] = []
    look = reading.RangeConsumer.next_fetches

    def next_fetches(self: reading.RangeConsumer, timeout_ms: int) -> Any:
        fetched = look(self, timeout_ms)
        if not fetched:
            vain.append(timeout_ms)
        return fetched

    monkeypatch.setattr(reading.RangeConsumer, "next_fetches", next_fetches)
    return vain


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions in each fetch request."""
    sent: list[int] = []
    ask = Fetcher._request  # noqa: SLF001

    def request(self: Fetcher, node_id: int, wanted: dict[TopicPartition, Any]) -> Any:
        sent.append(len(wanted))
        return ask(self, node_id, wanted)

    monkeypatch.setattr(Fetcher, "_request", request)
    return sent


def options_for(broker: Any, topic: str, **more: str) -> SourceOptions:
    return SourceOptions.parse({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **more})


def make(broker: Any, topic: str, values: Any = (), **settings: Any) -> TopicPartition:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        for value in values:
            producer.send(topic, str(value).encode() if isinstance(value, int) else value, partition=0)
    return TopicPartition(topic, 0)


def read_all(options: SourceOptions, partition: TopicPartition, start: int, end: int) -> list[Any]:
    return list(read(options, InputPartition([OffsetRange(partition, start, end)])))


def values(batches: list[Any]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def test_only_the_records_of_the_range_are_read(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(1000))
    options = options_for(broker, topic)
    for start, end in ((0, 1000), (0, 1), (999, 1000), (123, 456), (5, 5)):
        assert values(read_all(options, partition, start, end)) == list(range(start, end))


@pytest.mark.parametrize("headers", ["true", "false"])
def test_batches_have_the_schema_that_spark_expects(broker: Any, topic: str, headers: str) -> None:
    partition = make(broker, topic, range(3))
    options = options_for(broker, topic, includeHeaders=headers)
    (batch,) = read_all(options, partition, 0, 3)
    assert batch.schema.equals(to_arrow_schema(spark_schema(options), timezone="UTC"), check_metadata=True)
    batch.validate(full=True)


def test_an_empty_partition_reads_nothing(broker: Any, topic: str) -> None:
    assert list(read(options_for(broker, topic), InputPartition(None))) == []


def test_batches_are_bounded_by_rows_and_by_bytes(broker: Any, topic: str) -> None:
    small = make(broker, topic, range(25_000))
    options = options_for(broker, topic)
    sizes = [batch.num_rows for batch in read_all(options, small, 0, 25_000)]
    assert sum(sizes) == 25_000
    assert max(sizes) <= reading.ROWS_PER_BATCH
    large = make(broker, f"{topic}-large", (bytes(10_000) for _ in range(1500)))
    batches = read_all(options, large, 0, 1500)
    assert sum(batch.num_rows for batch in batches) == 1500
    assert max(batch.nbytes for batch in batches) < reading.BYTES_PER_BATCH + 1_500_000


def test_the_memory_of_a_task_does_not_depend_on_the_length_of_its_range(broker: Any, topic: str) -> None:
    import pyarrow as pa

    partition = make(broker, topic, (os.urandom(1000) for _ in range(60_000)))
    options = options_for(broker, topic, **{"kafka.max.partition.fetch.bytes": "500000"})
    read_all(options, partition, 0, 1)  # loads the imports
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    rows = 0
    for batch in read(options, InputPartition([OffsetRange(partition, 0, 60_000)])):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 60_000
    assert most < 2 * reading.BYTES_PER_BATCH, "one Arrow batch, and the next one being built"
    assert python < 12_000_000, "a few fetches, not the 60 megabytes of the range"


def test_the_next_task_reuses_the_consumer_of_the_last(broker: Any, topic: str) -> None:
    first, second = make(broker, topic, range(10)), make(broker, f"{topic}-b", range(10, 20))
    options = options_for(broker, f"{topic},{topic}-b")
    read_all(options, first, 0, 10)
    (kept,) = reading.idle.values()
    assert values(read_all(options, second, 5, 10)) == [15, 16, 17, 18, 19]
    assert list(reading.idle.values()) == [kept]
    assert not kept.assignment(), "an idle consumer fetches nothing"
    other = options_for(broker, topic, **{"kafka.fetch.max.wait.ms": "10"})
    read_all(other, first, 0, 10)
    assert len(reading.idle) == 2, "other settings, another consumer"


def test_a_task_can_have_several_ranges(broker: Any, topic: str) -> None:
    first, second = make(broker, topic, range(10)), make(broker, f"{topic}-b", range(10, 20))
    ranges = [OffsetRange(first, 8, 10), OffsetRange(second, 0, 2)]
    assert sorted(values(list(read(options_for(broker, topic), InputPartition(ranges))))) == [8, 9, 10, 11]
    assert len(reading.idle) == 1


def test_small_ranges_are_read_with_one_fetch(broker: Any, topic: str, requests: list[int]) -> None:
    """A task that reads one partition after the other would take as long as a task for each."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=24)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(240):
            producer.send(topic, str(number).encode(), partition=number % 24)
    ranges = [OffsetRange(TopicPartition(topic, index), 0, 10) for index in range(24)]
    batches = list(read(options_for(broker, topic), InputPartition(ranges)))
    assert len(batches) == 1, "and make one Arrow batch"
    assert batches[0].column("partition").to_pylist().count(23) == 10
    rows = values(batches)
    assert sorted(rows) == list(range(240))
    for index in range(24):
        assert [row for row in rows if row % 24 == index] == list(range(index, 240, 24)), "in order in each partition"
    assert requests == [24]


def test_large_ranges_of_a_task_are_read_one_after_the_other(broker: Any, topic: str, requests: list[int]) -> None:
    """Together they would need more memory."""
    first, second = make(broker, topic, range(10)), make(broker, f"{topic}-b", range(10, 9_010))
    ranges = [OffsetRange(second, 0, 9_000), OffsetRange(first, 0, 10)]
    rows = values(list(read(options_for(broker, topic), InputPartition(ranges))))
    assert rows == [*range(10, 9_010), *range(10)]
    assert set(requests) == {1}


def test_ranges_of_a_task_that_fill_several_batches_are_read_completely(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROWS_PER_BATCH", 7)
    first, second = make(broker, topic, range(10)), make(broker, f"{topic}-b", range(10, 40), batch_size=200)
    ranges = [OffsetRange(first, 2, 9), OffsetRange(second, 1, 29)]
    batches = list(read(options_for(broker, topic), InputPartition(ranges)))
    assert max(batch.num_rows for batch in batches) <= 7
    rows = values(batches)
    assert [row for row in rows if row < 10] == list(range(2, 9))
    assert [row for row in rows if row >= 10] == list(range(11, 39))


def test_a_lost_range_does_not_disturb_the_others_of_its_task(broker: Any, topic: str) -> None:
    first, second = make(broker, topic, range(10)), make(broker, f"{topic}-b", range(10, 20))
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({first: 4})
    task = InputPartition([OffsetRange(first, 0, 10), OffsetRange(second, 0, 10)])
    with pytest.raises(OttlaError, match=f"offsets 0 to 3 of {topic}-0 no longer exist"):
        list(read(options_for(broker, topic), task))
    accepting = options_for(broker, topic, failOnDataLoss="false")
    assert sorted(values(list(read(accepting, task)))) == list(range(4, 20))


def test_the_number_of_idle_consumers_is_limited(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(3))
    for number in range(reading.IDLE_CONSUMERS_MAX + 2):
        read_all(options_for(broker, topic, **{"kafka.fetch.max.wait.ms": str(number + 1)}), partition, 0, 3)
    assert len(reading.idle) == reading.IDLE_CONSUMERS_MAX


def test_small_ranges_at_the_end_of_a_topic_do_not_wait(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch beyond the range would wait half a second at the broker and delay the next range."""
    asked: list[int] = []
    ask = Fetcher._request  # noqa: SLF001

    def request(self: Fetcher, node_id: int, wanted: dict[TopicPartition, Any]) -> Any:
        asked.extend(source.fetch_offset for source in wanted.values())
        return ask(self, node_id, wanted)

    monkeypatch.setattr(Fetcher, "_request", request)
    partition = make(broker, topic, range(10))
    options = options_for(broker, topic)
    for start in (0, 5, 5, 9, 5):
        assert values(read_all(options, partition, start, 10)) == list(range(start, 10))
    assert {0, 5, 9} <= set(asked)
    assert max(asked) < 10, "nothing after the range is fetched"


def test_a_reader_that_is_closed_early_leaves_a_reusable_consumer(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(25_000))
    options = options_for(broker, topic)
    rows = read(options, InputPartition([OffsetRange(partition, 0, 25_000)]))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert len(reading.idle) == 1
    assert values(read_all(options, partition, 24_990, 25_000)) == list(range(24_990, 25_000))


def test_an_end_within_markers_is_reached(broker: Any, topic: str, empty_fetches: list[int]) -> None:
    partition = make(broker, topic, [1])
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for _ in range(3):
            producer.begin_transaction()
            producer.send(topic, b"7", partition=0)
            producer.flush()
            producer.abort_transaction()
    options = options_for(broker, topic)
    assert values(read_all(options, partition, 0, 7)) == [1]
    assert read_all(options, partition, 2, 3) == read_all(options, partition, 6, 7) == []
    assert not empty_fetches
    uncommitted = options_for(broker, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert values(read_all(uncommitted, partition, 0, 7)) == [1, 7, 7, 7]


def test_a_deleted_range_is_an_error_or_skipped(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(10))
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({partition: 6})
    with pytest.raises(OttlaError, match=f"data loss: offsets 2 to 3 of {topic}-0 no longer exist; it begins at 6"):
        read_all(options_for(broker, topic), partition, 2, 4)
    assert not reading.idle, "a consumer that failed is not kept"
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert read_all(lenient, partition, 2, 4) == []
    assert values(read_all(lenient, partition, 2, 8)) == [6, 7]


def test_fetches_that_fail_while_a_task_looks_for_the_new_beginning_lose_nothing(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch at the deleted offset is retried in the background, and fails again."""
    partition = make(broker, topic, range(10))
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({partition: 6})
    look = reading.RangeConsumer.beginning_offsets

    def beginning_offsets(self: reading.RangeConsumer, partitions: Any) -> Any:
        eventually(lambda: bool(self._async._positions.errors))  # noqa: SLF001 (the second failure)
        return look(self, partitions)

    monkeypatch.setattr(reading.RangeConsumer, "beginning_offsets", beginning_offsets)
    lenient = options_for(broker, topic, failOnDataLoss="false")
    assert values(read_all(lenient, partition, 2, 8)) == [6, 7]


def test_a_truncated_partition_is_a_loss(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(10))
    with pytest.raises(OttlaError, match=f"{topic}-0 ends at offset 10, but the batch goes from 12 to 20"):
        read_all(options_for(broker, topic), partition, 12, 20)
    assert read_all(options_for(broker, topic, failOnDataLoss="false"), partition, 12, 20) == []


def test_a_topic_deleted_during_a_task_is_a_loss(broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "EXISTENCE_CHECK_MS", 200)
    monkeypatch.setattr(reading, "METADATA_DELAY_S", 0.2)
    partition = TopicPartition(topic, 0)
    with pytest.raises(OttlaError, match=f"{topic}-0 was deleted before offsets 0 to 4 were read"):
        read_all(options_for(broker, topic), partition, 0, 5)
    assert read_all(options_for(broker, topic, failOnDataLoss="false"), partition, 0, 5) == []


def test_a_task_waits_for_missing_records_until_the_poll_timeout(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(5))
    options = options_for(broker, topic, **{"kafkaConsumer.pollTimeoutMs": "300"})
    with pytest.raises(BrokersUnavailable, match=f"no records of {topic}-0 from offset 5 on within 300 ms") as caught:
        read_all(options, partition, 5, 9)
    assert "kafkaConsumer.pollTimeoutMs" in str(caught.value)


def test_reading_a_range_survives_a_broker_restart(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "EXISTENCE_CHECK_MS", 100)
    with Broker.embedded() as broker:
        partition = make(broker, topic, (f"{number:0500}".encode() for number in range(4000)))
        options = options_for(broker, topic, **{"kafka.max.partition.fetch.bytes": "20000"})
        rows = read(options, InputPartition([OffsetRange(partition, 0, 4000)]))
        found = values([next(rows)])
        broker.kill()
        back = threading.Timer(1.5, broker.restart)
        back.start()
        found += values(list(rows))
        back.join()
    assert found == list(range(4000))


def test_a_range_whose_end_was_compacted_ends(topic: str, empty_fetches: list[int]) -> None:
    """Compaction removed all records of the range: the next record is after it."""
    settings = {"log.cleaner.backoff.ms": 20, "log.retention.check.interval.ms": 50}
    shape = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    shape |= {"delete.retention.ms": "0"}
    with Broker.embedded(settings=settings) as broker:
        partition = TopicPartition(topic, 0)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic(topic, partitions=1, configs=shape)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(10):
                producer.send_and_wait(topic, str(number).encode(), key=b"same")
        options = options_for(broker, topic)
        deadline = monotonic() + 90
        while read_all(options, partition, 2, 6):
            assert monotonic() < deadline
        assert not empty_fetches


def test_a_timestamp_out_of_sparks_range_is_reported(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(4):
            producer.send_and_wait(topic, str(number), partition=0, timestamp=2**62 if number == 3 else number)
    partition = TopicPartition(topic, 0)
    options = options_for(broker, topic)
    with pytest.raises(OttlaError, match="does not fit in microseconds"):
        read_all(options, partition, 0, 4)
    assert values(read_all(options, partition, 0, 3)) == [0, 1, 2]


def test_readers_can_be_pickled(broker: Any, topic: str) -> None:
    partition = make(broker, topic, range(3))
    for reader in (BatchReader(options_for(broker, topic)), StreamReader(options_for(broker, topic))):
        there = pickle.loads(pickle.dumps(reader))
        assert values(list(there.read(InputPartition([OffsetRange(partition, 0, 3)])))) == [0, 1, 2]


def test_a_forked_process_opens_its_own_connections(broker: Any, topic: str) -> None:
    """Spark's workers are forked. A worker must not use its parent's consumer."""
    partition = make(broker, topic, range(3))
    options = options_for(broker, topic)
    read_all(options, partition, 0, 3)
    assert reading.idle
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if values(read_all(options, partition, 0, 3)) == [0, 1, 2] else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert values(read_all(options, partition, 0, 3)) == [0, 1, 2]


def test_a_consumer_with_stale_metadata_waits_for_the_new_topic(broker: Any, topic: str) -> None:
    """The batch was planned for a topic that was just recreated, and a broker may still report the old one."""
    partition = make(broker, topic, range(3))
    options = options_for(broker, topic)
    with reading.RangeConsumer({**reading.DEFAULTS, **options.client_settings}) as consumer:
        consumer.start([OffsetRange(partition, 0, 3)], {})
        assert consumer.next_fetches(60_000)
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.delete_topics([topic])
        make(broker, topic, range(5))
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            (made_again,) = admin.describe_topics([topic])
        schema = to_arrow_schema(spark_schema(options), timezone="UTC")
        whole = OffsetRange(partition, 0, 5)
        reader = reading.RangeReader(consumer, {topic: made_again.topic_id}, schema, True, 60_000)
        assert values(list(reader.read([whole]))) == [*range(5)]


def test_a_task_waits_for_a_broker_with_stale_metadata(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's broker knows a new topic or partition, and the task's broker does not yet: nothing is lost."""
    monkeypatch.setattr(reading, "EXISTENCE_CHECK_MS", 50)
    options = options_for(broker, topic, failOnDataLoss="true")
    creation = threading.Timer(0.5, make, (broker, topic, range(3)))
    creation.start()
    assert values(read_all(options, TopicPartition(topic, 0), 0, 3)) == [0, 1, 2]
    creation.join()
