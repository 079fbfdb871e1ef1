"""Admin, Producer and Consumer for code without an event loop: one line a method, over a private loop thread."""

import abc
import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.client.admin.admin import AsyncAdmin
from ottla.client.admin.features import FeatureAdmin
from ottla.client.admin.groups import GroupAdmin
from ottla.client.admin.prepared import PreparedAdmin
from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.consumer.arrow import iteration_wait_ms
from ottla.client.consumer.consumer import AsyncConsumer, PartitionLike
from ottla.client.consumer.consumer_arguments import ByPartition, check_timeout
from ottla.client.core.arguments import as_headers
from ottla.client.core.callers_thread import Call, CallersThread
from ottla.client.core.documented import documented_by
from ottla.client.core.model import (
    ApiVersionRange,
    Bytes,
    ClusterDescription,
    ConfigEntry,
    ConsumerRecord,
    CreatedTopic,
    HeadersLike,
    LogDirectory,
    NewTopic,
    OffsetAndTimestamp,
    RecordMetadata,
    Records,
    TopicDescription,
)
from ottla.client.group.group_consumer import GroupConsumer, OffsetLike
from ottla.client.producer.arrow_send import ArrowDelivery
from ottla.client.producer.delivery import Delivery, Sending
from ottla.client.producer.producer import AsyncProducer
from ottla.client.transactions.transactional import Transactional
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class LoopThread:
    """A private event loop for blocking callers. Started on first use in each process, so forks are safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.process = object()
        """Stands for this process; a child made by fork() has another."""

    def call(self, coroutine: Coroutine[Any, Any, T], work_here: CallersThread | None = None) -> T:
        """Runs a coroutine on the loop and waits for it (doing what comes with `work_here`). Ctrl-C breaks it off."""
        loop = self._running_loop()
        if asyncio._get_running_loop() is loop:
            coroutine.close()
            raise OttlaError("a blocking call inside a callback would wait for itself", "Use the async client there.")
        if work_here is not None:
            return work_here.wait(coroutine, loop)
        return Call(coroutine, loop).wait()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = _new_loop()
                threading.Thread(target=self._loop.run_forever, name="ottla-client", daemon=True).start()
            return self._loop


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_io = LoopThread()
# Threads do not survive a fork, and neither does a lock that one of them held: a child starts with nothing.
os.register_at_fork(after_in_child=_io.__init__)  # type: ignore[misc]


class _Blocking(abc.ABC):
    """What the three faces share: calls go to the loop thread of the process that made the client."""

    _work_here: CallersThread | None = None

    def __init__(self) -> None:
        self._process = _io.process

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_process()
        except OttlaError:
            coroutine.close()
            raise
        return _io.call(coroutine, self._work_here)

    def _check_process(self) -> None:
        if self._process is not _io.process:
            raise OttlaError(
                "this client was made in another process", "Connections do not survive a fork: make it after forking."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connections."""


