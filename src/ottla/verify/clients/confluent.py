"""librdkafka for a run, through confluent-kafka, which the user has to install. OWNER."""

import contextlib
import importlib
import importlib.util
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ottla.client.core.security_settings import TLS_AND_SASL
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.verify.clients import port
from ottla.verify.clients.port import ClientError, OnAssignment, OnDelivery, Place, Received, Remedy
from ottla.verify.hangs import Hang, within

_SHARED_SETTINGS = ("bootstrap.servers", "security.protocol", *TLS_AND_SASL)
"""Settings of the run that librdkafka knows under the same name."""
_SECONDS = 12.0
_GIVE_UP_S = 20.0
"""For a call that should have ended after _SECONDS."""
_STABLE_S = 4.0
"""How long a new assignment waits for transactions that hold its offsets: less than max.poll.interval.ms."""
_LOOKUP_TIMEOUT_S = 1.0
_SILENT = logging.getLogger("ottla.verify.librdkafka")
"""librdkafka would print fatal errors. Its logs go here instead, and are shown if this logger is configured."""
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def is_installed() -> bool:
    return importlib.util.find_spec("confluent_kafka") is not None


class ConfluentLibrary:
    """Creates clients of confluent-kafka."""

    name = "confluent"

    def __init__(self, settings: Mapping[str, str]) -> None:
        if not is_installed():
            raise OttlaError(
                "confluent-kafka is not installed", "run: pip install confluent-kafka, or use --client ottla"
            )
        self._module: Any = importlib.import_module("confluent_kafka")
        self._settings = {name: value for name, value in settings.items() if name.startswith(_SHARED_SETTINGS)}
        self._settings |= {
            "reconnect.backoff.ms": "20",
            "reconnect.backoff.max.ms": "300",
            "retry.backoff.ms": "30",
            "topic.metadata.refresh.interval.ms": "10000",
            "socket.timeout.ms": str(port.REQUEST_TIMEOUT_MS),
            "log_level": "0",
        }
        try:
            self._module.Producer(self._settings, logger=_SILENT)
        except self._module.KafkaException as failure:
            raise OttlaError(
                f"librdkafka does not accept the settings: {failure.args[0].str()}",
                "use its names in --config, or --client ottla",
            ) from None

    def producer(self, client_id: str, transactional_id: str = "") -> "ConfluentProducer":
        settings = {
            **self._settings,
            "client.id": client_id,
            "enable.idempotence": "true",
            "linger.ms": "1",
            "message.timeout.ms": str(port.DELIVERY_TIMEOUT_MS),
        }
        if transactional_id:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = str(port.TRANSACTION_TIMEOUT_MS)
            settings["message.timeout.ms"] = str(port.TRANSACTION_TIMEOUT_MS)
        return ConfluentProducer(self._module, settings)

    def consumer(self, client_id: str, isolation: str, group: str = "") -> "ConfluentConsumer":
        settings = {
            **self._settings,
            "client.id": client_id,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "fetch.wait.max.ms": "100",
            "fetch.error.backoff.ms": "50",
            "enable.partition.eof": "true",
            "group.id": group or client_id,
            "session.timeout.ms": str(port.SESSION_TIMEOUT_MS),
            "heartbeat.interval.ms": str(port.HEARTBEAT_MS),
            "max.poll.interval.ms": str(port.MAX_POLL_INTERVAL_MS),
        }
        return ConfluentConsumer(self._module, settings)


