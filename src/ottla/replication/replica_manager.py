"""OWNER of this broker's replicas: their logs, roles and high watermarks.

Everything here runs on the event loop without awaiting. The order of calls is therefore the order of the log;
`late_appends` keeps it for appends that have to wait, and `waits` has the requests that wait for a replica.
"""

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

from ottla.clock import BootClock, Clock
from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.log.log_directory import LogDirectory
from ottla.log.partition_log import Appended, Origin
from ottla.log.producers.producer_state import VerificationGuard
from ottla.log.validation import Prepared
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.replication.applying import HostedTopic, ImageApplier
from ottla.replication.broker_peers import BrokerPeers
from ottla.replication.clock_guard import ClockGuard
from ottla.replication.config import ReplicaConfig
from ottla.replication.fetchers import ReplicaFetchers
from ottla.replication.giving_up import GivenUp, GiveUp
from ottla.replication.in_sync import AlterPartition, InSyncChanges
from ottla.replication.late_appends import LateAppends
from ottla.replication.maintenance import LogMaintenance
from ottla.replication.replica import NO_EPOCH, Replica
from ottla.replication.request_waits import RequestWaits
from ottla.replication.throttling import ReplicationQuota
from ottla.replication.waiting import Limit, PartitionWaits, Watch
from ottla.types import INT32_MAX, TopicPartition

log = logging.getLogger("ottla.replication")

ACKS_ALL = -1
WATERMARK_DELAY_SECONDS = 0.02
CONFIRMATION_CHECK_SECONDS = 0.05
"""How often to check whether the metadata session is confirmed again, while commits wait for that."""


