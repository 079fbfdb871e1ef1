"""The port to librdkafka survives calls of that library that ignore their timeouts."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.verify.clients import confluent
from ottla.verify.clients.confluent import ConfluentConsumer, ConfluentProducer
from ottla.verify.clients.port import ClientError, Remedy


def test_a_call_that_ignores_its_timeout_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """send_offsets_to_transaction() does, when the coordinator of the group is lost."""
    release = threading.Event()

    class Producer:
        def __init__(self, settings: dict[str, str], logger: object) -> None:
            pass

        def send_offsets_to_transaction(self, offsets: object, metadata: object, seconds: float) -> None:
            release.wait(30)

    class Consumer:
        def __init__(self, settings: dict[str, str], logger: object) -> None:
            pass

    module: Any = SimpleNamespace(
        Producer=Producer, Consumer=Consumer, KafkaException=OSError, TopicPartition=lambda *place: place
    )
    monkeypatch.setattr(confluent, "_GIVE_UP_S", 0.1)
    producer, consumer = ConfluentProducer(module, {}), ConfluentConsumer(module, {})
    try:
        with pytest.raises(ClientError, match=r"send_offsets_to_transaction has made no progress for 0\.1 s") as raised:
            producer.add_offsets({("t", 0): 7}, consumer)
        assert raised.value.remedy is Remedy.RESTART
    finally:
        release.set()
