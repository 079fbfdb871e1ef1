"""Records per second with confluent-kafka, and the broker's CPU time per record."""

import time
from collections.abc import Mapping
from typing import Any

from bench.brokers import PARTITIONS, Contender
from bench.results import Results

SUITE = "throughput"
CHUNK = 1000


def run(contenders: list[Contender], results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    cases = [(size, acks) for size in (100, 1000) for acks in ("1", "all")]
    step(total=(rounds + 1) * len(cases) * len(contenders))
    for round_number in range(rounds + 1):
        for size, acks in cases:
            count = {100: 1_000_000, 1000: 200_000}[size] // (10 if quick else 1)
            if round_number == 0:
                count //= 4
            # The order rotates, so that no contender always finds the page cache in the same state.
            turn = round_number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                step(f"{contender.name}: {size} B, acks={acks}")
                figures = measure(contender, size, acks, count)
                if round_number:
                    note(results, contender.name, size, acks, figures)


def measure(contender: Contender, size: int, acks: str, count: int) -> dict[str, float]:
    topic = f"throughput-{size}-{acks}-{time.monotonic_ns()}"
    contender.create_topic(topic)
    cpu, started = contender.cpu_seconds(), time.perf_counter()
    produce(contender.bootstrap, topic, size, acks, count)
    produced_s, produced_cpu = time.perf_counter() - started, contender.cpu_seconds() - cpu
    cpu = contender.cpu_seconds()
    consumed, consumed_s = consume(contender.bootstrap, topic, count)
    consumed_cpu = contender.cpu_seconds() - cpu
    contender.delete_topic(topic)
    return {
        "produce": count / produced_s,
        "produce cpu": produced_cpu / count * 1e6,
        "consume": consumed / consumed_s,
        "consume cpu": consumed_cpu / consumed * 1e6,
    }


def note(results: Results, name: str, size: int, acks: str, figures: dict[str, float]) -> None:
    case = f"{size} B, acks={acks}"
    for way in ("produce", "consume"):
        # Consuming does not depend on acks: both rounds are samples of the same measure.
        label = f"{way} {case}" if way == "produce" else f"consume {size} B"
        results.add(SUITE, label, "records/s", name, figures[way], more_is_better=True)
        results.add(SUITE, f"broker CPU, {label}", "µs/record", name, figures[f"{way} cpu"])


def produce(
    bootstrap: str, topic: str, size: int, acks: str, count: int, security: Mapping[str, str] | None = None
) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 500_000,
            "log_level": 0,
            **(security or {}),
        }
    )
    failures: list[str] = []

    def on_delivery(error: Any, _: Any) -> None:
        failures.append(str(error))

    # Callbacks for failures only, so that the client's Python code does not dominate the result.
    messages = [{"value": bytes([i % 256]) * size} for i in range(CHUNK)]
    sent = 0
    while sent < count:
        try:
            sent += producer.produce_batch(topic, messages[: count - sent])
        except BufferError:
            producer.poll(0.01)
        while len(producer) > 400_000:
            producer.poll(0.005)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not delivered"
    assert not failures, failures[0]


def consume(bootstrap: str, topic: str, count: int, security: Mapping[str, str] | None = None) -> tuple[int, float]:
    """Consumes a topic from the beginning to its end: (records, seconds since the first record)."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
            **(security or {}),
        }
    )
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    # The mock cluster keeps only the newest megabytes of each partition.
    expected = 0
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(partition, timeout=30)
        partition.offset = low
        expected += high - low
    consumer.assign(partitions)
    received, started = 0, 0.0
    deadline = time.monotonic() + 120
    while received < expected and time.monotonic() < deadline:
        messages = consumer.consume(10_000, 0.5)
        if messages and not started:
            started = time.perf_counter()
        received += len(messages)
    seconds = time.perf_counter() - started
    consumer.close()
    assert received >= expected > 0, f"{received} of {expected} records arrived"
    return received, seconds
