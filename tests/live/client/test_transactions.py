"""The transactional producer with a running broker: errors, and races between threads."""

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


def committed(bootstrap: str, place: TopicPartition) -> list[bytes | None]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        latest = admin.list_offsets({place: LATEST})[place]
    assert latest is not None
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
        consumer.assign([place])
        values: list[bytes | None] = []
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
def test_without_a_transactional_id_every_call_names_the_missing_setting(
    broker: Any, call: Callable[[Producer], Any]
) -> None:
    """Spec: E1."""
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        with pytest.raises(OttlaError, match="needs a transactional producer") as caught:
            call(producer)
        assert "transactional.id" in caught.value.hint


def test_records_outside_a_transaction_are_refused(broker: Any, place: TopicPartition) -> None:
    """Spec: E1. Whether the topic is known already or not."""
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


def test_the_async_api_commits_and_aborts(broker: Any, place: TopicPartition) -> None:
    async def story() -> None:
        settings = {"bootstrap_servers": broker.bootstrap, "transactional_id": place.topic}
        async with AsyncProducer(None, **settings) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send(place.topic, b"kept")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
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


def test_a_record_is_in_the_transaction_or_refused_when_threads_race(broker: Any, place: TopicPartition) -> None:
    """Records sent before the commit are committed; later ones are refused."""
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
    assert sorted(filter(None, committed(broker.bootstrap, place))) == sorted(taken)


def test_close_does_not_abort_a_prepared_transaction(broker: Any, place: TopicPartition) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=place.topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place.topic, b"prepared")
        prepared = producer.prepare_transaction()
        with pytest.raises(OttlaError, match="prepared"):
            producer.send(place.topic, b"more")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert admin.describe_transactions([place.topic])[0].state == "Ongoing"
        with pytest.raises(OttlaError, match="offsets need a group"):
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


def test_an_unreachable_broker_is_an_error_in_time() -> None:
    settings: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "transactional_id": "x", "max_block_ms": 300}
    with Producer(None, **settings) as producer, pytest.raises(KafkaError, match=r"init_transactions.*127\.0\.0\.1:1"):
        producer.init_transactions()