class ConfluentProducer:
    def __init__(self, module: Any, settings: Mapping[str, str]) -> None:
        self._producer = module.Producer(dict(settings), logger=_SILENT)
        self._module = module

    def send(self, topic: str, partition: int, value: bytes, on_delivery: OnDelivery) -> None:
        def done(error: Any, message: Any) -> None:
            if error is None:
                offset = message.offset()
                on_delivery(-1 if offset is None else offset, "")
            else:
                on_delivery(-1, error.str())

        with self._troubles():
            self._producer.produce(topic, value, partition=partition, on_delivery=done)
            self._producer.poll(0)

    def serve(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def init(self) -> None:
        with self._troubles():
            self._producer.init_transactions(_SECONDS)

    def begin(self) -> None:
        with self._troubles():
            self._producer.begin_transaction()

    def add_offsets(self, offsets: Mapping[Place, int], consumer: port.ConsumerPort) -> None:
        assert isinstance(consumer, ConfluentConsumer)
        with self._troubles():
            asked = _partitions(self._module, offsets)
            try:
                # librdkafka does not keep the timeout of this call if the group's coordinator is lost.
                within(
                    _GIVE_UP_S,
                    "send_offsets_to_transaction",
                    lambda: self._producer.send_offsets_to_transaction(asked, consumer.metadata, _SECONDS),
                )
            except Hang as hang:
                raise ClientError(str(hang), Remedy.RESTART) from None

    def commit(self) -> None:
        with self._troubles():
            self._producer.commit_transaction(_SECONDS)

    def abort(self) -> None:
        with self._troubles():
            self._producer.abort_transaction(_SECONDS)

    def crash(self) -> None:
        with contextlib.suppress(Exception):
            self._producer.purge()
            self._producer.poll(0)

    @contextlib.contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except BufferError as full:
            raise ClientError(str(full), Remedy.RETRY) from None
        except self._module.KafkaException as failure:
            error = failure.args[0]
            if error.txn_requires_abort():
                remedy = Remedy.ABORT
            elif error.retriable() and not error.fatal():
                remedy = Remedy.RETRY
            else:
                remedy = Remedy.RESTART
            raise ClientError(f"{error.name()}: {error.str()}", remedy) from None


class ConfluentConsumer:
    def __init__(self, module: Any, settings: Mapping[str, str]) -> None:
        self.consumer = module.Consumer(dict(settings), logger=_SILENT)
        self._module = module
        self._on_assignment: OnAssignment = lambda _: None
        self._new_assignment: set[Place] | None = None
        """An assignment that is not reported yet."""
        self._changes = 0
        self._kept: Received | None = None
        """A message that arrived after a rebalance, in a call that already had messages from before it."""
        self._at_end: set[Place] = set()
        self._failure: ClientError | None = None
        """Why this consumer does not know where to continue."""
        self.metadata: Any = None
        """The membership at the last poll() that returned messages."""

    def assign(self, places: Iterable[Place]) -> None:
        self.consumer.assign([self._module.TopicPartition(topic, partition, 0) for topic, partition in places])

    def subscribe(self, topic: str, on_assignment: OnAssignment) -> None:
        owned: set[Place] = set()

        def assigned(_: Any, partitions: Any) -> None:
            places = [(each.topic, each.partition) for each in partitions]
            self.consumer.assign(self._committed_positions(places))
            owned.update(places)
            self._new_assignment = set(owned)
            self._changes += 1

        def revoked(_: Any, partitions: Any) -> None:
            owned.difference_update((each.topic, each.partition) for each in partitions)
            self._changes += 1

        self._on_assignment = on_assignment
        self.consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)

    def _committed_positions(self, places: list[Place]) -> list[Any]:
        """Where to continue. Not left to librdkafka (up to 2.16), which starts over if a transaction holds the offset
        of a partition that is assigned again: it mistakes a stale UNSTABLE_OFFSET_COMMIT for "no offset"."""
        deadline = monotonic() + _STABLE_S
        while places:
            try:
                found = self.committed(places, _LOOKUP_TIMEOUT_S)
                return _partitions(self._module, {place: max(offset, 0) for place, offset in found.items()})
            except ClientError as error:
                if monotonic() >= deadline:
                    self._failure = ClientError(f"no position: {error}", Remedy.RESTART)
                    break
                threading.Event().wait(0.05)
        return []

    def poll(self, seconds: float, most: int) -> list[Received]:
        """Reads one message at a time, to know which of them arrived before a rebalance.

        Those are returned first. The change is reported when the next call begins to return later ones.
        """
        found: list[Received] = []
        kept, self._kept = self._kept, None
        self._report()
        if kept is not None:
            found.append(kept)
        while len(found) < most:
            before = self._changes
            with self._troubles():
                message = self.consumer.poll(0 if found else seconds)
            if self._failure is not None:
                raise self._failure
            received = self._take(message)
            if self._changes != before and found:
                self._kept = received
                break
            self._report()
            if received is None and (message is None or not found):
                break
            if received is not None:
                found.append(received)
        if found:
            self.metadata = self.consumer.consumer_group_metadata()
        return found

    def _take(self, message: Any) -> Received | None:
        if message is None:
            return None
        place = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            self._at_end.discard(place)
            return _received(message)
        # Connection errors are temporary here; others show up as missing records.
        if error.code() == self._module.KafkaError._PARTITION_EOF:
            self._at_end.add(place)
        return None

    def is_at_end(self, ends: Mapping[Place, int]) -> bool:
        return self._at_end >= {place for place, end in ends.items() if end > 0}

    def _report(self) -> None:
        assignment, self._new_assignment = self._new_assignment, None
        if assignment is not None:
            self._on_assignment(assignment)

    def seek(self, offsets: Mapping[Place, int]) -> None:
        with self._troubles():
            for each in _partitions(self._module, offsets):
                self.consumer.seek(each)

    def commit(self, offsets: Mapping[Place, int]) -> None:
        with self._troubles():
            for each in self.consumer.commit(offsets=_partitions(self._module, offsets), asynchronous=False):
                if each.error is not None:
                    raise self._module.KafkaException(each.error)

    def committed(self, places: Iterable[Place], timeout_s: float = _SECONDS) -> dict[Place, int]:
        with self._troubles():
            asked = [self._module.TopicPartition(topic, partition) for topic, partition in places]
            found = self.consumer.committed(asked, timeout=timeout_s)
        for each in found:
            if each.error is not None:
                raise ClientError(each.error.str(), Remedy.RETRY)
        return {(each.topic, each.partition): max(each.offset, -1) for each in found}

    def generation(self) -> int:
        return -1

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.consumer.close()

    @contextlib.contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except self._module.KafkaException as failure:
            error = failure.args[0]
            remedy = Remedy.RETRY if error.retriable() and not error.fatal() else Remedy.RESTART
            raise ClientError(f"{error.name()}: {error.str()}", remedy) from None


def _received(message: Any) -> Received:
    return Received(message.topic(), message.partition(), message.offset(), message.value() or b"")


def _partitions(module: Any, offsets: Mapping[Place, int]) -> list[Any]:
    return [module.TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
