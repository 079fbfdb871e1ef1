"""The transactional producer against a live broker: what its user is told, and what happens between threads."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ottla import Admin, AsyncProducer, Consumer, KafkaError, OttlaError, Producer, TransactionFatal
from ottla.client.core.model import LATEST
from ottla.types import TopicPartition


@pytest.fixture
def place(broker: Any, topic: str) -> TopicPartition:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    return TopicPartition(topic, 0)


def committed(bootstrap: str, place: TopicPartition) -> list[bytes]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        latest = admin.list_offsets({place: LATEST})[place]
    assert latest is not None
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([place])
        values: list[bytes] = []
        while consumer.position(place) < latest.offset:
            values += [record.value for record in consumer.poll(500)]
        return values


CALLS: list[Callable[[Producer], Any]] = [
    lambda producer: producer.init_transactions(),
    lambda producer: producer.begin_transaction(),
    lambda producer: producer.send_offsets_to_transaction({("t", 0): 1}, "g"),
    lambda producer: producer.commit_transaction(),
    lambda producer: producer.abort_transaction(),
    lambda producer: producer.prepare_transaction(),
    lambda producer: producer.transaction().__enter__(),
]


@pytest.mark.parametrize("call", CALLS)
def test_without_a_transactional_id_every_call_says_what_is_missing(
    broker: Any, call: Callable[[Producer], Any]
) -> None:
    """E1."""
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        with pytest.raises(OttlaError, match="needs a transactional producer") as caught:
            call(producer)
        assert "transactional.id" in caught.value.hint


def test_records_outside_a_transaction_are_refused(broker: Any, place: TopicPartition) -> None:
    """E1: whether the topic is known already or not."""
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=place.topic) as producer:
        with pytest.raises(OttlaError) as caught:
            producer.send(place.topic, b"too early")
        assert "init_transactions()" in caught.value.hint
        producer.init_transactions()
        with pytest.raises(OttlaError) as caught:
            producer.send(place.topic, b"too early")
        assert "begin_transaction()" in caught.value.hint
        with producer.transaction():
            producer.send(place.topic, b"in time")
        with pytest.raises(OttlaError):
            producer.send(place.topic, b"too late")
        with pytest.raises(OttlaError):
            producer.try_send(place.topic, b"too late")
    assert committed(broker.bootstrap, place) == [b"in time"]


def test_the_async_face_commits_and_aborts_as_well(broker: Any, place: TopicPartition) -> None:
    async def story() -> None:
        settings = {"bootstrap_servers": broker.bootstrap, "transactional_id": place.topic}
        async with AsyncProducer(None, **settings) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(place.topic, b"kept")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send(place.topic, b"dropped")
                    raise ZeroDivisionError

            is_sent = asyncio.Event()

            async def cancelled() -> None:
                async with producer.transaction():
                    await producer.send(place.topic, b"dropped")
                    is_sent.set()
                    await asyncio.sleep(600)

            task = asyncio.ensure_future(cancelled())
            await is_sent.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with producer.transaction():
                await producer.send(place.topic, b"kept too")

    asyncio.run(story())
    assert committed(broker.bootstrap, place) == [b"kept", b"kept too"]


def test_a_record_is_in_the_transaction_or_refused_even_when_threads_race(broker: Any, place: TopicPartition) -> None:
    """What send() took before the commit is committed; what came after it is refused. Nothing slips through."""
    taken: list[bytes] = []
    lock = threading.Lock()
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=place.topic) as producer:
        producer.init_transactions()
        for round_number in range(10):
            producer.begin_transaction()

            def write(name: int, round_number: int = round_number) -> None:
                for number in range(100_000):
                    value = b"%d-%d-%d" % (round_number, name, number)
                    try:
                        producer.send(place.topic, value, partition=0)
                    except OttlaError:
                        return
                    with lock:
                        taken.append(value)

            threads = [threading.Thread(target=write, args=(name,)) for name in range(3)]
            for thread in threads:
                thread.start()
            while not taken or not taken[-1].startswith(b"%d-" % round_number):
                pass
            producer.commit_transaction()
            for thread in threads:
                thread.join()
    assert sorted(committed(broker.bootstrap, place)) == sorted(taken)


def test_closing_leaves_a_prepared_transaction_alone(broker: Any, place: TopicPartition) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=place.topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"prepared")
        prepared = producer.prepare_transaction()
        with pytest.raises(OttlaError, match="prepared"):
            producer.send(place.topic, b"more")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert admin.describe_transactions([place.topic])[0].state == "Ongoing"
        with pytest.raises(OttlaError, match="for a group"):
            admin.commit_prepared(prepared, offsets={place: 1})
        admin.commit_prepared(prepared)
    assert committed(broker.bootstrap, place) == [b"prepared"]


def test_a_prepared_transaction_that_was_aborted_cannot_be_committed(broker: Any, place: TopicPartition) -> None:
    settings = {"bootstrap_servers": broker.bootstrap, "transactional_id": place.topic}
    with Producer(None, **settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"prepared")
        prepared = producer.prepare_transaction()
    with Producer(None, **settings) as successor:
        successor.init_transactions()
    with Admin(bootstrap_servers=broker.bootstrap) as admin, pytest.raises(TransactionFatal):
        admin.commit_prepared(prepared, offsets={place: 1}, group="ledger")
    assert committed(broker.bootstrap, place) == []


def test_nobody_there_is_an_error_in_time() -> None:
    settings = {"bootstrap_servers": "127.0.0.1:1", "transactional_id": "x", "max_block_ms": 300}
    with Producer(None, **settings) as producer, pytest.raises(KafkaError, match=r"init_transactions.*127\.0\.0\.1:1"):
        producer.init_transactions()
