"""Metrics of a cluster: replicas out of sync, changed in-sync sets, failover times, how far followers lag."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ottla.clock import NEVER_MS
from ottla.metadata.image import NO_IMAGE, ClusterImage, PartitionImage
from ottla.metadata.records import NO_LEADER
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.services import Services

FAILOVER_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ClusterCounters:
    """Counts what happens to the partitions that this broker leads, from one image to the next."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._image = NO_IMAGE
        self._lost_at: dict[int, int] = {}
        """When brokers that are gone were last seen, in monotonic milliseconds."""
        self._leaderless_since: dict[TopicPartition, int] = {}
        self.expands = self.shrinks = self.leader_changes = 0
        self.failover_buckets = [0] * (len(FAILOVER_BOUNDS_S) + 1)
        self.failover_seconds = 0.0

    def apply(self, image: ClusterImage, now_ms: int) -> None:
        before, self._image = self._image, image
        if before is NO_IMAGE:
            return
        for broker_id in before.brokers:
            if broker_id not in image.brokers:
                self._lost_at[broker_id] = now_ms
        for broker_id in [each for each in self._lost_at if each in image.brokers]:
            del self._lost_at[broker_id]
        if before.topics is image.topics:
            return
        for name, topic in image.topics.items():
            earlier = before.topics.get(name)
            if earlier is topic or earlier is None or earlier.topic_id != topic.topic_id:
                continue
            for old, new in zip(earlier.partitions, topic.partitions, strict=False):
                if old is not new:
                    self._compare(TopicPartition(name, new.index), old, new, now_ms)
        for partition in [each for each in self._leaderless_since if each.topic not in image.topics]:
            del self._leaderless_since[partition]

    def _compare(self, partition: TopicPartition, old: PartitionImage, new: PartitionImage, now_ms: int) -> None:
        if new.leader != old.leader:
            if new.leader == NO_LEADER:
                self._leaderless_since[partition] = self._lost_at.get(old.leader, now_ms)
            else:
                since_ms = self._leaderless_since.pop(partition, self._lost_at.get(old.leader))
                if new.leader == self._broker_id:
                    self.leader_changes += 1
                    if since_ms is not None:
                        self._count_failover((now_ms - since_ms) / 1000)
        if new.leader == self._broker_id:
            self.expands += any(replica not in old.isr for replica in new.isr)
            self.shrinks += any(replica not in new.isr for replica in old.isr)

    def _count_failover(self, seconds: float) -> None:
        self.failover_buckets[bisect_left(FAILOVER_BOUNDS_S, seconds)] += 1
        self.failover_seconds += seconds


def cluster_families(core: Any, services: "Services", counters: ClusterCounters) -> Iterator[Any]:
    """The metrics in the form of prometheus_client, whose module `core` is."""
    image = services.image
    led = under_replicated = under_min_isr = 0
    lag = core.GaugeMetricFamily(
        "ottla_replica_lag_records",
        "Records that a follower has not copied from this leader.",
        labels=["topic", "partition", "broker"],
    )
    slowest: dict[int, float] = {}
    now_ms = services.monotonic()
    for replica in services.replicas.replicas():
        if not replica.is_leader:
            continue
        led += 1
        under_replicated += len(replica.isr) < len(replica.replicas)
        under_min_isr += len(replica.isr) < min(replica.min_insync_replicas, len(replica.replicas))
        end = replica.log.log_end_offset
        topic, index = replica.topic_partition
        for broker_id, follower in replica.followers.items():
            missing = end - max(0, follower.log_end_offset)
            lag.add_metric([topic, str(index), str(broker_id)], missing)
            seconds = 0.0
            if missing > 0:
                # Infinite for a follower that was never caught up since this broker became the leader.
                was_caught_up = follower.caught_up_ms != NEVER_MS
                seconds = (now_ms - follower.caught_up_ms) / 1000 if was_caught_up else math.inf
            slowest[broker_id] = max(seconds, slowest.get(broker_id, 0.0))
    seconds_behind = core.GaugeMetricFamily(
        "ottla_replica_lag_seconds",
        "Time since a follower was last caught up, in the partition that lags most.",
        labels=["broker"],
    )
    for broker_id, seconds in slowest.items():
        seconds_behind.add_metric([str(broker_id)], seconds)
    yield from (lag, seconds_behind)
    offline = sum(p.leader == NO_LEADER for topic in image.topics.values() for p in topic.partitions)
    for name, doc, value in (
        ("ottla_leaders", "Partitions that this broker leads.", led),
        ("ottla_under_replicated_partitions", "Of these, partitions with a replica out of sync.", under_replicated),
        ("ottla_under_min_isr_partitions", "Of these, partitions that reject acks=all writes.", under_min_isr),
        ("ottla_offline_partitions", "Partitions of the cluster without a leader.", offline),
        ("ottla_brokers", "Running brokers of the cluster.", len(image.brokers)),
        (
            "ottla_active_controller",
            "Whether this broker is the controller.",
            image.controller_id == services.broker_id,
        ),
        ("ottla_controller_epoch", "Increases with every new controller.", image.controller_epoch),
    ):
        gauge = core.GaugeMetricFamily(name, doc)
        gauge.add_metric([], float(value))
        yield gauge
    for name, doc, count in (
        ("ottla_isr_expands", "In-sync sets of this broker's partitions that grew.", counters.expands),
        ("ottla_isr_shrinks", "In-sync sets of this broker's partitions that shrank.", counters.shrinks),
        ("ottla_leader_changes", "Partitions of which this broker became the leader.", counters.leader_changes),
    ):
        counter = core.CounterMetricFamily(name, doc)
        counter.add_metric([], count)
        yield counter
    failovers = core.HistogramMetricFamily(
        "ottla_failover_seconds", "From the loss of a leader to this broker leading the partition instead."
    )
    bounds = [*map(str, FAILOVER_BOUNDS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(counters.failover_buckets), strict=True))
    failovers.add_metric([], buckets, counters.failover_seconds)
    yield failovers
