"""Records into batches: the one object that a user's thread and the network's both touch."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.client.core.model import Headers
from ottla.client.producer.delivery import BatchOutcome, Delivery, Intake, Lane, OpenBatch, TopicLanes, record_size
from ottla.clock import Clock, system_clock, system_clock_ns
from ottla.protocol.record_batch import HEADER_SIZE, Codec, build_batch
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import asyncio

    from ottla.client.producer.intake import Row


class ProducerBatch(OpenBatch):
    """Records for one partition that are stored together or not at all, and how far they have come."""

    __slots__ = (
        "attempts",
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
    )

    def __init__(self, partition: TopicPartition, order: tuple[int, ...]) -> None:
        super().__init__(BatchOutcome(partition))
        self.partition = partition
        self.order = order
        """Counts the batches of a partition, so that retried ones go back to their place; (3, 0) is a half of (3,)."""
        self.created_at = -1
        """Set when the network first sees the batch: a user's thread cannot tell the loop's time."""
        self.attempts = 0
        self.retry_at = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        """-1 until the batch is first sent by an idempotent producer."""
        self.sent_sequence = -1
        """What the request under way carries; differs once an earlier batch has failed and this one moved up."""
        self.maybe_appended = False
        """An answer was lost, so nobody knows whether the broker stored it."""
        self.encoded: bytes | bytearray | None = None

    @property
    def record_count(self) -> int:
        return len(self.records)

    def rows(self) -> "list[Row]":
        """The records, to make other batches of."""
        return self.records

    def number(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Gives the batch its place in the producer's sequence."""
        if (producer_id, producer_epoch, base_sequence) != (self.producer_id, self.producer_epoch, self.base_sequence):
            self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence
            self.encoded = None

    def encode(self, codec: Codec, level: int | None, transactional: bool = False) -> bytes | bytearray:
        """The batch as bytes: the same bytes at every retry, as long as its numbers stay the same."""
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


