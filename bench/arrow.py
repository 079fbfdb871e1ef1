"""Records per second to and from a pyarrow table: Ottla and confluent-kafka on one Ottla broker.

Each contender works as its users would: Ottla polls and sends columns; confluent-kafka consumes lists of messages
and builds arrays from them, and produces a table's rows one by one (`produce`) or as a list (`produce_batch`). Both
have the same `batch.size`, `linger.ms` and acks=all, and defaults otherwise. `client CPU` is the CPU time of the
measuring process in all its threads. `plain sockets` moves the same bytes without decoding them (`sockets.py`): an
upper bound for every client. `python -m bench.arrow` runs only this suite.
"""

import functools
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench import sockets
from bench.brokers import Contender, ottla
from bench.one_suite import run_one_suite
from bench.results import Results

SUITE = "arrow"
PARTITIONS = 4
BATCH_SIZE = 1_000_000
TIMEOUT_S = 120
CONTENDERS = ("ottla", "confluent", "confluent batch", "plain sockets")


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    sizes = (100, 1000)
    step(total=(rounds + 1) * len(sizes) * len(CONTENDERS))
    with ottla() as broker:
        for round_number in range(rounds + 1):
            for size in sizes:
                count = {100: 1_000_000, 1000: 200_000}[size] // (5 if quick else 1)
                if round_number == 0:
                    count //= 4
                table = sample(count, size)
                turn = round_number % len(CONTENDERS)
                for name in CONTENDERS[turn:] + CONTENDERS[:turn]:
                    step(f"{name}: {size} B")
                    measure(broker, name, table, size, results if round_number else None)
    for size in sizes:
        for work, nanoseconds in kernels(size).items():
            results.add(SUITE, f"{work}, {size} B", "ns/record", "ottla", nanoseconds)


def sample(count: int, size: int) -> pa.Table:
    source = random.Random(size)
    values = [source.randbytes(size) for _ in range(1000)]
    return pa.table(
        {
            "key": pa.array([b"key-%06d" % i for i in range(count)], pa.binary()),
            "value": pa.array([values[i % 1000] for i in range(count)], pa.binary()),
        }
    )


def measure(broker: Contender, name: str, table: pa.Table, size: int, results: Results | None) -> None:
    topic = f"arrow-{size}-{time.monotonic_ns()}"
    broker.create_topic(topic, PARTITIONS)
    produce, consume = WAYS[name]
    rows: Any = table
    if name == "plain sockets":
        rows = sockets.produce_frames(topic, table, PARTITIONS, BATCH_SIZE)
    cases: list[tuple[str, Callable[[], None]]] = [("from a table", lambda: produce(broker.bootstrap, topic, rows))]
    if consume is not None:
        cases.append(("into a table", lambda: consume(broker.bootstrap, topic, table.num_rows)))
    for work, function in cases:
        started, cpu = time.perf_counter(), time.process_time()
        function()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        if results is not None:
            count = table.num_rows
            results.add(SUITE, f"{work}, {size} B", "records/s", name, count / seconds, more_is_better=True)
            results.add(SUITE, f"client CPU, {work}, {size} B", "µs/record", name, cpu / count * 1e6)
    broker.delete_topic(topic)


# Ottla


def ottla_produce(bootstrap: str, topic: str, table: pa.Table) -> None:
    from ottla import Producer

    with Producer(bootstrap_servers=bootstrap, batch_size=BATCH_SIZE, linger_ms=5) as producer:
        producer.send_arrow(table, topic).result(TIMEOUT_S)


def ottla_consume(bootstrap: str, topic: str, count: int) -> None:
    from ottla import Consumer

    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        batches: list[pa.RecordBatch] = []
        rows = 0
        deadline = time.monotonic() + TIMEOUT_S
        while rows < count and time.monotonic() < deadline:
            batch = consumer.poll_arrow(1000)
            batches.append(batch)
            rows += batch.num_rows
        table = pa.Table.from_batches(batches)
        assert table.num_rows == count


# confluent-kafka


def confluent_producer(bootstrap: str) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": BATCH_SIZE,
            "partitioner": "murmur2_random",  # the partitioner of the Java client and of Ottla
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "log_level": 0,
        }
    )


def confluent_produce(bootstrap: str, topic: str, table: pa.Table) -> None:
    producer = confluent_producer(bootstrap)
    produce = producer.produce
    for batch in table.to_batches(max_chunksize=100_000):
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
            produce(topic, value, key)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def confluent_produce_batch(bootstrap: str, topic: str, table: pa.Table) -> None:
    producer = confluent_producer(bootstrap)
    for batch in table.to_batches(max_chunksize=10_000):
        rows = batch.to_pylist()
        assert producer.produce_batch(topic, rows) == len(rows)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def confluent_consume(bootstrap: str, topic: str, count: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-arrow",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    batches: list[pa.RecordBatch] = []
    rows = 0
    deadline = time.monotonic() + TIMEOUT_S
    while rows < count and time.monotonic() < deadline:
        messages = consumer.consume(10_000, 1.0)
        batches.append(
            pa.RecordBatch.from_pydict(
                {
                    "key": pa.array([message.key() for message in messages], pa.binary()),
                    "value": pa.array([message.value() for message in messages], pa.binary()),
                    "topic": pa.array([message.topic() for message in messages], pa.string()),
                    "partition": pa.array([message.partition() for message in messages], pa.int32()),
                    "offset": pa.array([message.offset() for message in messages], pa.int64()),
                    "timestamp": pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", "UTC")),
                }
            )
        )
        rows += len(messages)
    consumer.close()
    table = pa.Table.from_batches(batches)
    assert table.num_rows == count


WAYS: dict[str, Any] = {
    "ottla": (ottla_produce, ottla_consume),
    "confluent": (confluent_produce, confluent_consume),
    "confluent batch": (confluent_produce_batch, None),
    "plain sockets": (sockets.produce, functools.partial(sockets.consume, partitions=PARTITIONS)),
}


# The kernels alone


def kernels(size: int, repeat: int = 7) -> dict[str, float]:
    """Best CPU time per record for one megabyte in memory: batches to columns and columns to batches."""
    from ottla.protocol.arrow.arrow_rows import open_rows, seal
    from ottla.protocol.records.record_batch import HEADER_SIZE
    from ottla.types import TopicPartition
    from tests.support.wire.columns import columns_from

    count = 1_000_000 // size
    rows = sample(count, size).to_batches()[0]

    def encode() -> bytes:
        opened = open_rows(rows, 0, 1_700_000_000_000)
        opened.measure(1 << 20)
        batch, records, base, highest = opened.encode(None, 0, count, 1 << 30, HEADER_SIZE)
        seal(batch, codec=0, count=records, base_timestamp=base, max_timestamp=highest)
        return batch  # type: ignore[no-any-return]

    batch = encode()
    partition = TopicPartition("bench", 0)
    return {
        "kernel, batch to columns": best_ns(lambda: columns_from(partition, batch), repeat) / count,
        "kernel, columns to batch": best_ns(encode, repeat) / count,
    }


def best_ns(function: Callable[[], Any], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat * 10):
        started = time.process_time_ns()
        function()
        best = min(best, time.process_time_ns() - started)
    return best


if __name__ == "__main__":
    run_one_suite(SUITE, __doc__, run)
