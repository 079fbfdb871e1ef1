"""Transactions per second with confluent-kafka and with raw requests, and the rate of read_committed consumers.

The cost of a transaction is compared with a flush of a plain idempotent producer.
"""

import time
from typing import Any

from bench.brokers import Contender
from bench.results import Results

SUITE = "transactions"
CASES = [(records, partitions) for partitions in (1, 10) for records in (1, 10, 100)]
VALUE = b"x" * 100


def run(contenders: list[Contender], results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    # The mock cluster writes no markers, so its numbers would not be comparable.
    contenders = [contender for contender in contenders if contender.name != "mock"]
    step(total=(rounds + 1) * (len(CASES) + 2) * len(contenders))
    seconds = 1.0 if quick else 3.0
    for round_number in range(rounds + 1):
        turn = round_number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            figures = measure(contender, seconds if round_number else 1.0, quick, step)
            if round_number:
                for (label, unit, more), value in figures.items():
                    results.add(SUITE, label, unit, contender.name, value, more_is_better=more)


def measure(contender: Contender, seconds: float, quick: bool, step: Any) -> dict[tuple[str, str, bool], float]:
    found: dict[tuple[str, str, bool], float] = {}
    for records, partitions in CASES:
        step(f"{contender.name}: {records} records, {partitions} partitions")
        topic = f"txn-{records}-{partitions}-{time.monotonic_ns()}"
        contender.create_topic(topic, partitions)
        case = f"{records} rec, {partitions} part"
        cpu = contender.cpu_seconds()
        count, took = produce(contender.bootstrap, topic, records, partitions, seconds, transactional=True)
        used = contender.cpu_seconds() - cpu
        plain, plain_took = produce(contender.bootstrap, topic, records, partitions, seconds, transactional=False)
        found[f"commit, {case}", "txn/s", True] = count / took
        found[f"broker CPU, {case}", "µs/txn", False] = used / count * 1e6
        found[f"idempotent flush, {case}", "flush/s", True] = plain / plain_took
        found[f"commit relative to flush, {case}", "times as long", False] = (took / count) / (plain_took / plain)
        contender.delete_topic(topic)
    step(f"{contender.name}: raw requests")
    found["commit with raw requests, 1 rec, 1 part", "txn/s", True] = bare_requests(contender, seconds)
    step(f"{contender.name}: reading")
    topic = f"txn-read-{time.monotonic_ns()}"
    contender.create_topic(topic, 1)
    fill(contender.bootstrap, topic, 500 if quick else 3_000)
    for isolation in ("read_committed", "read_uncommitted"):
        consumed, took = consume(contender.bootstrap, topic, isolation)
        found[f"consume {isolation}", "records/s", True] = consumed / took
    contender.delete_topic(topic)
    return found


def produce(
    bootstrap: str, topic: str, records: int, partitions: int, seconds: float, *, transactional: bool
) -> tuple[int, float]:
    """Commits (or flushes) sequentially for a while: (count, seconds)."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 0,
        "log_level": 0,
    }
    if transactional:
        settings["transactional.id"] = topic
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(30)
    count = 0
    started = time.perf_counter()
    while (took := time.perf_counter() - started) < seconds or count < 3:
        if transactional:
            producer.begin_transaction()
        for number in range(records):
            producer.produce(topic, VALUE, partition=number % partitions)
        if transactional:
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0
        count += 1
    return count, took


def bare_requests(contender: Contender, seconds: float) -> float:
    """Transactions per second of one producer that waits for every response: Produce v12, EndTxn v5 (KIP-890)."""
    from tests.support.wire.raw import RawConnection
    from tests.support.wire.raw_transactions import RawTransactions

    topic = f"txn-bare-{time.monotonic_ns()}"
    contender.create_topic(topic, 1)
    with RawConnection(contender.bootstrap) as connection:
        transactions = RawTransactions(connection, topic)
        transactions.start()
        count, started = 0, time.perf_counter()
        while (took := time.perf_counter() - started) < seconds:
            offset = transactions.produce(topic, VALUE, version=12)
            assert isinstance(offset, int), offset
            assert isinstance(transactions.end(True, 5), tuple)
            count += 1
    contender.delete_topic(topic)
    return count / took


def fill(bootstrap: str, topic: str, transactions: int) -> None:
    """Produces transactions of a hundred records; every tenth is aborted."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0, "log_level": 0})
    producer.init_transactions(30)
    for number in range(transactions):
        producer.begin_transaction()
        for _ in range(100):
            producer.produce(topic, VALUE, partition=0)
        if number % 10 == 9:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def consume(bootstrap: str, topic: str, isolation: str) -> tuple[int, float]:
    """Consumes the topic once: (records, seconds since the first records)."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    received, started = 0, 0.0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        messages = consumer.consume(10_000, 0.5)
        if messages and not started:
            started = time.perf_counter()
        errors = [error for message in messages if (error := message.error()) is not None]
        received += len(messages) - len(errors)
        if any(error.code() == KafkaError._PARTITION_EOF for error in errors):
            break
    took = time.perf_counter() - started
    consumer.close()
    assert received, "no records arrived"
    return received, took
