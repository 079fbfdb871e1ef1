"""A blocking poll() takes buffered records on the caller's thread; the event loop is needed only for other work."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Consumer, Producer
from ottla.client.blocking.loop import loop_thread
from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.consumer.consumer import WakeupError
from ottla.client.consumer.record_reader import RecordReader
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S
from tests.support.worlds.consumer_world import ConsumerWorld

COUNT = 50


@pytest.fixture
def filled(ottla: Any, topic: str) -> str:
    """A topic with several records in one batch."""
    with Producer(bootstrap_servers=ottla.bootstrap, linger_ms=1000) as producer:
        for i in range(COUNT):
            producer.send(topic, str(i), partition=0)
    return topic


@pytest.fixture
def consumer(ottla: Any, filled: str) -> Iterator[Consumer]:
    """A consumer that has returned the first record; the others are buffered."""
    with Consumer(bootstrap_servers=ottla.bootstrap, auto_offset_reset="earliest", fetch_min_bytes=COUNT) as consumer:
        consumer.assign([(filled, 0)])
        assert values(consumer.poll(300_000, max_records=1)) == [0]
        yield consumer


def values(records: Any) -> list[int]:
    return [int(record.value) for record in records]


@pytest.fixture
def loop_held() -> Iterator[None]:
    """Blocks the loop's thread until the test is over."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        over.wait(PATIENCE_S)

    loop_thread.running_loop().call_soon_threadsafe(hold)
    assert held.wait(PATIENCE_S)
    yield
    over.set()


def test_buffered_records_are_returned_without_the_loop(consumer: Consumer, loop_held: None) -> None:
    assert values(consumer.poll(max_records=2)) == [1, 2]
    assert [int(value.as_py()) for value in consumer.poll_arrow(max_records=3)["value"]] == [3, 4, 5]
    assert values(consumer.poll()) == list(range(6, COUNT))


def test_iterating_takes_buffered_records_too(consumer: Consumer, filled: str, loop_held: None) -> None:
    found = []
    for record in consumer:
        found.append(record)
        if len(found) == 3:
            break
    assert values(found) == [1, 2, 3]


def test_a_poll_continues_where_an_iteration_stopped(consumer: Consumer, filled: str) -> None:
    assert values([next(iter(consumer))]) == [1]
    assert consumer.position((filled, 0)) == 2
    assert values(consumer.poll()) == list(range(2, COUNT))


def test_an_iteration_interrupted_while_taking_loses_nothing(
    consumer: Consumer, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = RecordReader.take_into_buffer

    def broken_off(reader: RecordReader) -> bool:
        monkeypatch.setattr(RecordReader, "take_into_buffer", taken)
        taken(reader)
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordReader, "take_into_buffer", broken_off)
    with pytest.raises(KeyboardInterrupt):
        next(iter(consumer))
    assert consumer.position((filled, 0)) == 1
    assert values(consumer.poll(300_000)) == list(range(1, COUNT))


def test_a_wakeup_comes_before_buffered_records(consumer: Consumer) -> None:
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll()
    assert values(consumer.poll(max_records=1)) == [1]


def test_paused_partitions_keep_buffered_records(consumer: Consumer, filled: str) -> None:
    consumer.pause([(filled, 0)])
    assert not consumer.poll()
    consumer.resume([(filled, 0)])
    assert values(consumer.poll(max_records=1)) == [1]


@pytest.mark.parametrize("columns", [False, True], ids=["objects", "columns"])
def test_an_interrupted_poll_loses_nothing(
    consumer: Consumer, filled: str, columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C the user may continue: every record is returned, and none twice."""
    name = "sections" if columns else "take"
    whole = getattr(CompletedFetch, name)

    def broken_off(*args: Any) -> Any:
        monkeypatch.setattr(CompletedFetch, name, whole)
        whole(*args)
        raise KeyboardInterrupt

    assert values(consumer.poll(max_records=4)) == [1, 2, 3, 4]
    monkeypatch.setattr(CompletedFetch, name, broken_off)
    with pytest.raises(KeyboardInterrupt):
        consumer.poll_arrow() if columns else consumer.poll()
    assert consumer.position((filled, 0)) == 5
    assert values(consumer.poll(300_000)) == list(range(5, COUNT))


def test_a_member_that_takes_buffered_records_counts_as_polling(ottla: Any, filled: str) -> None:
    settings = {"bootstrap_servers": ottla.bootstrap, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with Consumer(group_id=f"{filled}-group", **settings) as consumer:
        consumer.subscribe([filled])
        while not consumer.poll(1_000, max_records=1):
            pass
        group = consumer._async._group
        assert group is not None
        before = consumer._async._network.now_elsewhere()
        group.membership._polled_at = before - 60_000  # a while ago, but not so long that it had to leave
        assert values(consumer.poll(max_records=1)) == [1]
        assert group.membership._polled_at >= before


def test_when_a_fetch_is_due() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcdef":
        world.logs[TopicPartition("t", 0)].append(value)
    world.exchange(10)
    assert world.fetcher.waiting == 2
    assert not world.fetcher.is_due
    world.fetcher.begin_to_take()
    assert world.take(1) == ["a"]
    assert world.fetcher.is_due
    world.exchange(10)
    world.fetcher.take_back()
    assert world.position() == 0
    assert world.fetcher.waiting == 0
    assert world.fetcher.is_due
    world.exchange(10)
    assert world.take() == ["a", "b"]
