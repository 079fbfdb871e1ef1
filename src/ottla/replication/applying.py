"""OWNER of the hosted partitions: opens and drops them as each new image requires, a slice per turn of the event loop.

Thousands of partitions can be created or deleted at once; between two slices the broker serves its clients. A newer
image replaces an older one that is not finished: what is left to do is always the difference between the hosted topics
and the newest image. Requests for a partition that is not open yet get NOT_LEADER_OR_FOLLOWER.
"""

import asyncio
import functools
import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.errors import KafkaError
from ottla.log.config import TopicConfig
from ottla.metadata.image import ClusterImage, PartitionImage, TopicImage
from ottla.metadata.records import NO_LEADER
from ottla.replication.reopening import Reopening
from ottla.replication.replica import Replica
from ottla.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    from ottla.replication.replica_manager import ReplicaManager

log = logging.getLogger("ottla.replication")

SLICE_MS = 5
SLICE_PARTITIONS = 64
"""A slice ends after this many partitions too: in simulations no time passes within a turn of the loop."""
FROZEN_TOGETHER = 500
"""After this many new partitions, their objects are excluded from garbage collection: they are long-lived, and
scanning those of ten thousand partitions takes 150 ms."""
REPORTED_ONE_BY_ONE = 3
"""Up to this many partitions with new roles are logged one line each."""


class HostedTopic(NamedTuple):
    """A topic of which this broker holds at least one partition."""

    name: str
    topic_id: bytes
    image: TopicImage
    config: TopicConfig
    replicas: dict[int, Replica]


