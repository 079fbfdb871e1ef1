"""Memory stays flat: records leave nothing behind in the clients."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla import Admin, Consumer, Producer

if TYPE_CHECKING:
    from ottla.broker.embedded.broker import EmbeddedBroker

RECORDS = 4000
ROUNDS, ROUNDS_MAX = 8, 60
GROWTH_BYTES_MAX = 4096
"""Allowed growth per round: one byte per record. One leaked Delivery per record would be hundreds of kilobytes."""
GROWTH_OBJECTS_MAX = 20
"""Allowed growth per round: less than one object per batch."""


def check_flat(work: Callable[[], None]) -> int:
    """Fails if every round of work leaves something behind; returns the number of rounds.

    A buffer that is kept for the next time grows once or twice, and how often depends on what answers come at once.
    With a leak, no eight rounds pass without growth.
    """
    samples: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        for rounds in range(1, ROUNDS_MAX + 1):
            work()
            samples.append(in_use())
            if rounds <= ROUNDS:
                continue
            before, now = samples[-1 - ROUNDS], samples[-1]
            size_bytes, objects = (now[0] - before[0]) / ROUNDS, (now[1] - before[1]) / ROUNDS
            if size_bytes < GROWTH_BYTES_MAX and objects < GROWTH_OBJECTS_MAX:
                return rounds
    finally:
        tracemalloc.stop()
    raise AssertionError(f"a round leaves {size_bytes:.0f} bytes and {objects:.1f} objects behind")


def in_use() -> tuple[int, int]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects())


def test_memory_stays_flat_while_producing_and_consuming(broker: "EmbeddedBroker", topic: str) -> None:
    """A long loop without waiting for deliveries."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    stored = 0

    def on_delivery(_: Any) -> None:
        nonlocal stored
        stored += 1

    values = [b"%d" % i * 30 for i in range(100)]
    with (
        Producer(bootstrap_servers=broker.bootstrap, batch_size=4096) as producer,
        Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([(topic, 0), (topic, 1)])

        def work() -> None:
            for number in range(RECORDS):
                value = values[number % 100]
                if number % 4 == 0:
                    producer.send(topic, value, key=value)
                elif number % 4 == 1:
                    producer.send(topic, value).add_done_callback(on_delivery)
                elif number % 4 == 2:
                    producer.send(topic, value, headers={"h": b"x"})
                else:
                    producer.send(topic, value, partition=number % 2)
            producer.flush()
            received = 0
            while received < RECORDS:
                records = consumer.poll(300_000)
                assert records, f"{received} of {RECORDS} records came"
                received += sum(1 for record in records if record.value)

        rounds = check_flat(work)
    assert stored == RECORDS // 4 * rounds


def test_memory_stays_flat_with_failed_batches_and_missing_topics(broker: "EmbeddedBroker", topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, configs={"max.message.bytes": "2000"})
    refused = 0

    def on_delivery(delivery: Any) -> None:
        nonlocal refused
        refused += delivery.exception() is not None

    with Producer(bootstrap_servers=broker.bootstrap) as producer:

        def work() -> None:
            # Batches too large are split until they fit; the one record that never does is refused.
            for number in range(40):
                size = 3000 if number == 20 else 300
                producer.send(topic, bytes(size)).add_done_callback(on_delivery)
            producer.flush()

        rounds = check_flat(work)
    assert refused == rounds
