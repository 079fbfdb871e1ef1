"""The blocking API on a running broker: threads, forks and callbacks."""

import multiprocessing
import threading
from typing import Any

import pytest

from ottla import Admin, Consumer, Producer
from ottla.client.consumer.consumer import WakeupError
from ottla.errors import OttlaError
from tests.support.clients.callbacks import call_in_clients_thread
from tests.support.waiting import PATIENCE_S, eventually


def test_a_consumer_refuses_a_second_thread(broker: Any, topic: str) -> None:
    """Spec: B9."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.position((topic, 0))
        ended: list[Exception] = []

        def poll() -> None:
            try:
                consumer.poll(300_000)
            except OttlaError as error:
                ended.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        calls = consumer._calls  # noqa: SLF001 - to see that the other thread waits on the loop
        eventually(lambda: calls.owner == thread.ident)
        with pytest.raises(OttlaError, match="not safe for use by several threads"):
            consumer.poll(0)
        consumer.wakeup()  # the one call that another thread may make
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert isinstance(ended[0], WakeupError)


def test_a_client_fails_in_a_forked_child_and_a_new_one_works(broker: Any, topic: str) -> None:
    """Spark forks its workers."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send_and_wait(topic, "parent")
            context = multiprocessing.get_context("fork")
            results = context.Queue()
            child = context.Process(target=_in_child, args=(producer, broker.bootstrap, topic, results))
            child.start()
            assert results.get(timeout=PATIENCE_S) == ("this client was created in another process", 1)
            child.join(PATIENCE_S)
            assert producer.send_and_wait(topic, "parent again").offset == 2


def _in_child(inherited: Producer, bootstrap: str, topic: str, results: Any) -> None:
    try:
        inherited.send(topic, "child")
        refusal = ""
    except OttlaError as error:
        refusal = error.message
    with Producer(bootstrap_servers=bootstrap) as producer:
        results.put((refusal, producer.send_and_wait(topic, "child").offset))


def test_a_blocking_call_inside_a_callback_raises_instead_of_deadlocking(broker: Any, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        caught: list[str] = []

        def callback(delivery: Any) -> None:
            try:
                producer.flush()
            except OttlaError as error:
                caught.append(error.message)

        call_in_clients_thread(producer, topic, callback)
        assert caught == ["a blocking call inside a callback of the client would deadlock"]
