"""AsyncProducer: queues records for its sender, and returns a Delivery for each."""

import asyncio
import contextlib
import functools
import random
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Self, Unpack

from ottla.checks import require_number
from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.core import unclosed
from ottla.client.core.arguments import Timeout, as_bytes, as_headers, as_timeout_ms, as_timestamp, check_topic
from ottla.client.core.cluster_view import missing_partition, topic_failure
from ottla.client.core.interceptors import (
    ProducerInterceptor,
    ProducerRecord,
    acknowledge,
    check_interceptors,
    intercept_send,
)
from ottla.client.core.metrics import Metrics
from ottla.client.core.model import Bytes, Headers, HeadersLike, RecordMetadata, TopicDescription
from ottla.client.core.network import Network
from ottla.client.core.setting_types import ProducerSettings
from ottla.client.core.settings import ProducerConfig, build
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.arrow_send import ArrowDelivery, ArrowSend
from ottla.client.producer.partitioner import (
    Partitioner,
    StickyPartitioner,
    ask_partitioner,
    find_partitioner,
    partition_for_key,
)
from ottla.client.producer.sender import Sender
from ottla.client.producer.speedups import Delivery, record_size
from ottla.client.transactions.producer_transactions import Offsets, ProducerTransactions
from ottla.client.transactions.requests import GroupMetadata
from ottla.clock import Clock, system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol.api import ApiKey
from ottla.protocol.records.record_batch import HEADER_SIZE

ARROW_PAUSE_BYTES = 1 << 20
"""send_arrow() yields to the event loop after building this many bytes."""

STICKY_BYTES = 65_536
"""Bytes of records without a key that go to one partition before another one is chosen (KIP-794)."""

LATE_CLOSE_MS = 8_000
"""How long a producer that was not closed may take to send its buffered records, at exit or after it was dropped."""

HALF_FREE_TIMEOUT_MS = 20
"""How long to wait until half of a full buffer is free. Waking up for every batch would cost more."""