class Accumulator(Intake):
    """Holds what waits to be sent, by partition, within `buffer.memory`.

    Records that need nothing special take the short way, `take_in`; this class has the long one, and the network's
    side. A step of the short way may come between any two lines here: what it touches (the room in the buffer, a
    batch that is not full, the refusal) is changed by steps of the intake only.
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
        """`wake` tells the network that there is something to look at; it is called once or twice a batch."""
        super().__init__(batch_size, buffer_memory, clock, system_clock_ns if clock is system_clock else None)
        self._wake = wake
        self.linger_ms = linger_ms
        self.is_flushing = False
        """While set, nothing lingers."""
        self.unfinished: set[ProducerBatch] = set()
        """Batches that are neither stored nor failed, whether they wait or are under way."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where batches are sent from, once that is known."""
        self._stopped_by: Exception | None = None
        self._lock = threading.Lock()
        self._lanes: dict[TopicPartition, Lane] = {}
        self._waiting: dict[TopicPartition, Lane] = {}
        """Those that have batches, and some that no longer do: partitions at rest may be many, and cost nothing."""

    # --- the user's side ----------------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size_bytes: int,
    ) -> Delivery | None:
        """Adds a record to its partition's last batch, or None while `buffer.memory` is used up. Any thread."""
        row = (timestamp, key, value, headers)
        wake = False
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            if not self.reserve(size_bytes):
                return None
            lane = self._lane(partition)
            delivery = None
            try:
                if lane.queue and not lane.queue[-1].is_full:
                    batch = lane.queue[-1]
                    delivery = self.put(batch, row, size_bytes)
                if delivery is None:
                    if lane.queue:
                        lane.queue[-1].is_full = True
                    batch = self._new_batch(lane)
                    delivery = self.put(batch, row, size_bytes)
                    assert delivery is not None, "an empty batch takes any record"
                    lane.queue.append(batch)
                    self._waiting[partition] = lane
                    self.unfinished.add(batch)
                    lane.open_batch = batch
                    wake = True
            except BaseException:
                # A record that is in no batch leaves nothing behind: nobody would ever finish it.
                if delivery is None or batch not in lane.queue:
                    self.give_back(size_bytes)
                raise
            if batch.size_bytes >= self.batch_size:
                batch.is_full = wake = True
        if wake:
            self._wake()
        return delivery

    def add_batch(self, batch: ProducerBatch) -> bool:
        """Puts a batch that takes no more records behind all that waits; False without room for it. Any thread."""
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            if not self.reserve(batch.size_bytes - HEADER_SIZE):
                return False
            lane = self._lane(batch.partition)
            if lane.queue:
                self.close_batch(lane, lane.queue[-1])
            batch.order = (lane.next_order,)
            batch.outcome.loop = self.loop
            lane.next_order += 1
            self.unfinished.add(batch)
            lane.queue.append(batch)
            self._waiting[batch.partition] = lane
        self._wake()
        return True

    def open_topic(self, topic: str, partitions: tuple[TopicPartition, ...]) -> TopicLanes:
        """Lets records for a topic, as it is now, take the short way."""
        with self._lock:
            lanes = TopicLanes(partitions, [self._lane(partition) for partition in partitions])
            self.topics[topic] = lanes
            return lanes

    def refuse(self, refusal: Exception | None) -> None:
        """Takes no more records; those that were taken before are all in `unfinished`. None takes them again."""
        with self._lock:
            super().refuse(self._stopped_by or refusal)

    def stop(self, reason: Exception) -> None:
        """Takes no more records, for good."""
        self._stopped_by = self._stopped_by or reason
        self.refuse(reason)

    def _lane(self, partition: TopicPartition) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition)
        return lane

    def _new_batch(self, lane: Lane) -> ProducerBatch:
        batch = ProducerBatch(lane.partition, (lane.next_order,))
        batch.outcome.loop = self.loop
        lane.next_order += 1
        return batch

    # --- the network's side -------------------------------------------------------------------------------

    def partitions(self, now: int) -> list[TopicPartition]:
        """The partitions for which something waits."""
        with self._lock:
            self._waiting = {partition: lane for partition, lane in self._waiting.items() if lane.queue}
            for lane in self._waiting.values():
                for batch in reversed(lane.queue):
                    if batch.created_at >= 0:
                        break
                    batch.created_at = now
            return list(self._waiting)

    def head(self, partition: TopicPartition) -> ProducerBatch | None:
        lane = self._lanes.get(partition)
        return lane.queue[0] if lane is not None and lane.queue else None

    def ready_at(self, partition: TopicPartition, memory_is_short: bool) -> int:
        """When the first batch of a partition may go: its retry is due, and it is full or has lingered."""
        queue = self._lanes[partition].queue
        batch: ProducerBatch = queue[0]
        if batch.is_full or batch.attempts or self.is_flushing or memory_is_short or len(queue) > 1:
            return batch.retry_at
        return max(batch.retry_at, batch.created_at + self.linger_ms)

    def take(self, partition: TopicPartition, now: int) -> ProducerBatch:
        """Takes the first batch out for sending; no record joins it any more."""
        with self._lock:
            lane = self._lanes[partition]
            batch: ProducerBatch = lane.queue.popleft()
            self.close_batch(lane, batch)
            if batch.created_at < 0:
                batch.created_at = now
            return batch

    def put_back(self, batch: ProducerBatch) -> None:
        """Puts a batch back to its place among those of its partition, for another try."""
        with self._lock:
            self._insert(batch)

    def _insert(self, batch: ProducerBatch) -> None:
        lane = self._waiting[batch.partition] = self._lanes[batch.partition]
        queue, position = lane.queue, 0
        while position < len(queue) and queue[position].order < batch.order:
            position += 1
        queue.insert(position, batch)

    def outcomes(self) -> list[BatchOutcome]:
        """The outcomes of everything that is not finished yet."""
        with self._lock:
            return [batch.outcome for batch in self.unfinished]

    def queued(self, partition: TopicPartition) -> list[ProducerBatch]:
        """Everything that waits for a partition, also what a user's thread has added this very moment."""
        with self._lock:
            return list(self._lanes[partition].queue) if partition in self._lanes else []

    def take_late(self, partition: TopicPartition, deadline: int) -> list[ProducerBatch]:
        """Takes out the batches that were there at `deadline` already."""
        with self._lock:
            lane = self._lanes[partition]
            late: list[ProducerBatch] = []
            # They wait in the order in which they came.
            while lane.queue and 0 <= lane.queue[0].created_at <= deadline:
                batch = lane.queue.popleft()
                self.close_batch(lane, batch)
                late.append(batch)
            return late

    def drop(self, batches: Iterable[ProducerBatch]) -> None:
        """Takes batches out that will never be sent."""
        with self._lock:
            for batch in batches:
                lane = self._lanes[batch.partition]
                self.close_batch(lane, batch)
                lane.queue.remove(batch)

    def split(self, batch: ProducerBatch) -> list[ProducerBatch]:
        """A batch that was too large, as two halves that wait in its place."""
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
        """Gives the memory back, once a batch is stored or has failed."""
        with self._lock:
            self.give_back(batch.size_bytes - HEADER_SIZE)
            self.unfinished.discard(batch)
