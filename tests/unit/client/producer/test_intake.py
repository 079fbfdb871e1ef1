"""The way of a record into its batch, as plain Python and compiled: both take the same, refuse the same."""

import asyncio
import itertools
import random
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

from ottla.client.producer import hot_path as intake
from ottla.client.producer import speedups as delivery
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol._speedups import find_compiled
from ottla.types import TopicPartition

COMPILED = find_compiled("ottla.client.producer._hot_path", delivery.INTERFACE)
TOPIC = (TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2))


@pytest.fixture(params=["python", "compiled"])
def build(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return intake
    if COMPILED is None:
        pytest.skip("there is no compiled build here")
    return COMPILED


def opened(build: ModuleType, *, batch_size: int = 1000, buffer_memory: int = 10_000, clock: Any = lambda: 77) -> Any:
    """An intake with three lanes and an open batch in each; records without a key go to partition 1."""
    taking = build.RecordAppender(batch_size, buffer_memory, clock, None)
    lanes = []
    for partition in TOPIC:
        lane = build.PartitionQueue(partition)
        lane.open_batch = build.AppendableBatch(build.BatchOutcome(partition))
        lanes.append(lane)
    taking.known_partitions = {"t": TOPIC}
    taking.topics["t"] = topic = build.TopicQueues(TOPIC, lanes)
    topic.sticky = build.StickyPartition(1, 10_000)
    return taking


def rows(taking: Any, partition: int) -> list[Any]:
    found: list[Any] = taking.topics["t"].lanes[partition].open_batch.records
    return found


def test_the_source_has_the_number_that_is_asked_of_a_build() -> None:
    assert intake.INTERFACE == delivery.INTERFACE


def test_a_record_goes_where_it_is_told_or_where_its_key_says_or_to_the_sticky_partition(build: ModuleType) -> None:
    taking = opened(build)
    assert taking.try_append("t", b"told", b"key", 2) is not None
    assert taking.try_append("t", b"keyed", b"21", None) is not None
    assert taking.try_append("t", b"plain", None, None) is not None
    expected = (build.murmur2(b"21") & 0x7FFFFFFF) % 3
    assert rows(taking, 2)[0] == (77, b"key", b"told", ())
    assert rows(taking, expected)[-1] == (77, b"21", b"keyed", ())
    assert (77, None, b"plain", ()) in rows(taking, 1)


def test_the_clock_in_nanoseconds_gives_milliseconds(build: ModuleType) -> None:
    taking = build.RecordAppender(1000, 10_000, lambda: 1 / 0, lambda: 1_700_000_000_123_999_999)
    taking.known_partitions, taking.topics["t"] = {"t": TOPIC}, opened(build).topics["t"]
    assert taking.try_append("t", b"v", None, 0) is not None
    assert rows(taking, 0) == [(1_700_000_000_123, None, b"v", ())]


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
def test_what_is_unusual_goes_the_long_way_and_leaves_no_trace(
    build: ModuleType, value: Any, key: Any, partition: Any
) -> None:
    taking = opened(build)
    assert taking.try_append("t", value, key, partition) is None
    for topic in ("unknown", None, b"t", ["t"]):
        assert taking.try_append(topic, b"v", None, None) is None
    assert taking.buffered_bytes == 0 and taking.topics["t"].sticky.bytes_left == 10_000
    assert [rows(taking, i) for i in range(3)] == [[], [], []]


def test_nothing_is_taken_in_once_it_is_refused_or_the_topic_is_seen_anew(build: ModuleType) -> None:
    taking = opened(build)
    taking.refuse(KafkaError(ErrorCode.PRODUCER_FENCED, "another took over"))
    assert taking.try_append("t", b"v", None, None) is None
    taking.refuse(None)
    assert taking.try_append("t", b"v", None, None) is not None
    taking.known_partitions["t"] = (*TOPIC, TopicPartition("t", 3))
    assert taking.try_append("t", b"v", None, None) is None


def test_a_batch_and_the_buffer_take_no_more_than_they_hold(build: ModuleType) -> None:
    taking = opened(build, batch_size=1000, buffer_memory=1500)
    record = bytes(300 - 21)
    taken = [taking.try_append("t", record, None, p) is not None for p in (0, 0, 0, 0, 1, 1, 2)]
    # The fourth would fill its batch, the sixth of those that fit exceeds the buffer.
    assert taken == [True, True, True, False, True, True, False]
    assert taking.buffered_bytes == 1500
    taking.give_back(300)
    assert taking.try_append("t", record, None, 2) is not None
    batch = taking.topics["t"].lanes[2].open_batch
    taking.close_batch(taking.topics["t"].lanes[2], batch)
    taking.give_back(600)
    assert taking.try_append("t", b"", None, 2) is None and len(batch.records) == 1


def test_nobody_waits_for_a_batch_on_the_loop_that_sends_it(build: ModuleType) -> None:
    outcome = build.BatchOutcome(TOPIC[0])
    delivery = build.Delivery(outcome, 1, 77)

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            delivery.result(0)  # sent from elsewhere: it may come meanwhile
        outcome.loop = asyncio.get_running_loop()
        for part in (delivery, build.Delivery(outcome.split(1)[1], 0, 77)):
            with pytest.raises(OttlaError, match="would wait for itself"):
                part.result(0)

    asyncio.run(wait())
    for part in (outcome.find(0)[0], outcome.find(1)[0]):
        part.succeed(5)
    assert delivery.result().offset == 5


def test_a_callback_that_raises_does_not_keep_the_next_from_being_called(
    build: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = build.BatchOutcome(TOPIC[0])
    promises = [build.Delivery(outcome, i, 5) for i in range(3)]
    heard: list[int] = []
    promises[0].add_done_callback(lambda promise: heard.append(promise.result().offset))
    promises[1].add_done_callback(lambda promise: 1 / 0)
    promises[2].add_done_callback(lambda promise: heard.append(promise.result().offset))
    outcome.succeed(40)
    assert heard == [40, 42]
    assert "a callback for a record to t-0 raised" in caplog.text


def test_records_of_many_threads_are_each_taken_once_and_in_the_order_of_their_thread(build: ModuleType) -> None:
    taking = opened(build, batch_size=2**40, buffer_memory=2**40)
    taking.topics["t"].sticky.bytes_left = 2**40
    threads, each = 4, 3000
    places: list[list[int]] = [[] for _ in range(threads)]
    start = threading.Barrier(threads)

    def send(number: int) -> None:
        rng = random.Random(number)
        start.wait()
        for i in range(each):
            value = b"%d %d" % (number, i)
            if rng.random() < 0.5:
                promise = taking.try_append("t", value, None, None)
            else:
                taking.reserve(len(value) + 21)
                promise = taking.put(taking.topics["t"].lanes[1].open_batch, (0, None, value, ()), len(value) + 21)
            places[number].append(promise)

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
    values = [row[2] for row in rows(taking, 1)]
    batch = taking.topics["t"].lanes[1].open_batch
    assert len(values) == len(set(values)) == threads * each
    assert taking.buffered_bytes == batch.size_bytes - 61 == sum(len(value) + 21 for value in values)
    batch.outcome.succeed(0)
    for number in range(threads):
        offsets = [promise.result().offset for promise in places[number]]
        assert [values[offset] for offset in offsets] == [b"%d %d" % (number, i) for i in range(each)]
        assert all(before < after for before, after in itertools.pairwise(offsets))
