"""Interrupted reading, by break or by Ctrl-C: the rest is returned once, by the next poll() or loop."""

# ruff: noqa: SLF001  (sets up or checks internal state)

from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Consumer, DeserializingConsumer, Producer
from ottla.client.blocking.loop import OneThreadCalls
from ottla.client.consumer.iteration_buffer import IterationBuffer
from ottla.client.core.callers_thread import Call
from ottla.client.core.model import ConsumerRecord, Records
from ottla.types import TopicPartition

COUNT = 10
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@pytest.fixture
def topics(ottla: Any, topic: str) -> tuple[str, str]:
    """Two topics with COUNT records each, one batch per topic."""
    names = topic, f"{topic}-other"
    with Producer(bootstrap_servers=ottla.bootstrap, linger_ms=1000) as producer:
        for name in names:
            for i in range(COUNT):
                producer.send(name, str(i), partition=0)
    return names


@pytest.fixture
def consumer(ottla: Any, topics: tuple[str, str]) -> Iterator[Consumer]:
    """A consumer whose for loop exited after the first record of the first topic."""
    settings: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "group_id": topics[0],
        "enable_auto_commit": False,
    }
    with Consumer(bootstrap_servers=ottla.bootstrap, fetch_min_bytes=COUNT, **settings) as consumer:
        consumer.assign([(topics[0], 0)])
        for record in consumer:
            assert record.offset == 0
            break
        yield consumer


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


# --- the rest of a loop that exited early -------------------------------------------------------------------


def test_a_poll_returns_at_most_max_records_of_the_rest(consumer: Consumer, topics: tuple[str, str]) -> None:
    assert offsets(consumer.poll(max_records=2)) == [1, 2]
    assert consumer.position((topics[0], 0)) == 3
    assert offsets(consumer.poll(max_records=3)) == [3, 4, 5]
    assert offsets([next(iter(consumer))]) == [6]
    assert offsets(consumer.poll()) == [7, 8, 9]


def test_the_rest_of_an_unassigned_partition_is_not_returned(consumer: Consumer, topics: tuple[str, str]) -> None:
    consumer.assign([(topics[1], 0)])
    assert [record[:3] for record in consumer.poll(300_000, max_records=1)] == [(topics[1], 0, 0)]


def test_unsubscribing_drops_the_rest(consumer: Consumer, topics: tuple[str, str]) -> None:
    consumer.unsubscribe()
    consumer.subscribe([topics[1]])
    found: list[Any] = []
    while not found:
        found += consumer.poll(1_000, max_records=1)
    assert [record[:3] for record in found] == [(topics[1], 0, 0)]


def test_paused_partitions_keep_the_rest(consumer: Consumer, topics: tuple[str, str]) -> None:
    first, other = (topics[0], 0), (topics[1], 0)
    consumer.pause([first])
    assert not consumer.poll(100)
    consumer.assign([first, other])
    assert [record[:3] for record in consumer.poll(300_000, max_records=1)] == [(topics[1], 0, 0)]
    assert consumer.position(first) == 1, "it was not returned"
    consumer.resume([first])
    assert [record[:3] for record in consumer.poll(max_records=1)] == [(topics[0], 0, 1)]


def test_an_iteration_skips_a_partition_that_is_paused_meanwhile(consumer: Consumer, topics: tuple[str, str]) -> None:
    first, other = (topics[0], 0), (topics[1], 0)
    consumer.assign([first, other])
    seen: list[tuple[str, int]] = []
    for record in consumer:
        seen.append((record.topic, record.offset))
        if len(seen) == 2:
            consumer.pause([first])
        elif len(seen) == 4:
            consumer.resume([first])
        elif len(seen) == 6:
            break
    assert [at for name, at in seen if name == topics[0]] == [1, 2, 3, 4]
    assert [at for name, at in seen if name == topics[1]] == [0, 1]


def test_a_seek_drops_the_rest(consumer: Consumer, topics: tuple[str, str]) -> None:
    consumer.seek((topics[0], 0), 7)
    assert offsets(consumer.poll(300_000)) == [7, 8, 9]


