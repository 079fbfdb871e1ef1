"""Ottla's client for a run. OWNER."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ottla.client.blocking import Consumer, Producer
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.client.producer.speedups import Delivery
from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition
from ottla.verify.clients import port
from ottla.verify.clients.port import ClientError, OnAssignment, OnDelivery, Place, Received, Remedy

_QUICK = {
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "300",
    "retry.backoff.ms": "30",
    "request.timeout.ms": str(port.REQUEST_TIMEOUT_MS),
    "metadata.max.age.ms": "10000",
}


class OwnLibrary:
    """Creates Ottla's clients."""

    name = "ottla"

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {**settings, **_QUICK}

    def producer(self, client_id: str, transactional_id: str = "") -> "OwnProducer":
        settings = {
            **self._settings,
            "client.id": client_id,
            "acks": "all",
            "enable.idempotence": "true",
            "linger.ms": "1",
            "delivery.timeout.ms": str(port.DELIVERY_TIMEOUT_MS),
            "max.block.ms": str(port.API_TIMEOUT_MS),
        }
        settings.pop("default.api.timeout.ms", None)
        if transactional_id:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = str(port.TRANSACTION_TIMEOUT_MS)
        return OwnProducer(settings)

    def consumer(self, client_id: str, isolation: str, group: str = "") -> "OwnConsumer":
        settings = {
            **self._settings,
            "client.id": client_id,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "allow.auto.create.topics": "false",
            "fetch.max.wait.ms": "100",
            "default.api.timeout.ms": str(port.API_TIMEOUT_MS),
        }
        if group:
            settings |= {
                "group.id": group,
                "session.timeout.ms": str(port.SESSION_TIMEOUT_MS),
                "heartbeat.interval.ms": str(port.HEARTBEAT_MS),
                "max.poll.interval.ms": str(port.MAX_POLL_INTERVAL_MS),
            }
        return OwnConsumer(settings)


class OwnProducer:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self._producer = Producer(settings)

    def send(self, topic: str, partition: int, value: bytes, on_delivery: OnDelivery) -> None:
        def done(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is None:
                on_delivery(delivery.result(0).offset, "")
            else:
                on_delivery(-1, _text(error))

        with _troubles():
            self._producer.send(topic, value, partition=partition).add_done_callback(done)

    def serve(self, seconds: float) -> None:
        """Deliveries are reported by the client's own thread."""

    def init(self) -> None:
        with _troubles():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _troubles():
            self._producer.begin_transaction()

    def add_offsets(self, offsets: Mapping[Place, int], consumer: port.ConsumerPort) -> None:
        assert isinstance(consumer, OwnConsumer)
        with _troubles():
            self._producer.send_offsets_to_transaction(_by_partition(offsets), consumer.metadata)

    def commit(self) -> None:
        with _troubles():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _troubles():
            self._producer.abort_transaction()

    def crash(self) -> None:
        with contextlib.suppress(KafkaError):
            self._producer.close(timeout_ms=0)


class OwnConsumer:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.consumer = Consumer(settings)
        self._has_group = "group.id" in settings
        self.metadata: Any = None
        """The membership at the last poll() that returned records."""

    def assign(self, places: Iterable[Place]) -> None:
        with _troubles():
            self.consumer.assign(list(places))
            self.consumer.seek_to_beginning()

    def subscribe(self, topic: str, on_assignment: OnAssignment) -> None:
        owned: set[Place] = set()

        class Listener(RebalanceListener):
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                owned.update((each.topic, each.partition) for each in partitions)
                on_assignment(set(owned))

            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                owned.difference_update((each.topic, each.partition) for each in partitions)

            def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
                self.on_partitions_revoked(partitions)

        with _troubles():
            self.consumer.subscribe([topic], listener=Listener())

    def poll(self, seconds: float, most: int) -> list[Received]:
        with _troubles():
            records = self.consumer.poll(int(seconds * 1000), max_records=most)
            if records and self._has_group:
                self.metadata = self.consumer.group_metadata()
        return [Received(each.topic, each.partition, each.offset, each.value or b"") for each in records]

    def seek(self, offsets: Mapping[Place, int]) -> None:
        with _troubles():
            for place, offset in offsets.items():
                self.consumer.seek(place, offset)

    def commit(self, offsets: Mapping[Place, int]) -> None:
        with _troubles():
            self.consumer.commit(_by_partition(offsets))

    def committed(self, places: Iterable[Place]) -> dict[Place, int]:
        with _troubles():
            found = self.consumer.committed(list(places))
        return {(each.topic, each.partition): -1 if offset is None else offset.offset for each, offset in found.items()}

    def generation(self) -> int:
        with _troubles():
            return self.consumer.group_metadata().generation_id

    def is_at_end(self, ends: Mapping[Place, int]) -> bool:
        with _troubles():
            return all(self.consumer.position(place) >= end for place, end in ends.items())

    def close(self) -> None:
        with contextlib.suppress(KafkaError):
            self.consumer.close(timeout_ms=500)


def _by_partition(offsets: Mapping[Place, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*place): offset for place, offset in offsets.items()}


@contextlib.contextmanager
def _troubles() -> Iterator[None]:
    try:
        yield
    except TransactionAbortable as error:
        raise ClientError(_text(error), Remedy.ABORT) from None
    except KafkaError as error:
        remedy = Remedy.RETRY if error.code == ErrorCode.REQUEST_TIMED_OUT else Remedy.RESTART
        raise ClientError(_text(error), remedy) from None


def _text(error: Any) -> str:
    return f"{error.code.name}: {error.detail}" if isinstance(error, KafkaError) else str(error)