class ImageApplier:
    """Brings the replicas of a ReplicaManager in line with the newest image."""

    def __init__(self, manager: "ReplicaManager") -> None:
        self._manager = manager
        self._directory = manager.log_directory
        self._image: ClusterImage | None = None
        self._applied: dict[str, TopicImage] = {}
        """The topics whose partitions are in line with this version of them."""
        self._work: Iterator[None] = iter(())
        self._dropped: deque[Replica] = deque()
        """Replicas that are no longer hosted, whose directories still have their old names."""
        self._new_roles: list[Replica] = []
        self._open_count = 0
        self._frozen_count = 0
        """How many partitions were open at the last freeze or unfreeze."""
        self._has_met_cluster = False
        self._reopening = Reopening()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._finished: asyncio.Future[None] | None = None
        self._is_stopped = False
        self.subscribers: list[Callable[[ClusterImage], None]] = []
        """Called with each image that was applied completely, and again when an offline partition was opened."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the work is done in slices on this loop; before, all of it in `apply`."""
        self._loop = loop
        self._arm_retry()

    def stop(self) -> None:
        """Gives the directories of dropped partitions their new names; opens nothing more."""
        self._is_stopped = True
        self._work = iter(())
        for handle in (self._turn, self._retry):
            if handle is not None:
                handle.cancel()
        for _ in self._rename_dropped():
            pass
        self._end_wait()

    # -- images --

    def apply(self, image: ClusterImage) -> "asyncio.Future[None] | None":
        """Starts to apply an image. Returns None if it is applied already, otherwise a future for its completion."""
        if self._is_stopped:
            return None
        if self._image is None or self._image.broker_configs != image.broker_configs:
            self._applied.clear()  # The defaults of topics may have changed.
        self._image = image
        for hosted in [each for each in self._manager.topics.values() if _is_gone(each, image)]:
            self._drop_topic(hosted)
        for topic_partition in self._reopening.forget_all_but(functools.partial(self._is_mine, image)):
            self._manager.offline.pop(topic_partition, None)
        self._work = self._steps(image)
        self._run_slice()
        if self._turn is None:
            return None
        assert self._loop is not None
        if self._finished is None:
            self._finished = self._loop.create_future()
        return self._finished

    def _is_mine(self, image: ClusterImage, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        topic, partition = image.topics.get(topic_partition.topic), image.find_partition(topic_partition)
        return (
            topic is not None
            and topic.topic_id == topic_id
            and partition is not None
            and self._manager.broker_id in partition.replicas
        )

    def _run_slice(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._loop is None:
            for _ in self._work:
                pass
            return
        # Not the loop's time: uvloop's does not advance within a turn.
        monotonic = self._directory.monotonic
        end = monotonic() + SLICE_MS
        try:
            for number, _ in enumerate(self._work, 1):
                if number >= SLICE_PARTITIONS or monotonic() >= end:
                    self._turn = self._loop.call_soon(self._run_slice)
                    return
        finally:
            if self._turn is None:
                self._end_wait()

    def _end_wait(self) -> None:
        finished, self._finished = self._finished, None
        if finished is not None and not finished.done():
            finished.set_result(None)

    def _steps(self, image: ClusterImage) -> Iterator[None]:
        """Applies an image; each step is the work of about one partition."""
        yield from self._rename_dropped()
        for name, topic in image.topics.items():
            if self._applied.get(name) is topic:
                continue
            try:
                yield from self._apply_topic(topic)
            except Exception:
                # A failure in one topic must not affect the others.
                log.exception("topic %s: cannot apply cluster image %d", name, image.version)
            self._applied[name] = topic
        yield from self._rename_dropped()
        if image.cluster_id and not self._has_met_cluster:
            # Wait for an image that was read from the store: the initial one is empty and has no topics.
            yield from self._set_strays_aside()
            self._has_met_cluster = True
        self._report_roles()
        self._report_offline()
        self._arm_retry()
        for subscriber in self.subscribers:
            try:
                subscriber(image)
            except Exception:
                # A failing subscriber must not affect the others.
                log.exception("image %d: a subscriber failed to apply it", image.version)

    def _apply_topic(self, topic: TopicImage) -> Iterator[None]:
        manager = self._manager
        mine = [partition for partition in topic.partitions if manager.broker_id in partition.replicas]
        hosted = manager.topics.get(topic.name)
        if not mine and hosted is None:
            return
        config = manager.topic_config(topic)
        replicas = {} if hosted is None else hosted.replicas
        for index in sorted(set(replicas) - {partition.index for partition in mine}):
            self._drop(replicas.pop(index))
        if replicas:
            self._host(topic, config, replicas)
        elif hosted is not None:
            del manager.topics[topic.name], manager.topics_by_id[topic.topic_id]
        for partition in mine:
            replica = replicas.get(partition.index)
            if replica is None:
                replica = self._open(topic, partition, config)
                if replica is not None:
                    if not replicas:
                        self._host(topic, config, replicas)
                    replicas[partition.index] = replica
            elif replica.log.config != config:
                replica.log.update_config(config)
                replica.configure(min_insync_replicas=config.min_insync_replicas)
                manager.maintenance.configured(replica)
            if replica is not None and manager.become(replica, partition):
                self._new_roles.append(replica)
            yield

    def _host(self, topic: TopicImage, config: TopicConfig, replicas: dict[int, Replica]) -> None:
        hosted = HostedTopic(topic.name, topic.topic_id, topic, config, replicas)
        self._manager.topics[topic.name] = self._manager.topics_by_id[topic.topic_id] = hosted

    # -- opening partitions --

    def _open(self, topic: TopicImage, partition: PartitionImage, config: TopicConfig) -> Replica | None:
        topic_partition = TopicPartition(topic.name, partition.index)
        now = self._directory.monotonic()
        if not self._reopening.is_due(topic_partition, now):
            return None
        try:
            self._open_log(topic_partition, topic.topic_id, config, others_have_all=self._others_have_all(partition))
        except (OSError, KafkaError) as error:
            self._manager.offline[topic_partition] = str(error)
            self._reopening.failed(topic_partition, topic.topic_id, str(error), now)
            if self._manager.given_up is not None and self._loop is not None and len(partition.isr) > 1:
                self._manager.given_up.add(topic_partition)
            return None
        self._manager.offline.pop(topic_partition, None)
        self._reopening.opened(topic_partition)
        replica = Replica(
            self._manager.broker_id,
            topic_partition,
            topic.topic_id,
            min_insync_replicas=config.min_insync_replicas,
            flush_before_ack=self._manager.config.flush_before_ack,
            lag_max_ms=self._manager.config.replica_lag_time_max_ms,
            eligible=self._manager.eligible,
        )
        replica.log = self._directory.logs[topic_partition]
        self._open_count += 1
        if self._open_count >= self._frozen_count + FROZEN_TOGETHER:
            # Only if there are more than ever: a freeze includes the garbage of that moment, which is never freed.
            self._frozen_count = self._open_count
            gc.freeze()
        self._manager.maintenance.opened(replica)
        return replica

    def _others_have_all(self, partition: PartitionImage) -> bool:
        """Whether every committed record is on another broker, which leads the partition."""
        own = self._manager.broker_id
        return partition.leader not in (NO_LEADER, own) and own not in partition.isr and own not in partition.elr

    def _open_log(
        self, topic_partition: TopicPartition, topic_id: bytes, config: TopicConfig, *, others_have_all: bool
    ) -> None:
        directory = self._directory
        if topic_partition in directory.failed:
            directory.reopen(topic_partition, config)
        found = directory.logs.get(topic_partition)
        if found is not None and found.topic_id == ZERO_UUID and others_have_all:
            # It may belong to a deleted topic of that name, whose leader epochs are meaningless for this one.
            log.warning(
                "partition %s: deleting the directory without a topic id; the leader has all records", topic_partition
            )
            self._manager.maintenance.delete(topic_partition, config.file_delete_delay_ms)
            found = None
        if found is not None and found.topic_id == ZERO_UUID:
            # partition.metadata is not synced and may be lost in a power failure. The synced records are kept.
            log.warning("partition %s: directory has no topic id; using it for this topic", topic_partition)
            directory.adopt(topic_partition, topic_id)
        if found is not None and found.topic_id != topic_id:
            # A topic of the same name was deleted and recreated while this broker was down.
            log.warning("partition %s: deleting the directory of a deleted topic of that name", topic_partition)
            self._manager.maintenance.delete(topic_partition, config.file_delete_delay_ms)
            found = None
        if found is None:
            directory.create_log(topic_partition, topic_id, config)
        else:
            found.update_config(config)

    def _arm_retry(self) -> None:
        """One timer for all offline partitions, at the time of the next attempt."""
        due_ms = self._reopening.next_due_ms()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if due_ms is not None and self._loop is not None and not self._is_stopped:
            delay_ms = max(0, due_ms - self._directory.monotonic())
            self._retry = self._loop.call_later(delay_ms / 1000, self._retry_offline)

    def _retry_offline(self) -> None:
        self._retry = None
        assert self._image is not None
        for topic in self._reopening.due_topics(self._directory.monotonic()):
            self._applied.pop(topic, None)
        self.apply(self._image)

    # -- dropping partitions --

    def _drop_topic(self, hosted: HostedTopic) -> None:
        del self._manager.topics[hosted.name], self._manager.topics_by_id[hosted.topic_id]
        self._applied.pop(hosted.name, None)
        for replica in hosted.replicas.values():
            self._drop(replica)

    def _drop(self, replica: Replica) -> None:
        """Stops hosting a partition now: its directory is renamed soon, and removed later."""
        replica.is_leader = replica.is_alone = False
        self._manager.dropped(replica)
        self._manager.maintenance.closed(replica)
        self._dropped.append(replica)
        self._open_count -= 1
        if self._open_count <= self._frozen_count - FROZEN_TOGETHER:
            self._frozen_count = self._open_count
            gc.unfreeze()

    def _rename_dropped(self) -> Iterator[None]:
        while self._dropped:
            replica = self._dropped.popleft()
            self._manager.maintenance.delete(replica.topic_partition, replica.log.config.file_delete_delay_ms)
            yield

    def _set_strays_aside(self) -> Iterator[None]:
        for topic_partition in list(self._directory.logs):
            if self._manager.find(*topic_partition) is None and topic_partition not in self._manager.offline:
                self._manager.maintenance.set_aside(topic_partition)
                yield

    # -- reports --

    def _report_roles(self) -> None:
        """Logs one line per partition with a new role, or one summary line if there are many."""
        replicas, self._new_roles = self._new_roles, []
        level = logging.INFO
        if len(replicas) > REPORTED_ONE_BY_ONE:
            leads = sum(replica.is_leader for replica in replicas)
            log.info(
                "%d partitions have new roles: leader of %d, follower of %d",
                len(replicas),
                leads,
                len(replicas) - leads,
            )
            level = logging.DEBUG
        if not log.isEnabledFor(level):
            return
        for replica in replicas:
            log.log(
                level,
                "partition %s: %s in leader epoch %d at offset %d",
                replica.topic_partition,
                "leader" if replica.is_leader else f"follower of broker {replica.leader}",
                replica.leader_epoch,
                replica.log.log_end_offset,
            )

    def _report_offline(self) -> None:
        """Logs which partitions went offline or came back since the last report."""
        offline, online = self._reopening.take_changes()
        if len(offline) > REPORTED_ONE_BY_ONE:
            topic_partition, reason = offline[0]
            log.error(
                "%d partitions are offline, will be retried; the first is %s: %s",
                len(offline),
                topic_partition,
                reason,
            )
        else:
            for topic_partition, reason in offline:
                log.error("partition %s: offline, will be retried: %s", topic_partition, reason)
        if len(online) > REPORTED_ONE_BY_ONE:
            log.info("%d partitions that were offline are served again", len(online))
        else:
            for topic_partition in online:
                log.info("partition %s: was offline, is served again", topic_partition)


def _is_gone(hosted: HostedTopic, image: ClusterImage) -> bool:
    topic: Any = image.topics.get(hosted.name)
    return topic is None or topic.topic_id != hosted.topic_id
