"""The result of poll(), and the consumed offsets during an iteration."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import sys
import threading

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.model import ConsumerRecord, Records
from ottla.types import TopicPartition


def test_polled_records_can_be_iterated_repeatedly_partition_by_partition() -> None:
    records = Records(
        {
            TopicPartition("a", 1): [ConsumerRecord("a", 1, 1, 0, None, b"x", ())],
            TopicPartition("b", 0): [ConsumerRecord("b", 0, 7, 0, None, b"y", ())],
        }
    )
    for _ in range(2):
        assert [(r.topic, r.partition, r.offset, r.value) for r in records] == [("a", 1, 1, b"x"), ("b", 0, 7, b"y")]
    assert len(records) == 2
    assert records


def test_the_consumed_offsets_can_be_read_while_another_thread_iterates() -> None:
    """A commit runs on the loop's thread, the iteration on the user's."""
    consumer = AsyncConsumer(bootstrap_servers="127.0.0.1:9")
    consumer._reader.buffer.extend(ConsumerRecord("t", 0, i, 0, None, b"v", ()) for i in range(20_000))
    failures: list[BaseException] = []

    def tell() -> None:
        try:
            while consumer._reader.buffer:
                consumer._reader.consumed()
        except RuntimeError as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        telling = threading.Thread(target=tell)
        telling.start()
        while consumer._reader.buffer:
            consumer._reader.buffer.ready.popleft()
        telling.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not failures