class AsyncProducer:
    """Sends records, in batches and with retries. Idempotent by default: no losses, no duplicates, in order.

    >>> async with AsyncProducer({"bootstrap.servers": "127.0.0.1:9092"}, linger_ms=20) as producer:
    ...     delivery = await producer.send("orders", b"42 apples", key=b"customer-7")
    ...     metadata = await delivery                # wait for this one record, or …
    ...     await producer.flush()                   # … for all of them
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        partitioner: Partitioner | None = None,
        interceptors: Iterable[ProducerInterceptor] = (),
        on_statistics: Callable[[Metrics], Any] | None = None,
        clock: Clock = system_clock,
        rng: random.Random | None = None,
        **keywords: Unpack[ProducerSettings],
    ) -> None:
        self.config = build(ProducerConfig, settings, keywords)
        self._partitioner = find_partitioner(partitioner, self.config.partitioner_class)
        self._interceptors = check_interceptors(interceptors, ProducerInterceptor)
        self._network = Network(
            self.config,
            max_idle_ms=self.config.metadata_max_idle_ms,
            allow_auto_topic_creation=True,
            clock=clock,
            rng=rng,
        )
        self._clock = clock
        self._accumulator = Accumulator(
            # A batch must fit into a request.
            batch_size=min(self.config.batch_size, self.config.max_request_size),
            linger_ms=self.config.linger_ms,
            buffer_memory=self.config.buffer_memory,
            wake=self._network.wake,
            clock=clock,
        )
        if self._partitioner is None and not self._interceptors:  # these are called for every record, on the slow path
            self._accumulator.known_partitions = self._network.view.partitions
        self._sender = Sender(
            self.config,
            self._accumulator,
            self._network.view,
            backoff=self._network.backoff,
            jitter=self._network.jitter,
            reconnect_at=self._network.reconnect_at,
        )
        self._network.add(self._sender)
        self._transactional = ProducerTransactions(self.config, self._network, self._accumulator, self._sender)
        self._transactional.interceptors = self._interceptors
        view = self._network.view
        self._sticky = StickyPartitioner(
            min(self.config.batch_size, STICKY_BYTES),
            self._network.random.choice,
            # Not a method: without a reference cycle, a dropped producer is closed immediately.
            lambda topic: view.led_partitions(topic) or range(view.find_partition_count(topic) or 1),
        )
        self._record_bytes_max = self.config.max_request_size - HEADER_SIZE
        self._flushing = 0
        self._waiting_for_room = 0
        self._closing = False
        self._network.add_statistics(on_statistics, self._snapshot())
        unclosed.register(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- sending ------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Bytes = None,
        *,
        key: Bytes = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> Delivery:
        """Queues a record and returns its Delivery. Waits only if the buffer is full or the topic is not known yet.

        Text is encoded as UTF-8. Records with equal keys go to the same partition; records without a key fill a batch
        of one partition, then of another one. A custom `partitioner` overrides both.
        """
        if timestamp is None and headers is None:
            delivery = self._accumulator.try_append(topic, value, key, partition)
            if delivery is not None:
                return delivery
        try:  # not `with rejections`: it would cost a tenth of a microsecond per record
            sent = self._send_or_wait(topic, value, key, partition, timestamp, headers)
            return sent if isinstance(sent, Delivery) else await sent
        except BaseException as error:
            self._transactional.note_rejected(error)
            raise

    def _send_or_wait(
        self,
        topic: str,
        value: Bytes,
        key: Bytes,
        partition: int | None,
        timestamp: int | None,
        headers: HeadersLike,
    ) -> Delivery | Coroutine[Any, Any, Delivery]:
        """Queues a record in any thread. Returns its Delivery, or a coroutine for the loop if that has to wait."""
        if self._interceptors:
            record = ProducerRecord(topic, value, key, partition, timestamp, headers)
            topic, value, key, partition, timestamp, headers = intercept_send(self._interceptors, record)
        made_headers = as_headers(headers)  # once: they may come from an iterator
        if partition is None or not self._is_beyond(topic, partition):
            delivery = self._append(topic, value, key, partition, timestamp, made_headers)
            if delivery is not None:
                return delivery
        return self._send_later(topic, value, key, partition, timestamp, made_headers)

    async def _send_later(
        self,
        topic: str,
        value: Bytes,
        key: Bytes,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
    ) -> Delivery:
        """Waits until the topic is known and the buffer has room, then queues the record."""
        self._network.start()
        deadline = self._network.now() + self.config.max_block_ms
        while True:
            await self._until_topic(topic, deadline, partition)
            delivery = self._append(topic, value, key, partition, timestamp, headers)
            if delivery is not None:
                return delivery
            if topic in self._network.view.topics:
                await self._until_room(deadline)

    async def send_and_wait(
        self,
        topic: str,
        value: Bytes = None,
        *,
        key: Bytes = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> RecordMetadata:
        """Sends one record and waits until it is stored: RecordMetadata(topic, partition, offset, timestamp)."""
        sent = await self.send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers)
        stored: RecordMetadata = await sent
        return stored

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
        """As send(), but never waits: None if the topic is not known yet or the buffer is full. Thread-safe."""
        if self._interceptors:
            record = ProducerRecord(topic, value, key, partition, timestamp, headers)
            topic, value, key, partition, timestamp, headers = intercept_send(self._interceptors, record)
        with self._transactional.rejections:
            if self._is_beyond(topic, partition):
                self._refresh_metadata()  # so that it may be known the next time
            return self._append(topic, value, key, partition, timestamp, as_headers(headers))

    async def send_arrow(self, table: Any, topic: str | None = None) -> ArrowDelivery:
        """Queues all rows of a pyarrow Table or RecordBatch and returns their ArrowDelivery.

        Columns: value, and optionally key, topic, partition, timestamp, headers. `topic` applies to all rows. Rows go
        to the partitions that send() would choose, in their order. All rows are checked before the first is sent.
        """
        self._raise_if_over()
        self._network.start()
        with self._transactional.rejections:
            sending = self._sending(table, topic)
            await self._until_topics(sending)
            for _ in sending.planning():
                await asyncio.sleep(0)
            since_pause = 0
            for batch in sending.batches():
                self._raise_if_over()
                try:
                    while not self._accumulator.add_batch(batch):
                        await self._until_room_again()
                except KafkaError as error:
                    raise sending.explain(error) from None
                since_pause += batch.size_bytes
                if since_pause >= ARROW_PAUSE_BYTES:  # let the network and other tasks run
                    since_pause = 0
                    await asyncio.sleep(0)
            return sending.delivery

    def _sending(self, table: Any, topic: str | None) -> ArrowSend:
        sending = ArrowSend(
            table,
            topic,
            config=self.config,
            view=self._network.view,
            accumulator=self._accumulator,
            sticky=self._sticky,
            record_bytes_max=self._record_bytes_max,
            clock=self._clock,
        )
        if self._partitioner is not None and "partition" not in table.schema.names:
            raise OttlaError("send_arrow() cannot call a custom partitioner", "Add a partition column.")
        return sending

    async def _until_topics(self, sending: ArrowSend) -> None:
        self._network.start()
        deadline = self._network.now() + self.config.max_block_ms
        for name in sorted(sending.topics):
            await self._until_topic(name, deadline, sending.highest_partition)

    async def _until_room_again(self) -> None:
        await self._until_room(self._network.now() + self.config.max_block_ms)
        self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._sender.fatal_error is not None:
            raise self._sender.fatal_error
        if self._closing:
            raise OttlaError("this producer is closed", "Create a new one.")

    def _append(
        self,
        topic: str,
        value: Bytes,
        key: Bytes,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
    ) -> Delivery | None:
        """Adds a record that `try_append` could not add. A record that is rejected leaves nothing behind."""
        self._raise_if_over()
        if type(topic) is not str or not topic:
            check_topic(topic)
        if type(value) is not bytes:
            value = as_bytes(value, "value")
        if key is not None and type(key) is not bytes:
            key = as_bytes(key, "key")
        if partition is not None and type(partition) is not int:
            partition = require_number(partition, "a record's partition")
        if timestamp is not None:
            timestamp = as_timestamp(timestamp)
        size_bytes = record_size(key, value, headers)
        if size_bytes > self._record_bytes_max:
            detail = f"a record of {size_bytes} bytes is larger than max.request.size ({self.config.max_request_size})"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
        partitions = self._network.view.partitions.get(topic)
        if partitions is None:
            if self._accumulator.refusal is not None:
                raise self._accumulator.refusal.with_traceback(None)
            return None
        topic_queues = self._accumulator.topics.get(topic)
        if topic_queues is None or topic_queues.partitions is not partitions:
            self._sticky.forget(topic)
            topic_queues = self._accumulator.open_topic(topic, partitions)
        if partition is None and self._partitioner is not None:
            partition = ask_partitioner(self._partitioner, topic, key, value, len(partitions))
        if partition is None:
            if key is not None:
                partition = partition_for_key(key, len(partitions))
            else:
                partition = self._sticky.partition(topic, size_bytes)
                topic_queues.sticky = self._sticky.find_current(topic)
        elif not 0 <= partition < len(partitions):
            raise missing_partition(topic, partition, len(partitions))
        if timestamp is None:
            timestamp = self._clock()
        delivery = self._accumulator.append(partitions[partition], timestamp, key, value, headers, size_bytes)
        if self._interceptors and delivery is not None:
            delivery.add_done_callback(functools.partial(acknowledge, self._interceptors))
        return delivery

    def _is_beyond(self, topic: str, partition: int | None) -> bool:
        """Whether a partition is not in the metadata. Its topic may have gained partitions since."""
        if partition is None:
            return False
        known = self._network.view.find_partition_count(topic) if type(topic) is str else None
        return known is not None and require_number(partition, "a record's partition") >= known

    def _refresh_metadata(self) -> None:
        self._network.view.request_update()
        self._network.wake()

    async def _until_topic(self, topic: str, deadline: int, partition: int | None = None) -> None:
        """Waits until the topic is known. Refreshes the metadata once if it does not have this partition."""
        view = self._network.view
        if topic in view.topics:
            if self._is_beyond(topic, partition):
                before = view.version
                self._refresh_metadata()
                await self._network.until(lambda: view.version > before, max(0, deadline - self._network.now()))
            return
        self._accumulator.loop = (
            asyncio.get_running_loop()
        )  # set before the first record: its topic must be known first
        before = view.version if topic in view.topic_errors else -1
        view.want(topic, self._network.now())
        if before >= 0:
            view.request_update()  # the error may be gone by now
        self._network.wake()

        def settled() -> bool:
            error = view.topic_errors.get(topic)
            return topic in view.topics or (error is not None and not error.retriable and view.version > before)

        if not await self._network.until(settled, max(0, deadline - self._network.now())):
            if not view.brokers:
                raise self._network.out_of_time(self.config.max_block_ms)
            if view.last_error is not None:
                raise view.last_error
            limit = f"max.block.ms ({self.config.max_block_ms} ms)"
            detail = f"topic {topic} did not appear within {limit}{self._network.timeout_reason()}"
            raise KafkaError(view.topic_errors.get(topic, ErrorCode.REQUEST_TIMED_OUT), detail)
        if topic not in view.topics:
            raise topic_failure(view.topic_errors[topic], topic)

    async def _until_room(self, deadline: int) -> None:
        """Waits until some of the buffer is free. Meanwhile batches do not linger."""
        accumulator = self._accumulator
        self._waiting_for_room += 1
        self._sender.memory_is_short = True
        try:
            # At least some memory must be released: a large record may not fit although half of the buffer is free.
            full = accumulator.buffered_bytes
            half = max(0, min(accumulator.buffer_memory // 2, full - 1))
            left_ms = max(0, deadline - self._network.now())
            free = await self._network.until(
                lambda: accumulator.buffered_bytes <= half or self._sender.fatal_error is not None,
                min(HALF_FREE_TIMEOUT_MS, left_ms),
            )
            if not free:  # half may never become free while a partition with many records has no leader
                free = await self._network.until(
                    lambda: accumulator.buffered_bytes < full or self._sender.fatal_error is not None,
                    max(0, left_ms - HALF_FREE_TIMEOUT_MS),
                )
        finally:
            self._waiting_for_room -= 1
            self._sender.memory_is_short = self._waiting_for_room > 0
        if not free:
            detail = (
                f"buffer.memory ({accumulator.buffer_memory} bytes) stayed full for "
                f"max.block.ms ({self.config.max_block_ms} ms)"
            )
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)

    # --- transactions -------------------------------------------------------------------------------------

    async def init_transactions(
        self, *, keep_prepared: bool = False, timeout_ms: Timeout | None = None
    ) -> PreparedTransaction | None:
        """Registers the transactional id. Fences older producers with the same id and aborts their transactions.

        Call it once, before the first transaction. With `keep_prepared` (and two-phase commit) a prepared transaction
        is kept and returned; commit or abort it before anything else.
        """
        return await self._transactional.init(keep_prepared=keep_prepared, timeout_ms=timeout_ms)

    async def begin_transaction(self) -> None:
        """Starts a transaction. All records sent until the commit become visible atomically."""
        self._transactional.require_manager("begin_transaction()").begin()

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group: str | GroupMetadata | Any, *, timeout_ms: Timeout | None = None
    ) -> None:
        """Commits a group's offsets as part of the transaction.

        Pass the result of `consumer.group_metadata()` as `group`: then the call fails if the consumer has lost its
        partitions (KIP-447). With a plain group id nothing is checked.
        """
        await self._transactional.send_offsets(offsets, group, timeout_ms)

    async def commit_transaction(self, *, timeout_ms: Timeout | None = None) -> None:
        """Flushes the buffered records, then commits. If it raises REQUEST_TIMED_OUT, call it again."""
        await self._transactional.end(commit=True, timeout_ms=timeout_ms)

    async def abort_transaction(self, *, timeout_ms: Timeout | None = None) -> None:
        """Drops the buffered records and aborts. read_committed consumers never see the records already sent."""
        await self._transactional.end(commit=False, timeout_ms=timeout_ms)

    async def prepare_transaction(self, *, timeout_ms: Timeout | None = None) -> PreparedTransaction:
        """Flushes everything and leaves the transaction open (KIP-939). close() does not end it.

        `admin.commit_prepared()` or `admin.abort_prepared()` completes it, in this process or another.
        """
        return await self._transactional.prepare(timeout_ms)

    async def continue_as(self, transactional_id: str) -> None:
        """Switches to another transactional id on the same connections. Call init_transactions() next.

        A transaction that was prepared under the old id stays prepared.
        """
        self._transactional.continue_as(transactional_id)
        self.config = self._transactional.config

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commits at the end of the block, aborts if the block raises.

        >>> async with producer.transaction():
        ...     await producer.send("orders", b"42 apples")
        """
        await self.begin_transaction()
        try:
            yield
            if self._transactional.can_end:
                await self.commit_transaction()
        except BaseException:
            if self._transactional.can_end:
                await asyncio.shield(self.abort_transaction())
            raise

    # --- waiting ------------------------------------------------------------------------------------------

    async def flush(self, timeout_ms: Timeout | None = None) -> None:
        """Waits until all records sent so far are stored or have failed. Their Deliveries show which."""
        if timeout_ms is None:  # by then all of them are stored or have failed
            wait_ms = self.config.delivery_timeout_ms + self.config.request_timeout_ms
        else:
            wait_ms = as_timeout_ms(timeout_ms)
        waiting = self._accumulator.outcomes()
        if not waiting:
            return
        self._flushing += 1
        self._accumulator.is_flushing = True

        def finished() -> bool:
            while waiting and waiting[-1].is_done:
                waiting.pop()
            return not waiting

        try:
            if not await self._network.until(finished, wait_ms):
                detail = f"{len(waiting)} batches are still in flight after {wait_ms} ms"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)
        finally:
            self._flushing -= 1
            self._accumulator.is_flushing = self._flushing > 0

    async def partitions_for(self, topic: str) -> TopicDescription:
        """A topic and its partitions. Waits up to `max.block.ms` for the metadata."""
        check_topic(topic)
        self._network.start()
        await self._until_topic(topic, self._network.now() + self.config.max_block_ms)
        return self._network.view.topics[topic]

    async def close(self, timeout_ms: Timeout | None = None) -> None:
        """Sends the buffered records (for at most `timeout_ms`; 0 drops them) and closes the connections."""
        wait_ms = None if timeout_ms is None else as_timeout_ms(timeout_ms)
        if self._closing:
            return
        self._closing = True
        self._accumulator.stop(OttlaError("this producer is closed", "Create a new one."))
        try:
            if wait_ms != 0:
                started = self._network.now()
                await self._transactional.end_at_close(wait_ms)
                left_ms = None if wait_ms is None else max(0, started + wait_ms - self._network.now())
                await self.flush(left_ms)
        except KafkaError as error:
            if error.code != ErrorCode.REQUEST_TIMED_OUT:
                raise
        finally:
            await asyncio.shield(self._shut(is_intended=wait_ms == 0))

    async def _shut(self, *, is_intended: bool) -> None:
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed before the record was stored")
        self._sender.abandon(error, is_intended=is_intended)
        await self._network.close()

    # --- metrics ------------------------------------------------------------------------------------------

    async def metrics(self) -> Metrics:
        """The producer's metrics, under the names of the Java client."""
        return self._metrics_now()

    def _metrics_now(self) -> Metrics:
        """The same from any thread."""
        with self._network.lock:
            return self._snapshot()()

    def _snapshot(self) -> Callable[[], Metrics]:
        # Without a reference to the producer, so that it can be dropped.
        sender, accumulator, network = self._sender, self._accumulator, self._network

        def snapshot() -> Metrics:
            return {
                "record-send-total": sender.records_sent,
                "record-error-total": sender.records_failed,
                "record-retry-total": sender.batches_retried,
                "batch-send-total": sender.batches_sent,
                "outgoing-byte-total": sender.bytes_sent,
                "buffer-total-bytes": accumulator.buffer_memory,
                "buffer-available-bytes": accumulator.buffer_memory - accumulator.buffered_bytes,
                "batches-unfinished": len(accumulator.unfinished),
                **network.requests.snapshot(),
                **network.requests.throttling(ApiKey.PRODUCE),
            }

        return snapshot

    # --- if it is not closed ------------------------------------------------------------------------------

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At interpreter shutdown globals may be None, and the exit handler has already closed open clients.
        if not is_finalizing():
            unclosed.dropped(self)

    def _open_network(self) -> Network | None:
        return self._network if self._network.is_abandoned else None

    def _unclosed_name(self) -> str:
        return f"producer {self.config.client_id}"

    def _unclosed_work(self) -> str:
        count = len(self._accumulator.unfinished)
        return f"{count} batches of records were not stored yet" if count else ""

    def _close_late(self) -> Coroutine[Any, Any, None]:
        return self.close(LATE_CLOSE_MS)
