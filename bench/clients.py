"""Records per second as Python objects: Ottla's clients, confluent-kafka, aiokafka and kafka-python.

All use one Ottla broker, each in its own process, with typical user code: a loop over `send`, then `flush`; a loop
over `poll` that touches every value. All producers are idempotent with acks=all and `linger.ms=5`, and use defaults
otherwise. The measurement starts after the first record, when everything is imported and connected. `client CPU` is
the CPU time of the client's process in all its threads: unlike the rate it hardly depends on other processes.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from bench.brokers import Contender, ottla
from bench.results import Results

SUITE = "clients"
PARTITIONS = 4
LINGER_MS = 5
TIMEOUT_S = 300
CONTENDERS = ("ottla", "ottla async", "confluent", "aiokafka", "kafka-python")
# Slower clients send fewer records: a second or two is enough for a rate.
SLOW = ("aiokafka", "kafka-python")
COUNTS = {100: 500_000, 1000: 150_000}
CASES = (("produce", 100), ("produce keyed", 100), ("produce with callbacks", 100), ("produce", 1000))


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    results.titles.update(titles())
    step(total=(rounds + 1) * len(CONTENDERS) * (len(CASES) + len(COUNTS)))
    with ottla() as broker:
        filled = {size: fill(broker, size, count // (5 if quick else 1)) for size, count in COUNTS.items()}
        for round_number in range(rounds + 1):
            turn = round_number % len(CONTENDERS)
            for work, size in (*CASES, *(("consume", size) for size in COUNTS)):
                for name in CONTENDERS[turn:] + CONTENDERS[:turn]:
                    step(f"{name}: {work}, {size} B")
                    count = COUNTS[size] // (5 if quick else 1)
                    if work == "consume":
                        topic = filled[size]
                    else:
                        count //= (5 if name in SLOW else 1) * (4 if round_number == 0 else 1)
                        topic = f"clients-{time.monotonic_ns()}"
                        broker.create_topic(topic, PARTITIONS)
                    seconds, cpu = measure(name, work, broker.bootstrap, topic, size, count)
                    if work != "consume":
                        broker.delete_topic(topic)
                    if round_number:
                        results.add(SUITE, f"{work}, {size} B", "records/s", name, count / seconds, more_is_better=True)
                        results.add(SUITE, f"client CPU, {work}, {size} B", "µs/record", name, cpu / count * 1e6)


def titles() -> dict[str, str]:
    from importlib.metadata import version

    names = {"confluent": "confluent-kafka", "aiokafka": "aiokafka", "kafka-python": "kafka-python"}
    found = {"ottla async": "Ottla-async"} | {name: f"{package} {version(package)}" for name, package in names.items()}
    if find_spec("crc32c") is None:
        # Without the package it computes checksums in Python, which dominate the result.
        found["kafka-python"] += " (no crc32c)"
    return found


def fill(broker: Contender, size: int, count: int) -> str:
    """Creates a topic with `count` records of `size` bytes, read by all contenders."""
    topic = f"clients-filled-{size}"
    broker.create_topic(topic, PARTITIONS)
    measure("ottla", "produce", broker.bootstrap, topic, size, count)
    return topic


def measure(name: str, work: str, bootstrap: str, topic: str, size: int, count: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU time, of a client in its own process."""
    command = [sys.executable, "-m", "bench.clients", name, work, bootstrap, topic, str(size), str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ended.returncode:
        raise RuntimeError(f"{name} failed to {work}: {ended.stderr.strip()[-1000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return found["seconds"], found["cpu"]


# In the client's process


class Stopwatch:
    """Measures from `start` to `stop`."""

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.seconds, self.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu


def pairs(work: str, size: int, count: int) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, value) of each record, generated before the measurement."""
    values = [os.urandom(size) for _ in range(1000)]
    keys = [b"customer-%d" % i if work == "produce keyed" else None for i in range(1000)]
    rows = list(zip(keys, values, strict=True))
    return itertools.chain.from_iterable(itertools.repeat(rows, count // 1000))


class Callbacks:
    """Counts delivery callbacks."""

    def __init__(self) -> None:
        self.stored = 0
        self.failures: list[Any] = []

    def check(self, expected: int) -> None:
        assert not self.failures, self.failures[0]
        assert self.stored == expected, f"{self.stored} of {expected} records"


def ottla_produce(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from ottla import Producer

    heard = Callbacks()

    def on_delivery(delivery: Any) -> None:
        if delivery.exception() is None:
            heard.stored += 1
        else:
            heard.failures.append(delivery.exception())

    with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS) as producer:
        producer.send_and_wait(topic, b"first")
        rows = pairs(work, size, count)
        watch.start()
        if work == "produce with callbacks":
            for _, value in rows:
                producer.send(topic, value).add_done_callback(on_delivery)
        elif work == "produce keyed":
            for key, value in rows:
                producer.send(topic, value, key=key)
        else:
            for _, value in rows:
                producer.send(topic, value)
        producer.flush()
        watch.stop()
    if work == "produce with callbacks":
        heard.check(count)


def confluent_produce(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS, "enable.idempotence": True, "log_level": 0}
    producer = Producer(settings)
    heard = Callbacks()

    def on_delivery(error: Any, _: Any) -> None:
        if error is None:
            heard.stored += 1
        else:
            heard.failures.append(error)

    def send(value: bytes, key: bytes | None, **more: Any) -> None:
        while True:  # the queue is full: poll and retry, as its documentation says
            producer.poll(0.01)
            try:
                producer.produce(topic, value, key, **more)
                return
            except BufferError:
                pass

    producer.produce(topic, b"first")
    producer.flush()
    rows = pairs(work, size, count)
    watch.start()
    if work == "produce with callbacks":
        for _, value in rows:
            try:
                producer.produce(topic, value, on_delivery=on_delivery)
            except BufferError:
                send(value, None, on_delivery=on_delivery)
            producer.poll(0)
    elif work == "produce keyed":
        for key, value in rows:
            try:
                producer.produce(topic, value, key)
            except BufferError:
                send(value, key)
    else:
        for _, value in rows:
            try:
                producer.produce(topic, value)
            except BufferError:
                send(value, None)
    assert producer.flush(TIMEOUT_S) == 0
    watch.stop()
    if work == "produce with callbacks":
        heard.check(count)


def kafka_python_produce(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, acks="all", enable_idempotence=True)
    heard = Callbacks()

    def on_stored(_: Any) -> None:
        heard.stored += 1

    producer.send(topic, b"first").get(30)
    rows = pairs(work, size, count)
    watch.start()
    for key, value in rows:
        future = producer.send(topic, value, key=key)
        if work == "produce with callbacks":
            future.add_callback(on_stored).add_errback(heard.failures.append)
    producer.flush(TIMEOUT_S)
    watch.stop()
    producer.close()
    if work == "produce with callbacks":
        heard.check(count)


async def ottla_async_produce(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from ottla import AsyncProducer

    heard = Callbacks()

    def on_delivery(delivery: Any) -> None:
        if delivery.exception() is None:
            heard.stored += 1
        else:
            heard.failures.append(delivery.exception())

    async with AsyncProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS) as producer:
        await producer.send_and_wait(topic, b"first")
        rows = pairs(work, size, count)
        watch.start()
        for key, value in rows:
            delivery = await producer.send(topic, value, key=key)
            if work == "produce with callbacks":
                delivery.add_done_callback(on_delivery)
        await producer.flush()
        watch.stop()
    if work == "produce with callbacks":
        heard.check(count)


async def aiokafka_produce(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from aiokafka import AIOKafkaProducer

    heard = Callbacks()

    def on_done(future: Any) -> None:
        if future.exception() is None:
            heard.stored += 1
        else:
            heard.failures.append(future.exception())

    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, enable_idempotence=True)
    await producer.start()
    await producer.send_and_wait(topic, b"first")
    rows = pairs(work, size, count)
    watch.start()
    for key, value in rows:
        future = await producer.send(topic, value, key=key)
        if work == "produce with callbacks":
            future.add_done_callback(on_done)
    await producer.flush()
    watch.stop()
    await producer.stop()
    if work == "produce with callbacks":
        heard.check(count)


def ottla_consume(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from ottla import Consumer

    received = total = 0
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        while received < count:
            records = consumer.poll(1000)
            if not received:
                watch.start()
            for record in records:
                total += len(record.value)  # type: ignore[arg-type] # never null here
            received += len(records)
        watch.stop()
    assert total >= (count - 1) * size  # the first record is shorter


async def ottla_async_consume(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from ottla import AsyncConsumer

    received = total = 0
    async with AsyncConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        await consumer.assign([(topic, partition) for partition in range(PARTITIONS)])
        while received < count:
            records = await consumer.poll(1000)
            if not received:
                watch.start()
            for record in records:
                total += len(record.value)  # type: ignore[arg-type] # never null here
            received += len(records)
        watch.stop()
    assert total >= (count - 1) * size  # the first record is shorter


def confluent_consume(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    # By default librdkafka backs off for a second whenever 100,000 small records are queued.
    settings = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 10, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    received = total = 0
    while received < count:
        messages = consumer.consume(500, 1.0)
        if not received:
            watch.start()
        for message in messages:
            total += len(message.value())  # type: ignore[arg-type] # never null here
        received += len(messages)
    watch.stop()
    consumer.close()
    assert total >= (count - 1) * size  # the first record is shorter


def kafka_python_consume(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    received = total = 0
    while received < count:
        batches = consumer.poll(1000)
        if not received:
            watch.start()
        for records in batches.values():
            for record in records:
                total += len(record.value)
            received += len(records)
    watch.stop()
    consumer.close()
    assert total >= (count - 1) * size  # the first record is shorter


async def aiokafka_consume(work: str, bootstrap: str, topic: str, size: int, count: int, watch: Stopwatch) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    received = total = 0
    while received < count:
        batches = await consumer.getmany(timeout_ms=1000, max_records=500)
        if not received:
            watch.start()
        for records in batches.values():
            for record in records:
                total += len(record.value)  # type: ignore[arg-type] # never null here
            received += len(records)
    watch.stop()
    await consumer.stop()
    assert total >= (count - 1) * size  # the first record is shorter


PRODUCE: dict[str, Callable[..., Any]] = {
    "ottla": ottla_produce,
    "ottla async": ottla_async_produce,
    "confluent": confluent_produce,
    "aiokafka": aiokafka_produce,
    "kafka-python": kafka_python_produce,
}
CONSUME: dict[str, Callable[..., Any]] = {
    "ottla": ottla_consume,
    "ottla async": ottla_async_consume,
    "confluent": confluent_consume,
    "aiokafka": aiokafka_consume,
    "kafka-python": kafka_python_consume,
}


def main(name: str, work: str, bootstrap: str, topic: str, size: str, count: str) -> None:
    """The child process: runs one client on one task and prints the time."""
    watch = Stopwatch()
    function = (CONSUME if work == "consume" else PRODUCE)[name]
    doing = function(work, bootstrap, topic, int(size), int(count), watch)
    if asyncio.iscoroutine(doing):
        run_on_uvloop(doing)
    print(json.dumps({"seconds": watch.seconds, "cpu": watch.cpu}))


def run_on_uvloop(coroutine: Any) -> None:
    """All async clients use the same event loop."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


if __name__ == "__main__":
    main(*sys.argv[1:])
