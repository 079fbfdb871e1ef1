"""The record accumulator: collects records into batches. Shared by the threads of the user and of the network."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.client.core.model import Headers
from ottla.client.producer.speedups import (
    AppendableBatch,
    BatchOutcome,
    Delivery,
    PartitionQueue,
    RecordAppender,
    TopicQueues,
    record_size,
)
from ottla.clock import Clock, system_clock, system_clock_ns
from ottla.protocol.records.record_batch import HEADER_SIZE, Codec, build_batch
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import asyncio

    from ottla.client.core.cluster_view import Leader
    from ottla.client.producer.hot_path import Row


class ProducerBatch(AppendableBatch):
    """Records for one partition that the broker stores atomically, and the batch's delivery state."""

    __slots__ = (
        "attempts",
        "attempts_there",
        "awaits_leader",
        "base_sequence",
        "created_at",
        "encoded",
        "maybe_appended",
        "order",
        "partition",
        "producer_epoch",
        "producer_id",
        "retry_at",
        "sent_sequence",
        "sent_to",
    )

    def __init__(self, partition: TopicPartition, order: tuple[int, ...]) -> None:
        super().__init__(BatchOutcome(partition))
        self.partition = partition
        self.order = order
        """Number of the batch within its partition, so that a retried batch returns to its place. (3, 0) and (3, 1)
        are the halves of batch (3,) after a split."""
        self.created_at = -1
        """Loop time when the network task first sees the batch (the user's thread cannot read the loop's clock)."""
        self.attempts = 0
        self.retry_at = 0
        self.sent_to: Leader | None = None
        """The leader that got the batch last."""
        self.attempts_there = 0
        """How often that leader got it, in a row."""
        self.awaits_leader = False
        """It failed with an error that may not occur at another leader."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        """-1 until the batch is first sent by an idempotent producer."""
        self.sent_sequence = -1
        """The sequence in the request in flight. Differs from `base_sequence` after an earlier batch has failed."""
        self.maybe_appended = False
        """The response was lost, so the broker may have stored the batch."""
        self.encoded: bytes | bytearray | None = None

    @property
    def record_count(self) -> int:
        return len(self.records)

    def rows(self) -> "list[Row]":
        """The records, to build other batches from."""
        return self.records

    def number(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Assigns producer id, epoch and sequence number."""
        if (producer_id, producer_epoch, base_sequence) != (self.producer_id, self.producer_epoch, self.base_sequence):
            self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence
            self.encoded = None

    def encode(self, codec: Codec, level: int | None, transactional: bool = False) -> bytes | bytearray:
        """The encoded batch. Retries send the same bytes, unless the batch was renumbered."""
        if self.encoded is None:
            self.encoded = build_batch(
                self.records,
                codec=codec,
                level=level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                transactional=transactional,
            )
        return self.encoded


