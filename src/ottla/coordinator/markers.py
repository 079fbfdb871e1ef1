"""OWNER of transaction markers: writes the decision of a transaction to every partition that it touched.

`MarkerWriter` appends one marker if this broker leads the partition; it also serves WriteTxnMarkers. `MarkerDelivery`
takes decided transactions from the coordinator, has the leader of each partition write the marker, on this broker or
another, retries until every marker is written, and reports back.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.clock import Clock
from ottla.coordinator.broker_requests import Codes, Marker, MarkerRequests
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.transaction.shard import SendMarkers, TransactionShard
from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import Origin
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER
from ottla.net.backoff import Backoff
from ottla.protocol.records.record_batch import control_batch
from ottla.replication.replica import Replica
from ottla.replication.replica_manager import ACKS_ALL, ReplicaManager
from ottla.types import OFFSETS_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.coordinator.group.shard import GroupShard

    Groups = Callable[[], CoordinatorRuntime[GroupShard]]

log = logging.getLogger("ottla.coordinator")

RETRY = Backoff(20, 1_000)
WARNED_AFTER = 6
"""This many consecutive failures take about a second, longer than an election. From then on a warning is logged."""
COMMIT_TIMEOUT_MS = 30_000

GIVEN_UP = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
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
        self._replicas.waits.when_committed(written, COMMIT_TIMEOUT_MS, reply)


class _Order(NamedTuple):
    """A decided transaction, and the shard that requested its markers. After a load the new shard requests them
    again."""

    decided: SendMarkers
    shard: TransactionShard


class _Retry(NamedTuple):
    """Markers that could not be written, and who led their partitions at that time."""

    order: _Order
    leaders: dict[TopicPartition, tuple[int, int] | None]
    failures: int


class MarkerDelivery:
    """Retries until every marker of a decided transaction is written."""

    def __init__(
        self,
        writer: MarkerWriter,
        replicas: ReplicaManager,
        transactions: CoordinatorRuntime[TransactionShard],
        requests: MarkerRequests,
    ) -> None:
        self._writer = writer
        self._replicas = replicas
        self._transactions = transactions
        self._requests = requests
        self._timers: set[asyncio.TimerHandle] = set()
        self._retries: dict[asyncio.TimerHandle, _Retry] = {}
        self._is_stopped = False

    def send(self, decided: SendMarkers) -> None:
        # Not at once: the coordinator is still in the step that decided this.
        asyncio.get_running_loop().call_soon(self._begin, decided)

    def apply(self, image: ClusterImage) -> None:
        """Markers that wait for a partition's leader are sent as soon as there is a new one."""
        for timer, retry in list(self._retries.items()):
            if any(self._leader(partition) != leader for partition, leader in retry.leaders.items()):
                timer.cancel()
                self._timers.discard(timer)
                del self._retries[timer]
                self._deliver(retry.order, retry.leaders, retry.failures)

    def stop(self) -> None:
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._retries.clear()

    def _begin(self, decided: SendMarkers) -> None:
        shard = self._active_shard(decided)
        if shard is not None:
            if decided.partitions:
                self._deliver(_Order(decided, shard), decided.partitions, 0)
            else:
                self._report(decided, [])

    def _active_shard(self, decided: SendMarkers) -> TransactionShard | None:
        """None if this broker no longer coordinates the transaction: the new coordinator has the decision in its log,
        and delivers it."""
        try:
            return None if self._is_stopped else self._transactions.shard(decided.transactional_id)
        except KafkaError:
            return None

    def _deliver(self, order: _Order, partitions: Iterable[TopicPartition], failures: int) -> None:
        decided, shard = order
        if self._active_shard(decided) is not shard:
            return
        epoch = self._transactions.epoch_of(self._transactions.partition_of(decided.transactional_id))
        codes: Codes = {}
        here: list[tuple[TopicPartition, tuple[Replica, int]]] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        # A retry may be late: another coordinator may have completed the transaction, and the next one begun.
        for partition in shard.still_unwritten(decided, partitions):
            leader = self._leader(partition)
            if leader is not None and leader[0] not in (NO_LEADER, self._replicas.broker_id):
                elsewhere.setdefault(leader[0], []).append(partition)
                continue
            try:
                here.append((partition, self._write(decided, partition, epoch)))
            except KafkaError as error:
                codes[partition] = error.code
        for broker_id, led in elsewhere.items():
            self._ask(broker_id, order, tuple(led), epoch, failures)
        if codes:
            self._settle(order, codes, failures)
        if here:

            def committed(codes: list[ErrorCode]) -> None:
                self._settle(order, dict(zip([partition for partition, _ in here], codes, strict=True)), failures)

            self._writer.when_committed([ticket for _, ticket in here], committed)

    def _write(self, decided: SendMarkers, partition: TopicPartition, epoch: int) -> tuple[Replica, int]:
        return self._writer.write(
            partition,
            decided.producer_id,
            decided.producer_epoch,
            epoch,
            commit=decided.commit,
            transaction_version=decided.transaction_version,
        )

    def _ask(
        self, broker_id: int, order: _Order, partitions: tuple[TopicPartition, ...], epoch: int, failures: int
    ) -> None:
        """Has another broker write the markers."""
        decided = order.decided

        def answered(answer: "asyncio.Future[Codes]") -> None:
            error = answer.exception()
            if error is None:
                self._settle(order, answer.result(), failures)
            else:
                code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
                self._settle(order, dict.fromkeys(partitions, code), failures)

        marker = Marker(
            decided.producer_id, decided.producer_epoch, epoch, decided.commit, decided.transaction_version, partitions
        )
        self._requests.ask(broker_id, marker).add_done_callback(answered)

    def _settle(self, order: _Order, codes: Codes, failures: int) -> None:
        """Handles the outcome of some of the markers: those that were not written are retried."""
        failed = {
            partition: code
            for partition, code in codes.items()
            if code is not ErrorCode.NONE and code not in GIVEN_UP and self._leader(partition) is not None
        }
        if failed:
            failures += 1
            level = logging.WARNING if failures % 60 == WARNED_AFTER else logging.DEBUG
            for partition, code in failed.items():
                log.log(
                    level,
                    "transaction %s: cannot write a marker to %s, will retry: %s",
                    order.decided.transactional_id,
                    partition,
                    code.name,
                )
            retry = _Retry(order, {partition: self._leader(partition) for partition in failed}, failures)
            self._retry_later(retry)
        done = [partition for partition in codes if partition not in failed]
        if done:
            self._report(order.decided, done)

    def _leader(self, partition: TopicPartition) -> tuple[int, int] | None:
        """A partition's leader and leader epoch; None if the partition was deleted."""
        image = self._replicas.image
        found = None if image is None else image.find_partition(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def _retry_later(self, retry: _Retry) -> None:
        def again() -> None:
            self._retries.pop(timer, None)
            self._deliver(retry.order, retry.leaders, retry.failures)

        if not self._is_stopped:
            timer = self._later(RETRY.delay_ms(retry.failures, 0.0), again)
            self._retries[timer] = retry

    def _later(self, delay_ms: int, what: Callable[[], None]) -> asyncio.TimerHandle:
        def do() -> None:
            self._timers.discard(timer)
            what()

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, do)
        self._timers.add(timer)
        return timer

    def _report(self, decided: SendMarkers, partitions: list[TopicPartition], failures: int = 0) -> None:
        if self._is_stopped:
            return
        if self._active_shard(decided) is None:
            # The coordinator moved or is loading: the load writes the markers again, and they are idempotent.
            log.info("transaction %s: markers written, but the coordinator has moved", decided.transactional_id)
            return
        try:
            self._transactions.update(
                decided.transactional_id, lambda shard, now: shard.markers_written(decided, partitions, now)
            )
        except KafkaError as error:
            log.warning("transaction %s: cannot be completed yet, will retry: %s", decided.transactional_id, error)
            self._later(RETRY.delay_ms(failures + 1, 0.0), lambda: self._report(decided, partitions, failures + 1))
