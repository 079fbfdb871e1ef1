"""Arrow columns to a running broker and back, with all guarantees of poll() and send()."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ottla import Admin, AsyncConsumer, AsyncProducer, Consumer, ErrorCode, KafkaError, OttlaError, Producer
from ottla.client.consumer.arrow import SCHEMA
from ottla.client.producer.partitioner import partition_for_key
from ottla.clock import monotonic
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from ottla.client.core.model import ConsumerRecord

NOW = 1_700_000_000_000


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


def read_table(bootstrap: str, topic: str, partitions: int = 1, **settings: Any) -> pa.Table:
    """Reads everything up to the end, as a table."""
    assigned = [TopicPartition(topic, i) for i in range(partitions)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        batches: list[pa.RecordBatch] = []
        deadline = monotonic() + PATIENCE_S
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            assert monotonic() < deadline, "records are missing"
            batches.append(consumer.poll_arrow(1000))
        return pa.Table.from_batches(batches, SCHEMA)


def values(table: Any) -> list[Any]:
    found: list[Any] = table.column("value").to_pylist()
    return found


def sample(count: int) -> pa.Table:
    """Rows of every kind: with and without keys, tombstones, headers of several lengths."""
    return pa.table(
        {
            "key": pa.array([None if i % 3 == 0 else b"key-%d" % (i % 40) for i in range(count)], pa.binary()),
            "value": pa.array([None if i % 10 == 1 else b"value-%d" % i for i in range(count)], pa.binary()),
            "timestamp": pa.array([NOW + i for i in range(count)], pa.timestamp("ms", "UTC")),
            "headers": pa.array(
                [[{"key": f"h{j}", "value": None if j == 2 else b"x" * j} for j in range(i % 4)] for i in range(count)],
                SCHEMA.field("headers").type,
            ),
        }
    )


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_table_is_read_back_as_it_was_sent(broker: Any, admin: Admin, topic: str, codec: str) -> None:
    """Spec: F1."""
    admin.create_topic(topic)
    table = sample(1500)
    with Producer(bootstrap_servers=broker.bootstrap, compression_type=codec, batch_size=8_000) as producer:
        stored = producer.send_arrow(table, topic).result(PATIENCE_S)
    assert stored == {TopicPartition(topic, 0): (0, 1499, 1500)}
    found = read_table(broker.bootstrap, topic)
    assert found.select(table.column_names).equals(table)
    assert found.column("offset").to_pylist() == list(range(1500))
    assert set(found.column("topic").to_pylist()) == {topic}


def test_columns_and_objects_have_the_same_records(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    table = sample(600)
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=2_000) as producer:
        producer.send_arrow(table, topic).result(PATIENCE_S)
        for row in table.slice(0, 50).to_pylist():
            pairs = [(pair["key"], pair["value"]) for pair in row["headers"]]
            producer.send(topic, row["value"], key=row["key"], timestamp=NOW, headers=pairs)
    columns = read_table(broker.bootstrap, topic, 3)
    assigned = [TopicPartition(topic, i) for i in range(3)]
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(assigned)
        objects: list[ConsumerRecord] = []
        while len(objects) < 650:
            polled = list(consumer.poll(300_000))
            assert polled, "no records within a minute"
            objects += polled
    by_place = {(record.partition, record.offset): record for record in objects}
    assert columns.num_rows == len(by_place) == 650
    for row in columns.to_pylist():
        record = by_place[row["partition"], row["offset"]]
        assert (row["key"], row["value"], row["topic"]) == (record.key, record.value, record.topic)
        assert int(row["timestamp"].timestamp() * 1000 + 0.5) == record.timestamp
        assert tuple((pair["key"], pair["value"]) for pair in row["headers"]) == record.headers
        if row["key"] is not None:
            assert row["partition"] == partition_for_key(row["key"], 3)
    # Rows of one partition keep the order that they had in the table.
    for partition in range(3):
        times = columns.filter(pc.field("partition") == partition)["timestamp"][:-50].to_pylist()
        assert times == sorted(times)


def test_rows_without_a_key_use_all_partitions_in_whole_batches(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    table = pa.table({"value": [b"x" * 100] * 3000})
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=4_000) as producer:
        stored = producer.send_arrow(table, topic).result(PATIENCE_S)
    assert sum(part.rows for part in stored.values()) == 3000
    assert len(stored) == 3
    assert min(part.rows for part in stored.values()) > 300


def test_rows_name_their_topic_and_partition(broker: Any, admin: Admin, topic: str) -> None:
    other = f"{topic}-other"
    admin.create_topic(topic, partitions=3)
    admin.create_topic(other, partitions=2)
    table = pa.table(
        {
            "value": [f"v{i}" for i in range(60)],
            "topic": pa.array([topic if i % 2 else other for i in range(60)]).dictionary_encode(),
            "partition": pa.array([i % 3 if i % 2 else None for i in range(60)], pa.int16()),
            "key": [f"k{i % 7}" for i in range(60)],
        }
    )
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        delivery = producer.send_arrow(table)
        assert delivery.count == 60
        delivery.result(PATIENCE_S)
    for row in read_table(broker.bootstrap, topic, 3).to_pylist():
        number = int(row["value"][1:])
        assert number % 2 == 1
        assert row["partition"] == number % 3
    for row in read_table(broker.bootstrap, other, 2).to_pylist():
        assert row["partition"] == partition_for_key(row["key"], 2)


def test_a_table_that_was_read_can_be_sent_as_it_is(broker: Any, admin: Admin, topic: str) -> None:
    """The columns offset and timestamp_type are ignored, and topic= applies to all rows."""
    copy = f"{topic}-copy"
    admin.create_topic(topic, partitions=2)
    admin.create_topic(copy, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_arrow(sample(100), topic).result(PATIENCE_S)
        original = read_table(broker.bootstrap, topic, 2)
        producer.send_arrow(original, copy).result(PATIENCE_S)
    copied = read_table(broker.bootstrap, copy, 2)
    order = [("partition", "ascending"), ("offset", "ascending")]
    columns = ["partition", "offset", "key", "value", "timestamp", "headers"]
    assert copied.sort_by(order).select(columns).equals(original.sort_by(order).select(columns))


def test_send_and_send_arrow_keep_their_order(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=50) as producer:
        for turn in range(20):
            producer.send(topic, f"{turn}-a")
            producer.send_arrow(pa.table({"value": [f"{turn}-b", f"{turn}-c"]}), topic)
            producer.send(topic, f"{turn}-d")
        producer.flush()
    assert values(read_table(broker.bootstrap, topic)) == [
        f"{turn}-{letter}".encode() for turn in range(20) for letter in "abcd"
    ]


def test_mixing_poll_and_poll_arrow_loses_nothing(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    table = pa.table({"value": [f"{i}" for i in range(2000)], "partition": [i % 2 for i in range(2000)]})
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=3_000, compression_type="lz4") as producer:
        producer.send_arrow(table, topic).result(PATIENCE_S)
    seen: dict[int, list[int]] = {0: [], 1: []}
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        deadline = monotonic() + PATIENCE_S
        turn = 0
        while sum(map(len, seen.values())) < 2000:
            assert monotonic() < deadline, "records are missing"
            turn += 1
            if turn % 3 == 0:
                for record in consumer.poll(1000, max_records=turn % 50 + 1):
                    seen[record.partition].append(record.offset)
            elif turn % 3 == 1:
                batch = consumer.poll_arrow(1000, max_records=turn % 70 + 1)
                assert batch.num_rows <= turn % 70 + 1
                for row in batch.to_pylist():
                    seen[row["partition"]].append(row["offset"])
            elif turn % 12 == 2:
                for taken, record in enumerate(consumer, 1):
                    seen[record.partition].append(record.offset)
                    if taken == 5:
                        break
            for partition in (0, 1):
                expected = seen[partition][-1] + 1 if seen[partition] else 0
                assert consumer.position((topic, partition)) == expected
    assert seen == {0: list(range(1000)), 1: list(range(1000))}


def test_seek_pause_and_empty_polls_work_like_with_poll(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        table = pa.table({"value": [f"{i}" for i in range(20)], "partition": [i % 2 for i in range(20)]})
        producer.send_arrow(table, topic).result(PATIENCE_S)
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        with pytest.raises(OttlaError, match="not subscribed"):
            consumer.poll_arrow()
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.pause([(topic, 1)])
        assert values(consumer.poll_arrow(300_000)) == [b"%d" % i for i in range(0, 20, 2)]
        nothing = consumer.poll_arrow(10)
        assert nothing.schema == SCHEMA
        assert nothing.num_rows == 0
        consumer.seek((topic, 0), 8)
        assert values(consumer.poll_arrow(300_000)) == [b"16", b"18"]
        consumer.resume([(topic, 1)])
        assert values(consumer.poll_arrow(300_000, max_records=3)) == [b"1", b"3", b"5"]
        some = consumer.poll_arrow(300_000, columns=["offset", "timestamp"], timestamp_unit="us")
        assert some.schema.names == ["offset", "timestamp"]
        assert some.num_rows == 7
        assert some.schema.field("timestamp").type == pa.timestamp("us", "UTC")
        with pytest.raises(OttlaError, match="no column price"):
            consumer.poll_arrow(columns=["price"])


def test_a_group_commits_records_returned_as_columns(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": f"group-{topic}", "auto_offset_reset": "earliest"}
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_arrow(pa.table({"value": [f"{i}" for i in range(10)]}), topic).result(PATIENCE_S)
    with Consumer(**settings) as consumer:
        consumer.subscribe([topic])
        assert values(consumer.poll_arrow(300_000, max_records=4)) == [b"0", b"1", b"2", b"3"]
    with Consumer(**settings) as consumer:
        consumer.subscribe([topic])
        assert values(consumer.poll_arrow(300_000)) == [b"%d" % i for i in range(4, 10)]


def test_read_committed_returns_only_committed_rows(broker: Any, admin: Admin, topic: str) -> None:
    """Spec: E8."""
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=f"id-{topic}") as producer:
        producer.init_transactions()
        for turn in range(4):
            producer.begin_transaction()
            table = pa.table({"value": [f"{turn}"] * 30, "partition": [i % 2 for i in range(30)]})
            delivery = producer.send_arrow(table, topic)
            if turn % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                delivery.result(PATIENCE_S)
        with pytest.raises(OttlaError):
            producer.send_arrow(table, topic)
    committed = read_table(broker.bootstrap, topic, 2, isolation_level="read_committed")
    assert sorted(values(committed)) == [b"0"] * 30 + [b"2"] * 30
    everything = set(values(read_table(broker.bootstrap, topic, 2)))
    assert everything >= {b"0", b"2"}


def test_send_arrow_waits_while_the_buffer_is_full(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    table = pa.table(
        {"value": [b"%06d" % i + b"x" * 500 for i in range(2000)], "partition": [i % 2 for i in range(2000)]}
    )
    with Producer(bootstrap_servers=broker.bootstrap, buffer_memory=100_000, batch_size=20_000) as producer:
        delivery = producer.send_arrow(table, topic)
        assert producer._async._accumulator.buffered_bytes <= 100_000
        delivery.result(PATIENCE_S)
    assert sorted(values(read_table(broker.bootstrap, topic, 2))) == values(table)


def test_invalid_rows_are_refused_before_the_first_is_sent(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for columns, code, message in [
            ({"value": ["a", "b"], "partition": [0, 2]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "row 1: topic .* not 2"),
            ({"value": ["a", "b" * 2_000_000]}, ErrorCode.MESSAGE_TOO_LARGE, "row 1: a record of 2000021 bytes"),
            ({"value": ["a", "b"], "timestamp": [1, -7]}, ErrorCode.INVALID_TIMESTAMP, "row 1: the timestamp -7"),
        ]:
            with pytest.raises(KafkaError, match=message) as caught:
                producer.send_arrow(pa.table(columns), topic)
            assert caught.value.code == code
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"value": [1]}, "column value is int64"),
            ({"value": ["a", "b"], "topic": [topic, None]}, "row 1: the topic is null"),
        ]
        for columns, error in wrong:
            with pytest.raises(OttlaError, match=error):
                producer.send_arrow(pa.table(columns), None if "topic" in columns else topic)
        with pytest.raises(OttlaError, match="neither a topic"):
            producer.send_arrow(pa.table({"value": ["a"]}))
        assert producer.send_arrow(pa.table({"value": pa.array([], pa.binary())}), topic).result(PATIENCE_S) == {}
    assert read_table(broker.bootstrap, topic, 2).num_rows == 0
    with pytest.raises(OttlaError, match="closed"):
        producer.send_arrow(pa.table({"value": ["a"]}), topic)


def test_tables_of_one_and_of_200000_rows_work(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    many = pa.table({"value": pa.array([b"%06d" % i for i in range(200_000)])})
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=500_000) as producer:
        producer.send_arrow(many.slice(0, 1), topic)
        producer.send_arrow(many.slice(1).to_batches()[0], topic).result(PATIENCE_S)
    assert values(read_table(broker.bootstrap, topic)) == values(many)


def test_the_async_api_works_the_same(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2)

    async def story() -> list[Any]:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap, buffer_memory=50_000) as producer:
            delivery = await producer.send_arrow(pa.table({"value": [b"%05d" % i for i in range(5_000)]}), topic)
            stored = await delivery
            assert sum(part.rows for part in stored.values()) == 5_000
            assert delivery.done()
            assert await delivery == stored
        found: list[Any] = []
        async with AsyncConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            await consumer.assign([(topic, 0), (topic, 1)])
            async for batch in consumer.iter_arrow(until_end=True, max_records=2_000):
                assert batch.num_rows <= 2_000
                found += values(batch)
        return found

    assert sorted(asyncio.run(asyncio.wait_for(story(), PATIENCE_S))) == [b"%05d" % i for i in range(5_000)]


def test_iter_arrow_until_end_does_not_stop_early_with_a_slow_broker(
    broker: Any, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty poll is not the end."""
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_arrow(pa.table({"value": ["a", "b"]}), topic).result(PATIENCE_S)
    poll_arrow, silent = Consumer.poll_arrow, 3

    def slow(self: Consumer, *arguments: Any, **options: Any) -> pa.RecordBatch:
        nonlocal silent
        if silent:
            silent -= 1
            return pa.RecordBatch.from_pylist([], SCHEMA)
        return poll_arrow(self, *arguments, **options)

    monkeypatch.setattr(Consumer, "poll_arrow", slow)
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        batches = list(consumer.iter_arrow(until_end=True))
    assert sorted(value for batch in batches for value in values(batch)) == [b"a", b"b"]


