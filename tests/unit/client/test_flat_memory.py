"""Memory stays flat however many records pass: what a record leaves behind in the clients is nothing at all."""

import gc
import itertools
import statistics
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla import Admin, Consumer, Producer

if TYPE_CHECKING:
    from ottla.broker.embedded import EmbeddedBroker

RECORDS = 4000
WARM_UP, ROUNDS = 3, 8
GROWTH_BYTES_MAX = 4096
"""A round: one byte a record. One forgotten promise a record would be hundreds of kilobytes."""
GROWTH_OBJECTS_MAX = 20
"""A round: less than one a batch."""


def growth_of(work: Callable[[], None]) -> tuple[float, float]:
    """(bytes, objects) that a round of work leaves behind, once it has found its pace.

    The median of the rounds: a buffer that is kept for the next time grows once or twice, a leak in every round.
    """
    tracemalloc.start()
    try:
        for _ in range(WARM_UP):
            work()
        samples = [in_use()]
        for _ in range(ROUNDS):
            work()
            samples.append(in_use())
    finally:
        tracemalloc.stop()
    return (
        statistics.median(after[0] - before[0] for before, after in itertools.pairwise(samples)),
        statistics.median(after[1] - before[1] for before, after in itertools.pairwise(samples)),
    )


def in_use() -> tuple[int, int]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects())


def test_producing_and_consuming_without_end_leaves_nothing_behind(broker: "EmbeddedBroker", topic: str) -> None:
    """MISSION E1 at length: a loop over more records than anyone waits for."""
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
                records = consumer.poll(60_000)
                assert records, f"{received} of {RECORDS} records came"
                received += sum(1 for record in records if record.value)

        size_bytes, objects = growth_of(work)
    assert stored == RECORDS // 4 * (WARM_UP + ROUNDS)
    assert size_bytes < GROWTH_BYTES_MAX
    assert objects < GROWTH_OBJECTS_MAX


def test_batches_that_fail_and_topics_that_are_not_there_leave_nothing_behind(
    broker: "EmbeddedBroker", topic: str
) -> None:
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

        size_bytes, objects = growth_of(work)
    assert refused == WARM_UP + ROUNDS
    assert size_bytes < GROWTH_BYTES_MAX
    assert objects < GROWTH_OBJECTS_MAX