class Accumulator(RecordAppender):
    """Batches that wait to be sent, by partition, within `buffer.memory`.

    The base class has the fast path, `try_append`; this class has the slow path `append` and what the network task
    needs. The fast path takes no lock and may run between any two lines here, so the state it uses (the reserved
    memory, the open batch, the refusal) is changed only through methods of the base class.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: int,
        buffer_memory: int,
        wake: Callable[[], None],
        clock: Clock = system_clock,
    ) -> None:
        """`wake` wakes the network task; it is called once or twice per batch."""
        super().__init__(batch_size, buffer_memory, clock, system_clock_ns if clock is system_clock else None)
        self._wake = wake
        self.linger_ms = linger_ms
        self.is_flushing = False
        """While set, batches do not linger."""
        self.unfinished: set[ProducerBatch] = set()
        """Batches that are neither stored nor failed, queued or in flight."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that sends the batches, once it is known."""
        self._stopped_by: Exception | None = None
        self._lock = threading.Lock()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._waiting: dict[TopicPartition, PartitionQueue] = {}
        """The queues with batches (and some that are empty by now), so that idle partitions cost nothing."""

    # --- called by the user's thread ----------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size_bytes: int,
    ) -> Delivery | None:
        """Appends a record to the partition's last batch; None while `buffer.memory` is exhausted. Any thread."""
        row = (timestamp, key, value, headers)
        wake = False
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            if not self.reserve(size_bytes):
                return None
            queue = self._queue(partition)
            delivery = None
            try:
                if queue.batches and not queue.batches[-1].is_full:
                    batch = queue.batches[-1]
                    delivery = self.append_to(batch, row, size_bytes)
                if delivery is None:
                    if queue.batches:
                        queue.batches[-1].is_full = True
                    batch = self._new_batch(queue)
                    delivery = self.append_to(batch, row, size_bytes)
                    assert delivery is not None, "an empty batch takes any record"
                    queue.batches.append(batch)
                    self._waiting[partition] = queue
                    self.unfinished.add(batch)
                    queue.open_batch = batch
                    wake = True
            except BaseException:
                # Release the memory of a record that is in no queued batch: nothing else would.
                if delivery is None or batch not in queue.batches:
                    self.release(size_bytes)
                raise
            if batch.size_bytes >= self.batch_size:
                batch.is_full = wake = True
        if wake:
            self._wake()
        return delivery

    def add_batch(self, batch: ProducerBatch) -> bool:
        """Queues a batch that is closed for further records. False while there is no memory for it. Any thread."""
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            if not self.reserve(batch.size_bytes - HEADER_SIZE):
                return False
            queue = self._queue(batch.partition)
            if queue.batches:
                self.close_batch(queue, queue.batches[-1])
            batch.order = (queue.next_order,)
            batch.outcome.loop = self.loop
            queue.next_order += 1
            self.unfinished.add(batch)
            queue.batches.append(batch)
            self._waiting[batch.partition] = queue
        self._wake()
        return True

    def open_topic(self, topic: str, partitions: tuple[TopicPartition, ...]) -> TopicQueues:
        """Enables the fast path for a topic with these partitions."""
        with self._lock:
            topic_queues = TopicQueues(partitions, [self._queue(partition) for partition in partitions])
            self.topics[topic] = topic_queues
            return topic_queues

    def refuse(self, refusal: Exception | None) -> None:
        """Refuses further records; all earlier ones are in `unfinished`. None accepts records again."""
        with self._lock:
            super().refuse(self._stopped_by or refusal)

    def stop(self, reason: Exception) -> None:
        """Refuses further records permanently."""
        self._stopped_by = self._stopped_by or reason
        self.refuse(reason)

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition)
        return queue

    def _new_batch(self, queue: PartitionQueue) -> ProducerBatch:
        batch = ProducerBatch(queue.partition, (queue.next_order,))
        batch.outcome.loop = self.loop
        queue.next_order += 1
        return batch

    # --- called by the network task -----------------------------------------------------------------------

    def partitions(self, now: int) -> list[TopicPartition]:
        """The partitions with queued batches."""
        with self._lock:
            self._waiting = {partition: queue for partition, queue in self._waiting.items() if queue.batches}
            for queue in self._waiting.values():
                for batch in reversed(queue.batches):
                    if batch.created_at >= 0:
                        break
                    batch.created_at = now
            return list(self._waiting)

    def head(self, partition: TopicPartition) -> ProducerBatch | None:
        queue = self._queues.get(partition)
        return queue.batches[0] if queue is not None and queue.batches else None

    def ready_at(self, partition: TopicPartition, memory_is_short: bool) -> int:
        """When the first batch of a partition may be sent: its backoff is over, and it is full or has lingered."""
        batches = self._queues[partition].batches
        batch: ProducerBatch = batches[0]
        if batch.is_full or batch.attempts or self.is_flushing or memory_is_short or len(batches) > 1:
            return batch.retry_at
        return max(batch.retry_at, batch.created_at + self.linger_ms)

    def take(self, partition: TopicPartition, now: int) -> ProducerBatch:
        """Takes the first batch for sending and closes it for further records."""
        with self._lock:
            queue = self._queues[partition]
            batch: ProducerBatch = queue.batches.popleft()
            self.close_batch(queue, batch)
            if batch.created_at < 0:
                batch.created_at = now
            return batch

    def put_back(self, batch: ProducerBatch) -> None:
        """Puts a batch back in its place in the queue, for a retry."""
        with self._lock:
            self._insert(batch)

    def _insert(self, batch: ProducerBatch) -> None:
        queue = self._waiting[batch.partition] = self._queues[batch.partition]
        batches, position = queue.batches, 0
        while position < len(batches) and batches[position].order < batch.order:
            position += 1
        batches.insert(position, batch)

    def outcomes(self) -> list[BatchOutcome]:
        """The outcomes of all unfinished batches."""
        with self._lock:
            return [batch.outcome for batch in self.unfinished]

    def queued(self, partition: TopicPartition) -> list[ProducerBatch]:
        """All queued batches of a partition, including those just added by a user's thread."""
        with self._lock:
            return list(self._queues[partition].batches) if partition in self._queues else []

    def take_late(self, partition: TopicPartition, deadline: int) -> list[ProducerBatch]:
        """Takes the batches that were created at or before `deadline`."""
        with self._lock:
            queue = self._queues[partition]
            late: list[ProducerBatch] = []
            # The queue is ordered by age.
            while queue.batches and 0 <= queue.batches[0].created_at <= deadline:
                batch = queue.batches.popleft()
                self.close_batch(queue, batch)
                late.append(batch)
            return late

    def drop(self, batches: Iterable[ProducerBatch]) -> None:
        """Removes queued batches that will not be sent."""
        with self._lock:
            for batch in batches:
                queue = self._queues[batch.partition]
                self.close_batch(queue, batch)
                queue.batches.remove(batch)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """Replaces a batch that was too large by two halves, queued in its place (KIP-126)."""
        rows = batch.rows()
        middle = len(rows) // 2
        outcomes = batch.outcome.split(middle)
        halves = []
        with self._lock:
            for i, records in enumerate((rows[:middle], rows[middle:])):
                half = ProducerBatch(batch.partition, (*batch.order, i))
                half.created_at = batch.created_at
                half.records = records
                half.size_bytes = HEADER_SIZE + sum(record_size(k, v, h) for _, k, v, h in records)
                half.outcome = outcomes[i]
                half.is_full = True
                half.attempts = batch.attempts
                self._insert(half)
                halves.append(half)
            self.unfinished.update(halves)
            self.unfinished.discard(batch)
        return halves

    def finish(self, batch: ProducerBatch) -> None:
        """Releases the memory of a batch that was stored or has failed."""
        with self._lock:
            self.release(batch.size_bytes - HEADER_SIZE)
            self.unfinished.discard(batch)