class ReplicaManager:
    def __init__(
        self,
        broker_id: int,
        log_directory: LogDirectory,
        *,
        topic_config: Callable[[TopicImage], TopicConfig],
        config: ReplicaConfig,
        clock: Clock,
        boot: BootClock | None = None,
        peers: BrokerPeers | None = None,
        alter_partition: AlterPartition | None = None,
        give_up: GiveUp | None = None,
        is_session_confirmed: Callable[[], bool] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`peers`, `alter_partition` and `give_up` connect it to the cluster. Without them nothing is fetched, in-sync
        sets do not change, and partitions that cannot be stored are kept.

        While `is_session_confirmed()` is false, other brokers may have elected another leader without this one knowing,
        so it commits nothing.
        """
        self.broker_id = broker_id
        self.broker_epoch = NO_EPOCH
        """The epoch of this broker's registration in the current image."""
        self.eligible: dict[int, int] = {}
        """The brokers that may join in-sync sets, with the epochs of their registrations. Changed in place."""
        self.log_directory = log_directory
        self.config = config
        self.image: ClusterImage | None = None
        self.topics: dict[str, HostedTopic] = {}
        self.topics_by_id: dict[bytes, HostedTopic] = {}
        self.offline: dict[TopicPartition, str] = {}
        """Partitions this broker should host but cannot open, with the reason."""
        self.late_appends = LateAppends()
        self.waits = RequestWaits()
        self.topic_config = topic_config
        self.monotonic = log_directory.monotonic
        self._is_session_confirmed = is_session_confirmed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._confirmation_timer: asyncio.TimerHandle | None = None
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._uninformed: dict[Watch, Any] = {}
        """The followers' sessions that wait for records and do not know the new high watermark yet."""
        boot = BootClock("", log_directory.monotonic) if boot is None else boot
        self.clock_guard = ClockGuard(clock, boot, lambda: self.config.clock_jump_grace_ms)
        self.maintenance = LogMaintenance(
            log_directory,
            config=config,
            clock=clock,
            guard=self.clock_guard,
            replicas=self.replicas,
            flushed=self._flushed,
            failed=self._fail,
            start_moved=self._start_moved,
        )
        self.leader_quota = ReplicationQuota(config.leader_replication_throttled_rate)
        self.follower_quota = ReplicationQuota(config.follower_replication_throttled_rate)
        self._applier = ImageApplier(self)
        self.fetchers = None if peers is None else ReplicaFetchers(self, peers, rng=rng)
        self.in_sync = None if alter_partition is None else InSyncChanges(self, alter_partition, rng=rng)
        self.given_up = None if give_up is None else GivenUp(give_up, self.monotonic, rng=rng)

    def reconfigure(self, config: ReplicaConfig) -> None:
        """Applies settings that were changed at run time."""
        self.config = config
        self.maintenance.reconfigure(config)
        self.leader_quota.set_rate(config.leader_replication_throttled_rate)
        self.follower_quota.set_rate(config.follower_replication_throttled_rate)

    # -- life --

    def start(self) -> None:
        """Starts the background work. Call it on the event loop that serves requests."""
        self._loop = asyncio.get_running_loop()
        self.maintenance.start(self._loop)
        self._applier.start(self._loop)
        self.late_appends.start(self._loop)
        self.waits.start(self._loop)
        if self.in_sync is not None:
            self.in_sync.start(self._loop)

    def begin_stop(self) -> None:
        """Answers every waiting fetch now, with the data available, and opens no more partitions."""
        self._applier.stop()
        self._stop_replication()
        for replica in self.replicas():
            if replica.waits is not None:
                self.waits.wake(replica.waits.end_fetches())

    def _stop_replication(self) -> None:
        if self.fetchers is not None:
            self.fetchers.stop()
        if self.in_sync is not None:
            self.in_sync.stop()
        if self.given_up is not None:
            self.given_up.stop()
        for timer in (self._confirmation_timer, self._watermark_timer):
            if timer is not None:
                timer.cancel()

    async def stop(self) -> None:
        """Ends all waits, writes checkpoints and closes the directory cleanly."""
        self._applier.stop()
        self._stop_replication()
        await self.late_appends.stop()
        for replica in self.replicas():
            self.waits.release_all(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await self.maintenance.stop()
        # In a thread: with thousands of logs this takes seconds.
        await asyncio.get_running_loop().run_in_executor(None, self.log_directory.close)

    # -- finding --

    def replicas(self) -> Iterator[Replica]:
        for topic in self.topics.values():
            yield from topic.replicas.values()

    def find(self, topic: str, partition: int) -> Replica | None:
        """This broker's replica of a partition, whatever its role."""
        hosted = self.topics.get(topic)
        return None if hosted is None else hosted.replicas.get(partition)

    def leader(self, topic_partition: TopicPartition) -> Replica:
        """The replica if this broker leads it. Raises UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER."""
        topic, partition = topic_partition
        hosted = self.topics.get(topic)
        if hosted is not None:
            replica = hosted.replicas.get(partition)
            if replica is not None and replica.is_leader:
                return replica
        raise self.not_leading(topic, partition)

    def not_leading(self, topic: str, partition: int) -> KafkaError:
        """Why this broker cannot serve a partition as its leader."""
        known = self.image.topics.get(topic) if self.image is not None else None
        if known is None or not 0 <= partition < len(known.partitions):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic}-{partition} does not exist")
        failure = self.offline.get(TopicPartition(topic, partition))
        if failure is not None and known.partitions[partition].leader == self.broker_id:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, failure)
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} is not the leader of {topic}-{partition}"
        )

    # -- writing --

    def append(
        self,
        topic_partition: TopicPartition,
        batch: Any,
        *,
        acks: int,
        origin: Origin = Origin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
        verification_guard: VerificationGuard | None = None,
    ) -> Appended:
        """Appends one batch to a partition this broker leads. For acks=all, call `wait_committed` afterwards."""
        return self.append_to(
            self.leader(topic_partition), batch, acks, origin, produce_version, transaction_version, verification_guard
        )

    def append_to(
        self,
        replica: Replica,
        batch: Any,
        acks: int,
        origin: Origin = Origin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
        verification_guard: VerificationGuard | None = None,
        prepared: Prepared | None = None,
    ) -> Appended:
        """Like `append`, for a replica already found. The last three arguments are those of PartitionLog.append."""
        if replica.storage_failure:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, replica.storage_failure)
        if acks == ACKS_ALL and not replica.is_alone:
            self._check_in_sync(replica)
        partition_log = replica.log
        try:
            appended = partition_log.append(
                batch,
                leader_epoch=replica.leader_epoch,
                origin=origin,
                produce_version=produce_version,
                transaction_version=transaction_version,
                verification_guard=verification_guard,
                prepared=prepared,
            )
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self.cannot_store(replica)
            raise
        if appended.duplicate:
            return appended
        if replica.is_alone and partition_log.producers.first_unstable_offset is None and not replica.waits:
            partition_log.advance_high_watermark(appended.last_offset + 1)
        else:
            self._appended(replica, len(batch))
        upkeep = replica.upkeep
        if not upkeep.is_changed:
            self.maintenance.changed(replica)
        if upkeep.flushes:
            self.maintenance.consider_flush(replica)
        return appended

    def cannot_store(self, replica: Replica) -> None:
        """A write to a replica failed: another in-sync replica should take over."""
        replica.has_failed_write = True
        if self.given_up is not None and len(replica.replicas) > 1:
            self.given_up.add(replica.topic_partition)

    def _check_in_sync(self, replica: Replica) -> None:
        if not replica.has_enough_in_sync:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{replica.topic_partition}: {len(replica.isr)} replicas are in sync, "
                f"acks=all needs {replica.effective_min_isr} (min.insync.replicas)",
            )
        if not self._may_commit(replica):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{replica.topic_partition}: this broker has lost contact with the cluster's metadata, "
                "so it may no longer be the leader",
            )

    def _may_commit(self, replica: Replica) -> bool:
        """False while another leader may have been elected without this broker knowing it."""
        if self._is_session_confirmed is None or not replica.followers or self._is_session_confirmed():
            return True
        if self._confirmation_timer is None and self._loop is not None:
            self._confirmation_timer = self._loop.call_later(CONFIRMATION_CHECK_SECONDS, self._check_confirmation)
        return False

    def _check_confirmation(self) -> None:
        """Commits what had to wait while the session was not confirmed."""
        self._confirmation_timer = None
        self._advance_all()

    def _advance_all(self) -> None:
        for replica in self.replicas():
            if replica.is_leader and replica.log.high_watermark < replica.log.log_end_offset:
                self.advance(replica)

    def _appended(self, replica: Replica, size_bytes: int) -> None:
        replica.unreplicated_bytes += size_bytes
        waits = replica.waits
        if waits is not None:
            if waits.watches:
                self.waits.wake(waits.note(size_bytes))
            if waits.has_fetches(Limit.LOG_END):
                self.waits.wake(waits.grow(Limit.LOG_END, size_bytes))
        self.advance(replica)

    def advance(self, replica: Replica) -> None:
        """Commits what can be committed and answers the requests that waited for it."""
        partition_log = replica.log
        before = partition_log.high_watermark
        after = replica.committed_offset(
            log_end_offset=partition_log.log_end_offset,
            flushed_offset=partition_log.flushed_offset,
            high_watermark=before,
            monotonic_ms=self.monotonic() if replica.followers else 0,
        )
        if after > before and self._may_commit(replica):
            partition_log.advance_high_watermark(after)
        self.announce(replica, before)

    def announce(self, replica: Replica, high_watermark_before: int) -> None:
        """Wakes the requests that wait for the new high watermark or last stable offset."""
        partition_log = replica.log
        after, stable = partition_log.high_watermark, partition_log.last_stable_offset
        committed_bytes = replica.committed_bytes(high_watermark_before, after, partition_log.log_end_offset)
        decided_bytes = replica.decided_bytes(replica.stable_seen, stable, after)
        stable_before, replica.stable_seen = replica.stable_seen, stable
        waits = replica.waits
        if waits is None:
            return
        # At least one byte: records appended before the counters started are readable now as well.
        if after > high_watermark_before:
            if waits.watches:
                waits.note(0)
                self._announce_watermark(waits)
            if waits.has_fetches(Limit.HIGH_WATERMARK):
                self.waits.wake(waits.grow(Limit.HIGH_WATERMARK, max(1, committed_bytes)))
        if stable > stable_before and waits.has_fetches(Limit.LAST_STABLE_OFFSET):
            self.waits.wake(waits.grow(Limit.LAST_STABLE_OFFSET, max(1, decided_bytes)))
        if waits.commits:
            self.waits.end(waits.commits.reached(after))

    def _announce_watermark(self, waits: PartitionWaits) -> None:
        """Followers get a new high watermark with their next records, or a little later if there are none.

        Not at once: after each commit that would be one more round trip to every follower.
        """
        self._uninformed.update(waits.watches)
        if self._watermark_timer is None and self._loop is not None:
            self._watermark_timer = self._loop.call_later(WATERMARK_DELAY_SECONDS, self._wake_for_watermark)

    def _wake_for_watermark(self) -> None:
        self._watermark_timer = None
        watches, self._uninformed = self._uninformed, {}
        for watch in watches:
            if watch.wait is not None and watch.changed:
                wait, watch.wait = watch.wait, None
                self.waits.wake([wait])

    def _flushed(self, replica: Replica) -> None:
        self.advance(replica)
        if self.fetchers is not None and not replica.is_leader:
            self.fetchers.flushed(replica)

    def _fail(self, replica: Replica, reason: str, is_final: bool) -> None:
        """Fails all waiting commits: the written records may not be on stable storage.

        `is_final` after a failed sync: the kernel may have dropped the pages, and a later successful sync proves
        nothing about them. The partition rejects writes until the broker restarts; reads continue.
        """
        if is_final:
            replica.storage_failure = reason
            self.log_directory.lost_writes()
            log.error(
                "partition %s: %s; writes are rejected until the broker restarts", replica.topic_partition, reason
            )
            self.cannot_store(replica)
            if self.fetchers is not None:
                # If it kept fetching, the leader would consider it in sync.
                self.fetchers.unfollow(replica)
        else:
            log.error("partition %s: %s", replica.topic_partition, reason)
        if replica.waits is not None:
            self.waits.end(replica.waits.commits.fail(ErrorCode.KAFKA_STORAGE_ERROR))

    # -- followers --

    def follower_fetched(
        self, replica: Replica, broker_id: int, offset: int, log_start_offset: int, broker_epoch: int = NO_EPOCH
    ) -> None:
        """A follower fetches from `offset`, so it has everything below."""
        follower = replica.follower(broker_id)
        follower.broker_epoch = broker_epoch
        follower.fetched(offset, log_start_offset, replica.log.log_end_offset, self.monotonic())
        self.advance(replica)
        if replica.waits is not None and replica.waits.deletions:
            self.waits.end(replica.waits.deletions.reached(replica.low_watermark(replica.log.log_start_offset)))
        if broker_id not in replica.isr and self.in_sync is not None:
            self.in_sync.consider(replica)

    # -- deleting records --

    def delete_records(self, replica: Replica, offset: int) -> int:
        """Moves the log's start to `offset` (−1: to the high watermark) and returns the low watermark."""
        partition_log = replica.log
        if partition_log.config.compacts and not partition_log.config.deletes:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{replica.topic_partition}: records can be deleted only if cleanup.policy contains delete",
            )
        if offset == -1:
            offset = partition_log.high_watermark
        elif offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{replica.topic_partition}: {offset} is not a valid offset"
            )
        partition_log.delete_records_before(offset)
        self.maintenance.changed(replica)
        if replica.waits is not None:
            # Followers delete theirs as soon as they know.
            self.waits.wake(replica.waits.note(INT32_MAX))
        return replica.low_watermark(partition_log.log_start_offset)

    def _start_moved(self, replica: Replica) -> None:
        if replica.waits is not None:
            replica.waits.note(0)

    def volume_bytes(self) -> tuple[int, int]:
        """Total and free bytes of the volume that holds the log directory; -1 if unknown."""
        try:
            volume = os.statvfs(self.log_directory.path)
        except OSError:
            return -1, -1
        return volume.f_frsize * volume.f_blocks, volume.f_frsize * volume.f_bavail

    # -- the cluster's image --

    def apply(self, image: ClusterImage) -> "asyncio.Future[None] | None":
        """Brings this broker's replicas in line with the image; topics that did not change are skipped.

        None if that is done, otherwise a future for it: opening or dropping many partitions takes several turns of
        the event loop.
        """
        self.image = image
        self._apply_brokers(image)
        return self._applier.apply(image)

    def _apply_brokers(self, image: ClusterImage) -> None:
        own = image.brokers.get(self.broker_id)
        self.broker_epoch = NO_EPOCH if own is None else own.epoch
        if own is not None:
            self.log_directory.registered(own.epoch)
        if self.fetchers is not None:
            self.fetchers.apply(image)
        eligible = {broker.broker_id: broker.epoch for broker in image.brokers.values() if not broker.is_leaving}
        if eligible == self.eligible:
            return
        self.eligible.clear()
        self.eligible.update(eligible)
        # Brokers that left no longer hold back the high watermark, and brokers that came back may join.
        for replica in self.replicas():
            if replica.followers:
                if replica.log.high_watermark < replica.log.log_end_offset:
                    self.advance(replica)
                if replica.waits is not None and replica.waits.deletions:
                    self.waits.end(replica.waits.deletions.reached(replica.low_watermark(replica.log.log_start_offset)))
                if self.in_sync is not None and len(replica.isr) < len(replica.replicas):
                    self.in_sync.consider(replica)

    def when_applied(self, subscriber: Callable[[ClusterImage], None]) -> None:
        """Calls `subscriber` with every image that the replicas are in line with, starting with the next one."""
        self._applier.subscribers.append(subscriber)

    def become(self, replica: Replica, partition: PartitionImage) -> bool:
        """Gives a replica its role in the image. True if a new leader epoch started."""
        leader = replica.leader
        new_epoch = replica.become(partition, log_end_offset=replica.log.log_end_offset, monotonic_ms=self.monotonic())
        if new_epoch or replica.leader != leader:
            self.waits.release_all(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if self.fetchers is not None:
                self.fetchers.follow(replica)
        elif self.fetchers is not None and not replica.is_leader:
            self.fetchers.in_sync_changed(replica)
        if not replica.is_leader:
            return new_epoch
        if new_epoch:
            replica.log.begin_leader_epoch(replica.leader_epoch)
            if replica.flush_before_ack:
                self.maintenance.consider_flush(replica)
        if replica.waits is not None and not replica.has_enough_in_sync:
            self.waits.end(replica.waits.commits.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        self.advance(replica)
        if self.in_sync is not None and len(replica.isr) < len(replica.replicas):
            self.in_sync.consider(replica)
        return new_epoch

    def dropped(self, replica: Replica) -> None:
        """The replica is no longer hosted."""
        if self.fetchers is not None:
            self.fetchers.unfollow(replica)
        if self.in_sync is not None:
            self.in_sync.forget(replica)
        if self.given_up is not None:
            self.given_up.forget(replica.topic_partition)
        self.waits.release_all(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)