@documented_by(AsyncAdmin)
class Admin(GroupAdmin, TransactionAdmin, PreparedAdmin, FeatureAdmin, _Blocking):
    """Asks about the cluster and changes it. As AsyncAdmin, but each call waits.

    >>> with Admin({"bootstrap.servers": "127.0.0.1:9092"}) as admin:
    ...     admin.create_topic("orders", partitions=3)
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        super().__init__()
        self._async = AsyncAdmin(settings, **keywords)
        self.config = self._async.config

    def close(self) -> None:
        return self._call(self._async.close())

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        return self._call(self._async.create_topics(topics, validate_only=validate_only))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> CreatedTopic:
        return self._call(
            self._async.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
        )

    def list_topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        return self._call(self._async.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        return self._call(self._async.describe_topics(names))

    def delete_topics(self, names: Sequence[str]) -> None:
        return self._call(self._async.delete_topics(names))

    def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        return self._call(self._async.create_partitions(totals, validate_only=validate_only))

    def describe_configs(
        self, kind: str, name: str, *, names: Iterable[str] | None = None, with_documentation: bool = False
    ) -> list[ConfigEntry]:
        return self._call(self._async.describe_configs(kind, name, names=names, with_documentation=with_documentation))

    def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        return self._call(self._async.alter_configs(kind, name, changes, validate_only=validate_only))

    def delete_records(self, before: ByPartition[int]) -> dict[TopicPartition, int]:
        return self._call(self._async.delete_records(before))

    def list_offsets(
        self, wanted: ByPartition[int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._call(self._async.list_offsets(wanted, isolation_level=isolation_level))

    def count_records(self, names: Sequence[str]) -> dict[str, int]:
        return self._call(self._async.count_records(names))

    def describe_cluster(self) -> ClusterDescription:
        return self._call(self._async.describe_cluster())

    def describe_api_versions(self, node_id: int | None = None) -> list[ApiVersionRange]:
        return self._call(self._async.describe_api_versions(node_id))

    def describe_log_dirs(self, node_ids: Sequence[int] | None = None) -> list[LogDirectory]:
        return self._call(self._async.describe_log_dirs(node_ids))


@documented_by(AsyncProducer)
class Producer(Transactional, Sending, _Blocking):
    """Sends records, in batches and with retries. As AsyncProducer, for any number of threads.

    >>> with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
    ...     delivery = producer.send("orders", b"42 apples", key=b"customer-7")
    ...     print(delivery.result().offset)
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        _Blocking.__init__(self)
        self._async = AsyncProducer(settings, **keywords)
        Sending.__init__(self, self._async._accumulator)
        self.config = self._async.config

    def _send_slowly(
        self, topic: str, value: Bytes, key: Bytes, partition: int | None, timestamp: int | None, headers: HeadersLike
    ) -> Delivery:
        """What send() does with a record that needs something special. Crosses to the loop once a batch."""
        self._check_process()
        headers = as_headers(headers)  # once: they may come from an iterator
        if not self._async._is_beyond(topic, partition):
            delivery = self._async._append(topic, value, key, partition, timestamp, headers)
            if delivery is not None:
                return delivery
        return self._call(
            self._async.send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers)
        )

    def try_send(
        self,
        topic: str,
        value: Bytes = None,
        *,
        key: Bytes = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> Delivery | None:
        self._check_process()
        return self._async.try_send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers)

    def send_and_wait(
        self,
        topic: str,
        value: Bytes = None,
        *,
        key: Bytes = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> RecordMetadata:
        return self.send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers).result()

    def send_arrow(self, table: Any, topic: str | None = None) -> ArrowDelivery:
        """Hands all rows of a pyarrow Table or RecordBatch over and returns the promise of them.

        Columns: value, and where wanted key, topic, partition, timestamp, headers; `topic` here counts for all rows.
        Rows go where send() would send them, in their order. All are looked at before the first is sent.
        """
        self._check_process()
        producer = self._async
        producer._raise_if_over()
        sending = producer._sending(table, topic)
        self._call(producer._until_topics(sending))
        sending.plan()
        # Batches are built here, in the caller's thread, while the loop sends those before.
        for batch in sending.batches():
            producer._raise_if_over()
            try:
                while not producer._accumulator.add_batch(batch):
                    self._call(producer._until_room_again())
            except KafkaError as error:
                raise sending.explain(error) from None
        return sending.delivery

    def flush(self, timeout_ms: int | None = None) -> None:
        return self._call(self._async.flush(timeout_ms))

    def partitions_for(self, topic: str) -> TopicDescription:
        return self._call(self._async.partitions_for(topic))

    def close(self, timeout_ms: int | None = None) -> None:
        return self._call(self._async.close(timeout_ms))


