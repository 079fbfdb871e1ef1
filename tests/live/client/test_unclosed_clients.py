"""Clients that a program does not close: nothing is lost silently."""

import gc
import subprocess
import sys
from typing import Any

import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.producer.speedups import Delivery
from tests.support.waiting import PATIENCE_S, eventually

FORGETS = """
import asyncio, sys
from ottla import AsyncProducer, Consumer, Producer

bootstrap, topic = sys.argv[1:]
producer = Producer(bootstrap_servers=bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
for number in range(3):
    producer.send(topic, f"{number}", partition=0)

async def forget():
    global lost
    lost = AsyncProducer(bootstrap_servers=bootstrap, client_id="careless", linger_ms=60_000)
    await lost.send(topic, b"too late", partition=0)

asyncio.run(forget())
consumer = Consumer(bootstrap_servers=bootstrap, group_id=topic)
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(100)
"""


KEEPS = """
import asyncio, importlib, sys, types

# A module that outlives those of the client, as one does that another module still refers to.
sys.keeper = keeper = types.ModuleType("keeper")
sys.modules["keeper"] = keeper
module = importlib.import_module(sys.argv[1])
sys.module = module

async def use():
    keeper.client = client = getattr(module, sys.argv[2])(bootstrap_servers="127.0.0.1:1")
    if sys.argv[3] == "used":
        client._network.start()
        await asyncio.sleep(0)

asyncio.run(use())
del keeper, module
"""


@pytest.fixture
def admin(broker: Any) -> Any:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


def members(admin: Admin, group: str) -> int:
    return len(admin.describe_groups([group])[0].members)


def test_at_exit_records_are_flushed_groups_are_left_and_the_log_says_so(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    done = subprocess.run(
        [sys.executable, "-c", FORGETS, broker.bootstrap, topic], capture_output=True, text=True, timeout=60, check=True
    )
    assert "producer ottla was not closed: 1 batches of records were not stored yet, and were flushed" in done.stderr
    assert "producer careless was not closed, and its event loop has ended: 1 batches of records" in done.stderr
    assert members(admin, topic) == 0
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for record in consumer.poll(300_000)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize(
    ("module", "name"),
    [("ottla.client.producer.producer", "AsyncProducer"), ("ottla.client.consumer.consumer", "AsyncConsumer")],
)
def test_a_client_that_outlives_its_module_ends_quietly(module: str, name: str, is_used: bool) -> None:
    """At the end of the interpreter, the globals of modules are None before the last objects go."""
    done = subprocess.run(
        [sys.executable, "-c", KEEPS, module, name, "used" if is_used else "unused"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "Exception ignored" not in done.stderr, done.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_consumer_that_is_dropped_leaves_its_group(
    broker: Any, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic, partitions=1)

    def forget() -> None:
        consumer = Consumer(bootstrap_servers=broker.bootstrap, group_id=topic)
        consumer.subscribe([topic])
        eventually(lambda: bool(consumer.poll(100) or consumer.assignment()))
        assert members(admin, topic) == 1

    with pytest.warns(ResourceWarning, match=f"consumer ottla of group {topic} was not closed"):
        forget()
    eventually(lambda: members(admin, topic) == 0)
    assert f"consumer ottla of group {topic} was dropped without close()" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_producer_that_is_dropped_still_sends_its_records(broker: Any, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1)

    def forget() -> Delivery:
        producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
        return producer.send(topic, b"v", partition=0)

    with pytest.warns(ResourceWarning, match="producer ottla was not closed"):
        delivery = forget()
    assert delivery.result(PATIENCE_S).offset == 0


def test_a_failed_record_that_nobody_looks_at_is_logged(
    broker: Any, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic, partitions=1, configs={"max.message.bytes": "1000"})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, bytes(5_000))
        producer.flush()
        gc.collect()
        logged = f"1 records to {topic}-0 were not stored, and the program never checked their Delivery"
        assert f"{logged}: MESSAGE_TOO_LARGE" in caplog.text
        caplog.clear()
        inspected = producer.send(topic, bytes(5_000))
        producer.flush()
        assert inspected.exception() is not None
        with_callback = producer.send(topic, bytes(5_000))
        with_callback.add_done_callback(lambda delivery: None)
        producer.flush()
        del inspected, with_callback
        gc.collect()
        assert not caplog.text
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, bytes(5_000))
        producer.flush()
        producer.abort_transaction()
        gc.collect()
        assert not caplog.text, "the commit would have raised it"
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.send(topic, b"v")
        producer.close(0)
        gc.collect()
        assert not caplog.text, "dropping them was intended"
