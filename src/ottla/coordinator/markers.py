"""OWNER of transaction markers: writes the decision of a transaction to every partition that it touched.

`MarkerWriter` appends one marker if this broker leads the partition; it also serves WriteTxnMarkers. `MarkerDelivery`
takes decided transactions from the coordinator, retries until every marker is written, and reports back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.clock import Clock
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.transaction.shard import SendMarkers, TransactionShard
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.protocol.record_batch import control_batch
from ottla.replication.replica import Replica
from ottla.replication.replica_manager import ACKS_ALL, ReplicaManager
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.coordinator.group.shard import GroupShard

    Groups = Callable[[], CoordinatorRuntime[GroupShard]]

log = logging.getLogger("ottla.coordinator")

OFFSETS_TOPIC = "__consumer_offsets"
FIRST_RETRY_MS = 20
LAST_RETRY_MS = 1_000
COMMIT_TIMEOUT_MS = 30_000

GIVEN_UP = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.PRODUCER_FENCED)
"""A newer producer has taken over the transactional id: there is nothing left to end."""


class MarkerWriter:
    """Appends markers to partitions this broker leads."""

    def __init__(self, replicas: ReplicaManager, groups: "Groups", clock: Clock) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock

    def write(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        transaction_version: int,
    ) -> tuple[Replica, int]:
        """Appends one marker. Returns what to wait for: the replica, and the offset after the marker."""
        replica = self._replicas.leader(partition)
        batch = control_batch(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock(),
        )
        appended = self._replicas.append_to(
            replica, batch, ACKS_ALL, Origin.COORDINATOR, None, transaction_version, None
        )
        next_offset = appended.last_offset + 1
        if partition.topic == OFFSETS_TOPIC:
            # Pending offsets become visible, or are dropped.
            self._groups().marker_appended(partition.partition, next_offset, producer_id, producer_epoch, commit)
        return replica, next_offset

    def when_committed(self, written: list[tuple[Replica, int]], reply: Callable[[list[ErrorCode]], None]) -> None:
        self._replicas.when_committed(written, COMMIT_TIMEOUT_MS, reply)


class MarkerDelivery:
    """Retries until every marker of a decided transaction is written."""

    def __init__(
        self, writer: MarkerWriter, replicas: ReplicaManager, transactions: CoordinatorRuntime[TransactionShard]
    ) -> None:
        self._writer = writer
        self._replicas = replicas
        self._transactions = transactions
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_stopped = False

    def send(self, decided: SendMarkers) -> None:
        # Not at once: the coordinator is still in the step that decided this.
        asyncio.get_running_loop().call_soon(self._deliver, decided, decided.partitions, FIRST_RETRY_MS)

    def stop(self) -> None:
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _deliver(self, decided: SendMarkers, partitions: Iterable[TopicPartition], retry_ms: int) -> None:
        if self._is_stopped:
            return
        try:
            shard = self._transactions.shard(decided.transactional_id)
            coordinator_epoch = self._transactions.epoch_of(self._transactions.partition_of(decided.transactional_id))
        except KafkaError:
            return  # the new coordinator has the decision in its log, and delivers it
        # A retry may be late: another coordinator may have completed the transaction, and the next one begun.
        partitions = shard.still_unwritten(decided, partitions)
        done: list[TopicPartition] = []
        written: list[tuple[TopicPartition, tuple[Replica, int]]] = []
        failed: list[TopicPartition] = []
        for partition in partitions:
            try:
                ticket = self._writer.write(
                    partition,
                    decided.producer_id,
                    decided.producer_epoch,
                    coordinator_epoch,
                    commit=decided.commit,
                    transaction_version=decided.transaction_version,
                )
                written.append((partition, ticket))
            except KafkaError as error:
                if error.code in GIVEN_UP or self._is_gone(partition):
                    done.append(partition)
                else:
                    log.warning(
                        "transaction %s: cannot write a marker to %s: %s", decided.transactional_id, partition, error
                    )
                    failed.append(partition)
        if failed:
            self._retry(decided, failed, retry_ms)
        if done or not decided.partitions:
            self._report(decided, done)
        if written:

            def committed(codes: list[ErrorCode]) -> None:
                landed = [p for (p, _), code in zip(written, codes, strict=True) if code is ErrorCode.NONE]
                again = [p for (p, _), code in zip(written, codes, strict=True) if code is not ErrorCode.NONE]
                if again:
                    self._retry(decided, again, retry_ms)
                if landed:
                    self._report(decided, landed)

            self._writer.when_committed([ticket for _, ticket in written], committed)

    def _is_gone(self, partition: TopicPartition) -> bool:
        """Whether the partition was deleted."""
        image = self._replicas.image
        topic = None if image is None else image.topics.get(partition.topic)
        return topic is None or partition.partition >= len(topic.partitions)

    def _retry(self, decided: SendMarkers, partitions: list[TopicPartition], retry_ms: int) -> None:
        self._later(retry_ms, lambda: self._deliver(decided, partitions, min(2 * retry_ms, LAST_RETRY_MS)))

    def _later(self, delay_ms: int, what: Callable[[], None]) -> None:
        if self._is_stopped:
            return

        def do() -> None:
            self._timers.discard(timer)
            what()

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, do)
        self._timers.add(timer)

    def _report(self, decided: SendMarkers, partitions: list[TopicPartition], retry_ms: int = FIRST_RETRY_MS) -> None:
        if self._is_stopped:
            return
        try:
            self._transactions.shard(decided.transactional_id)
        except KafkaError:
            # The coordinator moved or is loading: the load writes the markers again, which does no harm.
            log.info("transaction %s: markers written, but the coordinator has moved", decided.transactional_id)
            return
        try:
            self._transactions.update(
                decided.transactional_id, lambda shard, now: shard.markers_written(decided, partitions, now)
            )
        except KafkaError as error:
            log.warning("transaction %s: cannot be completed yet, will retry: %s", decided.transactional_id, error)
            self._later(retry_ms, lambda: self._report(decided, partitions, min(2 * retry_ms, LAST_RETRY_MS)))