def record(partition: TopicPartition, offset: int) -> ConsumerRecord:
    return ConsumerRecord(*partition, offset, 0, None, None, ())


def test_each_partition_keeps_its_order_after_hold_and_release() -> None:
    buffer = IterationBuffer()
    buffer.extend([record(A, 0), record(B, 0), record(A, 1), record(B, 1)])
    buffer.hold({A})
    assert list(buffer.take(1)) == [B]
    assert [r[:3] for r in buffer] == [(*A, 0), (*A, 1), (*B, 1)]
    buffer.release({A})
    assert offsets(buffer.ready) == [0, 1, 1]
    buffer.take_back()
    assert [r[:3] for r in buffer.ready] == [(*B, 0), (*A, 0), (*A, 1), (*B, 1)]
    buffer.drop({A})
    assert buffer.take(9) == {B: [record(B, 0), record(B, 1)]}
    assert not buffer


# --- Ctrl-C -------------------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ctrl-C arrives when the event loop has finished a poll() and the caller is about to wake up."""
    whole = Call._next_job
    hit: list[str] = []

    def late(call: Any) -> Any:
        job = whole(call)
        if job is None and not hit:
            result = call._task.result()
            if (isinstance(result, Records) or hasattr(result, "num_rows")) and len(result):
                hit.append(type(result).__name__)
                raise KeyboardInterrupt
        return job

    monkeypatch.setattr(
        OneThreadCalls, "try_here", lambda *_: None
    )  # otherwise buffered records are taken without the loop
    monkeypatch.setattr(Call, "_next_job", late)
    return hit


@pytest.mark.parametrize("columns", [False, True], ids=["objects", "columns"])
def test_records_that_did_not_reach_the_caller_are_returned_again(
    ottla: Any, topics: tuple[str, str], columns: bool, ctrl_c: list[str]
) -> None:
    with Consumer(bootstrap_servers=ottla.bootstrap, auto_offset_reset="earliest", fetch_min_bytes=COUNT) as consumer:
        consumer.assign([(topics[0], 0)])
        with pytest.raises(KeyboardInterrupt):
            consumer.poll_arrow(300_000, max_records=4) if columns else consumer.poll(300_000, max_records=4)
        assert ctrl_c == ["RecordBatch" if columns else "Records"]
        assert consumer.position((topics[0], 0)) == 0
        assert offsets(consumer.poll(300_000)) == list(range(COUNT))


def test_the_rest_of_a_loop_is_returned_again_too(
    consumer: Consumer, topics: tuple[str, str], ctrl_c: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        consumer.poll(max_records=2)
    assert consumer.position((topics[0], 0)) == 1
    assert offsets(consumer.poll()) == list(range(1, COUNT))


def test_records_that_reached_the_caller_are_not_returned_again(
    ottla: Any, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Consumer(bootstrap_servers=ottla.bootstrap, auto_offset_reset="earliest", fetch_min_bytes=COUNT) as consumer:
        consumer.assign([(topics[0], 0)])
        assert offsets(consumer.poll(300_000, max_records=4)) == [0, 1, 2, 3]
        with monkeypatch.context() as patch:
            patch.setattr(OneThreadCalls, "try_here", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(300_000)
        assert offsets(consumer.poll(300_000)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("iterates", [False, True], ids=["poll", "iteration"])
def test_records_being_deserialized_are_returned_again(ottla: Any, topics: tuple[str, str], iterates: bool) -> None:
    interrupts = iter([False, True])

    def number(value: bytes) -> int:
        if next(interrupts, False):
            raise KeyboardInterrupt
        return int(value)

    with DeserializingConsumer(
        bootstrap_servers=ottla.bootstrap, auto_offset_reset="earliest", value_deserializer=number
    ) as consumer:
        consumer.assign([(topics[0], 0)])
        found: list[int | None] = []
        with pytest.raises(KeyboardInterrupt):
            found.extend(record.value for record in (consumer if iterates else consumer.poll(300_000)))
        assert found == ([0] if iterates else [])
        while len(found) < COUNT:
            found += [record.value for record in consumer.poll(300_000)]
        assert found == list(range(COUNT))