def test_an_empty_topic_gives_an_empty_table_at_once(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)

    async def story() -> list[pa.RecordBatch]:
        async with AsyncConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            await consumer.assign([(topic, 0)])
            return [batch async for batch in consumer.iter_arrow(until_end=True)]

    assert pa.Table.from_batches(asyncio.run(asyncio.wait_for(story(), PATIENCE_S)), schema=SCHEMA).num_rows == 0
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert pa.Table.from_batches(consumer.iter_arrow(until_end=True), schema=SCHEMA).num_rows == 0
        assert list(consumer.iter_arrow(timeout_ms=50)) == []
        with pytest.raises(OttlaError, match="cannot be combined"):
            next(consumer.iter_arrow(timeout_ms=50, until_end=True))


def test_the_client_works_without_pyarrow_except_for_columns() -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import ottla
consumer, producer = ottla.Consumer(bootstrap_servers="127.0.0.1:1"), ottla.Producer(bootstrap_servers="127.0.0.1:1")
for call in (lambda: consumer.poll_arrow(), lambda: producer.send_arrow(0, "t"), lambda: next(consumer.iter_arrow())):
    try:
        call()
    except ottla.OttlaError as error:
        print(error.message, "|", error.hint)
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert found.stdout.splitlines() == ["Arrow columns need pyarrow | Run pip install 'ottla[arrow]'."] * 3


def test_importing_the_client_does_not_import_pyarrow() -> None:
    uses = "import sys, ottla; ottla.Consumer; ottla.Producer; import ottla.client.consumer.arrow"
    program = f"{uses}; print('pyarrow' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert found.stdout.strip() == "False"