@documented_by(AsyncConsumer)
class Consumer(GroupConsumer, _Blocking):
    """Reads records, with a group or alone. As AsyncConsumer, for one thread at a time.

    >>> with Consumer({"bootstrap.servers": "127.0.0.1:9092"}, group_id="billing") as consumer:
    ...     consumer.subscribe(["orders"])
    ...     for record in consumer.poll(1000):
    ...         print(record.offset, record.value)
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        super().__init__()
        self._async = AsyncConsumer(settings, **keywords)
        self._one_at_a_time = threading.Lock()
        self._owner: int | None = None
        self._work_here = CallersThread()
        self._here = self._work_here.wrap
        self.config = self._async.config

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._owner == threading.get_ident():  # a listener, called while its own thread is in poll()
            return super()._call(coroutine)
        if not self._one_at_a_time.acquire(blocking=False):
            coroutine.close()
            raise OttlaError(
                "a consumer is not safe for use by several threads at once",
                "Give each thread its own consumer; only wakeup() may be called from another thread.",
            )
        self._owner = threading.get_ident()
        try:
            return super()._call(coroutine)
        finally:
            self._owner = None
            self._one_at_a_time.release()

    def _take(self, take: Callable[[], T | None]) -> T | None:
        """What waits to be taken, without a detour over the loop; None where there is more to it."""
        if self._process is not _io.process or not self._one_at_a_time.acquire(blocking=False):
            return None
        try:
            return self._async._take_here(take)
        finally:
            self._one_at_a_time.release()

    def _hand_over(self, take: Callable[[], T | None], poll: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What waits to be taken, or else what `poll` brings. What Ctrl-C keeps from the caller comes again."""
        try:
            taken = self._take(take) or self._call(poll())
            self._async._given_out()
            return taken
        except Exception:
            raise
        except BaseException:
            with contextlib.suppress(Exception):
                self._call(self._async._give_back())
            raise

    def __exit__(self, *failure: object) -> None:
        return self._call(self._async.__aexit__(*failure))

    def close(self, timeout_ms: int | None = None) -> None:
        return self._call(self._async.close(timeout_ms))

    def assign(self, partitions: Iterable[PartitionLike]) -> None:
        return self._call(self._async.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        return self._call(self._async.assignment())

    def partitions_for(self, topic: str, timeout_ms: int | None = None) -> TopicDescription:
        return self._call(self._async.partitions_for(topic, timeout_ms))

    def pause(self, partitions: Iterable[PartitionLike]) -> None:
        return self._call(self._async.pause(partitions))

    def resume(self, partitions: Iterable[PartitionLike]) -> None:
        return self._call(self._async.resume(partitions))

    def paused(self) -> set[TopicPartition]:
        return self._call(self._async.paused())

    def seek(self, partition: PartitionLike, offset: OffsetLike) -> None:
        return self._call(self._async.seek(partition, offset))

    def seek_to_beginning(self, partitions: Iterable[PartitionLike] = ()) -> None:
        return self._call(self._async.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[PartitionLike] = ()) -> None:
        return self._call(self._async.seek_to_end(partitions))

    def position(self, partition: PartitionLike, timeout_ms: int | None = None) -> int:
        return self._call(self._async.position(partition, timeout_ms))

    def lag(self, partition: PartitionLike) -> int | None:
        return self._call(self._async.lag(partition))

    def is_at_end(self) -> bool:
        return self._call(self._async.is_at_end())

    def beginning_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        return self._call(self._async.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        return self._call(self._async.end_offsets(partitions))

    def offsets_for_times(self, times: ByPartition[int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._call(self._async.offsets_for_times(times))

    def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> Records:
        if type(timeout_ms) is not int:
            check_timeout(timeout_ms)  # also when there is nothing to wait for
        return self._hand_over(
            lambda: self._async._take_records(max_records),
            lambda: self._async.poll(timeout_ms, max_records=max_records),
        )

    def poll_arrow(
        self,
        timeout_ms: int = 0,
        *,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> "pa.RecordBatch":
        if type(timeout_ms) is not int:
            check_timeout(timeout_ms)
        return self._hand_over(
            self._async._arrow_taker(max_records, timestamp_unit, columns),
            lambda: self._async.poll_arrow(
                timeout_ms, max_records=max_records, timestamp_unit=timestamp_unit, columns=columns
            ),
        )

    def iter_arrow(
        self,
        *,
        timeout_ms: int | None = None,
        until_end: bool = False,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> "Iterator[pa.RecordBatch]":
        """poll_arrow() again and again: for ever; or `until_end`, until all that is assigned has been read to its end;
        or until nothing came for `timeout_ms`, which may also mean that the broker was slow.
        """
        wait_ms = iteration_wait_ms(timeout_ms, until_end)
        while not (until_end and self.is_at_end()):
            batch = self.poll_arrow(
                wait_ms,
                max_records=max_records,
                timestamp_unit=timestamp_unit,
                columns=columns,
            )
            if batch.num_rows:
                yield batch
            elif timeout_ms is not None:
                return

    def __iter__(self) -> Iterator[ConsumerRecord]:
        backlog = self._async._backlog.ready
        while True:
            if self._take(self._async._take_into_backlog):
                self._async._given_out()
            else:
                self._call(self._async._fill_backlog())
            while backlog:
                yield backlog.popleft()

    def wakeup(self) -> None:
        """Makes a poll() that waits in another thread, or the next one, raise WakeupError."""
        self._check_process()
        return _io.call(self._async.wakeup())
