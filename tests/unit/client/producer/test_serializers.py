"""Serializers: from objects to bytes, with the topic and the headers if they want them. A simulated broker."""

import json
from typing import Any

import pytest

from ottla import AsyncDeserializingConsumer, AsyncSerializingProducer, SerializingProducer
from ottla.client.producer.serializing import RecordSerializationError, Serializers
from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ArgumentError
from ottla.testing.world import BOOTSTRAP, World


def with_schema(value: Any, *, topic: str, headers: list[tuple[str, bytes]]) -> str:
    headers.append(("schema", f"{topic}-7".encode()))
    return json.dumps(value)


def by_schema(data: bytes, headers: Any) -> Any:
    assert dict(headers)["schema"] == b"t-7"
    return json.loads(data)


def test_objects_are_sent_and_come_back() -> None:
    async def story(world: World) -> None:
        settings = {"bootstrap.servers": BOOTSTRAP}
        sim: Any = {"clock": world.client_clock}
        async with AsyncSerializingProducer(
            settings, key_serializer=str, value_serializer=with_schema, **sim
        ) as producer:
            await producer.send_and_wait("t", {"customer": 7}, key=7, headers={"h": b"v"})
            await producer.send_and_wait("t", None, key=7, headers={"schema": b"t-7"})
            sent = producer.try_send("t", [1])
            assert sent is not None
            await sent
            with pytest.raises(RecordSerializationError, match=r"value of a record to t cannot be serialized: TypeErr"):
                await producer.send("t", object())
        async with AsyncDeserializingConsumer(
            settings, key_deserializer=int, value_deserializer=by_schema, auto_offset_reset="earliest", **sim
        ) as consumer:
            await consumer.assign([("t", 0)])
            records = await consumer.poll(10_000)
            assert [(record.key, record.value) for record in records] == [(7, {"customer": 7}), (7, None), (None, [1])]
            assert records[0].headers == (("h", b"v"), ("schema", b"t-7"))

    World(1).run(story)


def test_a_record_that_cannot_be_serialized_fails_its_transaction() -> None:
    """Spec: E1."""

    async def story(world: World) -> None:
        sim: Any = {"clock": world.client_clock}
        producer = AsyncSerializingProducer(
            bootstrap_servers=BOOTSTRAP, transactional_id="x", value_serializer=json.dumps, **sim
        )
        await producer.init_transactions()
        await producer.begin_transaction()
        with pytest.raises(RecordSerializationError):
            await producer.send("t", object())
        with pytest.raises(TransactionAbortable, match="cannot be serialized"):
            await producer.commit_transaction()
        await producer.close()

    World(2, transaction_state_log_num_partitions="2").run(story)


def test_mistakes_in_serializers_are_named() -> None:
    with pytest.raises(ArgumentError, match="value_serializer is not a function: 'json'"):
        SerializingProducer(value_serializer="json")  # type: ignore[arg-type]
    with pytest.raises(RecordSerializationError, match="the serializer returned dict, not bytes") as caught:
        Serializers(None, lambda value: value).apply("t", None, {"a": 1}, None)
    assert (caught.value.topic, caught.value.part) == ("t", "value")
    assert Serializers(str, None).apply("t", 5, b"v", None) == ("5", b"v", None)
