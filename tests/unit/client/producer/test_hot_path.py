"""The hot path of send(), in pure Python and compiled: both accept and refuse the same records."""

import asyncio
import itertools
import random
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from ottla.client.producer import hot_path, speedups
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol.records._speedups import find_compiled
from ottla.types import TopicPartition

COMPILED = find_compiled("ottla.client.producer._hot_path", speedups.INTERFACE)
TOPIC = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2))


@pytest.fixture(params=["python", "compiled"])
def build(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return hot_path
    if COMPILED is None:
        pytest.skip("not compiled here")
    return COMPILED


def opened(build: ModuleType, *, batch_size: int = 1000, buffer_memory: int = 10_000, clock: Any = lambda: 77) -> Any:
    """An appender with three queues and an open batch in each; records without a key go to partition 1."""
    appender = build.RecordAppender(batch_size, buffer_memory, clock, None)
    queues = []
    for partition in TOPIC:
        queue = build.PartitionQueue(partition)
        queue.open_batch = build.AppendableBatch(build.BatchOutcome(partition))
        queues.append(queue)
    appender.known_partitions = {"t": TOPIC}
    appender.topics["t"] = topic = build.TopicQueues(TOPIC, queues)
    topic.sticky = build.StickyPartition(1, 10_000)
    return appender


def rows(appender: Any, partition: int) -> list[Any]:
    found: list[Any] = appender.topics["t"].queues[partition].open_batch.records
    return found


def test_the_interface_number_of_source_and_loader_match() -> None:
    assert hot_path.INTERFACE == speedups.INTERFACE


def test_a_record_goes_to_its_partition_or_by_key_or_to_the_sticky_partition(build: ModuleType) -> None:
    appender = opened(build)
    assert appender.try_append("t", b"told", b"key", 2) is not None
    assert appender.try_append("t", b"keyed", b"21", None) is not None
    assert appender.try_append("t", b"plain", None, None) is not None
    expected = (build.murmur2(b"21") & 0x7FFFFFFF) % 3
    assert rows(appender, 2)[0] == (77, b"key", b"told", ())
    assert rows(appender, expected)[-1] == (77, b"21", b"keyed", ())
    assert (77, None, b"plain", ()) in rows(appender, 1)


def test_a_nanosecond_clock_gives_timestamps_in_milliseconds(build: ModuleType) -> None:
    appender = build.RecordAppender(1000, 10_000, lambda: 1 / 0, lambda: 1_700_000_000_123_999_999)
    appender.known_partitions, appender.topics["t"] = {"t": TOPIC}, opened(build).topics["t"]
    assert appender.try_append("t", b"v", None, 0) is not None
    assert rows(appender, 0) == [(1_700_000_000_123, None, b"v", ())]


@pytest.mark.parametrize(
    ("value", "key", "partition"),
    [
        ("text", None, None),
        (None, None, None),
        (bytearray(b"x"), None, None),
        (bytes(1000), None, None),
        (b"v", "text", None),
        (b"v", None, 3),
        (b"v", None, -1),
        (b"v", None, True),
        (b"v", None, "0"),
    ],
)
def test_unusual_records_take_the_slow_path_without_side_effects(
    build: ModuleType, value: Any, key: Any, partition: Any
) -> None:
    appender = opened(build)
    assert appender.try_append("t", value, key, partition) is None
    for topic in ("unknown", None, b"t", ["t"]):
        assert appender.try_append(topic, b"v", None, None) is None
    assert appender.buffered_bytes == 0
    assert appender.topics["t"].sticky.bytes_left == 10_000
    assert [rows(appender, i) for i in range(3)] == [[], [], []]


def test_nothing_is_appended_after_a_refusal_or_a_metadata_change(build: ModuleType) -> None:
    appender = opened(build)
    appender.refuse(KafkaError(ErrorCode.PRODUCER_FENCED, "another took over"))
    assert appender.try_append("t", b"v", None, None) is None
    appender.refuse(None)
    assert appender.try_append("t", b"v", None, None) is not None
    appender.known_partitions["t"] = (*TOPIC, TopicPartition("t", 3))
    assert appender.try_append("t", b"v", None, None) is None


def test_batch_size_and_buffer_memory_are_limits(build: ModuleType) -> None:
    appender = opened(build, batch_size=1000, buffer_memory=1500)
    record = bytes(300 - 21)
    taken = [appender.try_append("t", record, None, p) is not None for p in (0, 0, 0, 0, 1, 1, 2)]
    # The fourth would fill its batch, the sixth of those that fit exceeds the buffer.
    assert taken == [True, True, True, False, True, True, False]
    assert appender.buffered_bytes == 1500
    appender.release(300)
    assert appender.try_append("t", record, None, 2) is not None
    batch = appender.topics["t"].queues[2].open_batch
    appender.close_batch(appender.topics["t"].queues[2], batch)
    appender.release(600)
    assert appender.try_append("t", b"", None, 2) is None
    assert len(batch.records) == 1


def test_blocking_on_the_loop_that_sends_the_batch_raises(build: ModuleType) -> None:
    outcome = build.BatchOutcome(TOPIC[0])
    delivery = build.Delivery(outcome, 1, 77)

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            delivery.result(0)  # sent by another loop, so waiting is allowed
        outcome.loop = asyncio.get_running_loop()
        for part in (delivery, build.Delivery(outcome.split(1)[1], 0, 77)):
            with pytest.raises(OttlaError, match="would deadlock"):
                part.result(0)

    asyncio.run(wait())
    for part in (outcome.find(0)[0], outcome.find(1)[0]):
        part.succeed(5)
    assert delivery.result().offset == 5


def test_a_callback_that_raises_does_not_stop_the_next_one(build: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    outcome = build.BatchOutcome(TOPIC[0])
    promises = [build.Delivery(outcome, i, 5) for i in range(3)]
    heard: list[int] = []
    promises[0].add_done_callback(lambda promise: heard.append(promise.result().offset))
    promises[1].add_done_callback(lambda promise: 1 / 0)
    promises[2].add_done_callback(lambda promise: heard.append(promise.result().offset))
    outcome.succeed(40)
    assert heard == [40, 42]
    assert "delivery callback for a record to t-0 failed" in caplog.text


def test_records_of_many_threads_are_appended_once_and_in_thread_order(build: ModuleType) -> None:
    appender = opened(build, batch_size=2**40, buffer_memory=2**40)
    appender.topics["t"].sticky.bytes_left = 2**40
    threads, each = 4, 3000
    deliveries: list[list[Any]] = [[] for _ in range(threads)]
    start = threading.Barrier(threads)

    def send(number: int) -> None:
        rng = random.Random(number)
        start.wait()
        for i in range(each):
            value = b"%d %d" % (number, i)
            if rng.random() < 0.5:
                delivery = appender.try_append("t", value, None, None)
            else:
                appender.reserve(len(value) + 21)
                delivery = appender.append_to(
                    appender.topics["t"].queues[1].open_batch, (0, None, value, ()), len(value) + 21
                )
            deliveries[number].append(delivery)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    values = [row[2] for row in rows(appender, 1)]
    batch = appender.topics["t"].queues[1].open_batch
    assert len(values) == len(set(values)) == threads * each
    assert appender.buffered_bytes == batch.size_bytes - 61 == sum(len(value) + 21 for value in values)
    batch.outcome.succeed(0)
    for number in range(threads):
        offsets = [delivery.result().offset for delivery in deliveries[number]]
        assert [values[offset] for offset in offsets] == [b"%d %d" % (number, i) for i in range(each)]
        assert all(before < after for before, after in itertools.pairwise(offsets))
