"""One partition's replica on this broker: its leader, the in-sync set and the high watermark. Pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.clock import NEVER_MS
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.records import NO_LEADER
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.metadata.image import PartitionImage
    from ottla.replication.maintenance import Upkeep
    from ottla.replication.waiting import PartitionWaits

UNKNOWN_OFFSET = -1
NO_EPOCH = -1


class Follower:
    """What the leader knows about another replica, from its fetches in this leader epoch."""

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, caught_up_ms: int = NEVER_MS) -> None:
        self.broker_id = broker_id
        self.broker_epoch = NO_EPOCH
        """As in its last fetch; -1 if it has not fetched, or its fetches have no epoch."""
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms
        """When it last had everything, in monotonic time."""
        self.last_fetch_ms: int = NEVER_MS
        self.last_fetch_leader_end_offset = 0

    def fetched(self, offset: int, log_start_offset: int, leader_end_offset: int, monotonic_ms: int) -> None:
        # A follower that fetches from the log end offset of its previous fetch had caught up at that time. Under a
        # steady stream of writes it never reaches the current end, but is in sync.
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, monotonic_ms)
        elif offset >= self.last_fetch_leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = monotonic_ms

    def is_caught_up(self, leader_end_offset: int, monotonic_ms: int, lag_max_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or monotonic_ms - self.caught_up_ms <= lag_max_ms


class Replica:
    """This broker's copy of one partition: its role and, if it is the leader, the followers' progress.

    `log` holds the records; the rules here only use the offsets passed to them.
    """

    __slots__ = (
        "broker_id",
        "eligible",
        "end_seen",
        "epoch_start_offset",
        "flush_before_ack",
        "followers",
        "has_failed_write",
        "is_alone",
        "is_leader",
        "isr",
        "joining",
        "lag_max_ms",
        "leader",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "partition_epoch",
        "proposed",
        "replicas",
        "settled_replicas",
        "stable_seen",
        "storage_failure",
        "topic_id",
        "topic_partition",
        "undecided_bytes",
        "unreplicated_bytes",
        "upkeep",
        "waits",
    )

    log: "PartitionLog"
    upkeep: "Upkeep"
    waits: "PartitionWaits | None"

    def __init__(
        self,
        broker_id: int,
        topic_partition: TopicPartition,
        topic_id: bytes,
        *,
        min_insync_replicas: int = 1,
        flush_before_ack: bool = False,
        lag_max_ms: int = 30_000,
        eligible: Mapping[int, int] | None = None,
    ) -> None:
        """`eligible` has the brokers that may join an in-sync set, with their epochs; None for all of them."""
        self.broker_id = broker_id
        self.eligible = eligible
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.min_insync_replicas = min_insync_replicas
        self.flush_before_ack = flush_before_ack
        self.lag_max_ms = lag_max_ms
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.replicas: tuple[int, ...] = ()
        self.settled_replicas = 0
        self.isr: frozenset[int] = frozenset()
        self.joining: frozenset[int] = frozenset()
        """Proposed as in sync, not yet confirmed. They already hold back the high watermark (KIP-497)."""
        self.proposed: tuple[int, ...] | None = None
        """The in-sync set that was proposed and whose outcome is not known; None if there is none."""
        self.followers: dict[int, Follower] = {}
        self.is_leader = False
        self.is_alone = False
        """There is no follower to wait for: appended records are committed immediately."""
        self.epoch_start_offset = 0
        self.end_seen = 0
        """The end of the log when the high watermark was last computed."""
        self.storage_failure = ""
        """Why writes are rejected; empty if they are not. Reads continue."""
        self.has_failed_write = False
        """The last write failed, for example because the disk is full."""
        self.waits = None
        self.unreplicated_bytes = 0
        self.undecided_bytes = 0
        self.stable_seen = 0
        """The last stable offset that waiting fetches were woken for."""

    # -- role --

    def become(self, partition: "PartitionImage", *, log_end_offset: int, monotonic_ms: int) -> bool:
        """Takes the role from the image. True if a new leader epoch started."""
        if partition.leader_epoch < self.leader_epoch:
            return False
        if partition.leader_epoch == self.leader_epoch and partition.partition_epoch < self.partition_epoch:
            return False
        new_epoch = partition.leader_epoch > self.leader_epoch
        if new_epoch or partition.partition_epoch > self.partition_epoch:
            # Only this decides the outcome of a proposal. Until then the larger set counts (KIP-497).
            self.joining, self.proposed = frozenset(), None
        self.leader = partition.leader
        self.leader_epoch = partition.leader_epoch
        self.partition_epoch = partition.partition_epoch
        self.replicas = partition.replicas
        self.settled_replicas = len(partition.replicas) - len(partition.adding)
        left = self.isr - set(partition.isr)
        self.isr = frozenset(partition.isr)
        self.is_leader = partition.leader == self.broker_id
        others = set(partition.replicas) - {self.broker_id} if self.is_leader else set()
        if new_epoch:
            # Progress reported to the previous leader, or in an earlier epoch, does not count.
            self.epoch_start_offset = self.end_seen = log_end_offset
            self.followers = {b: Follower(b, monotonic_ms if b in self.isr else NEVER_MS) for b in sorted(others)}
        else:
            # A follower that left the in-sync set must fetch again to join: it may have left because its disk failed.
            known = {b: follower for b, follower in self.followers.items() if b not in left}
            self.followers = {
                b: known.get(b) or Follower(b, monotonic_ms if b in self.isr else NEVER_MS) for b in sorted(others)
            }
        self._settle()
        return new_epoch

    def configure(self, *, min_insync_replicas: int) -> None:
        self.min_insync_replicas = min_insync_replicas

    def _settle(self) -> None:
        self.is_alone = (
            self.is_leader and not self.followers and self.broker_id in self.isr and not self.flush_before_ack
        )

    # -- checks on requests --

    def check_leader_epoch(self, epoch: int) -> None:
        """KIP-320: FENCED_LEADER_EPOCH if the client's metadata is stale, UNKNOWN_LEADER_EPOCH if this broker's is."""
        if epoch == self.leader_epoch or epoch < 0:
            return
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {epoch} is older than {self.leader_epoch}")
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} is newer than {self.leader_epoch}")

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, capped at the replica count: a higher minimum would reject every write.

        Replicas that a reassignment adds do not count yet: they would reject writes until they have caught up.
        """
        return min(self.min_insync_replicas, self.settled_replicas)

    @property
    def has_enough_in_sync(self) -> bool:
        return len(self.isr) >= self.effective_min_isr

    def is_high_watermark_current(self, high_watermark: int) -> bool:
        """False while a new leader still has an old high watermark: its followers have not fetched in its epoch."""
        return high_watermark >= self.epoch_start_offset

    # -- the high watermark --

    def committed_offset(
        self, *, log_end_offset: int, flushed_offset: int, high_watermark: int, monotonic_ms: int
    ) -> int:
        """The new high watermark: the offset up to which all counted replicas have the log.

        Never decreases, and does not move while fewer than min.insync.replicas are in sync.
        """
        if log_end_offset > self.end_seen:
            # An idle follower that had everything until this append was caught up until now: a fetch session does not
            # include partitions without changes, so its last fetch may be long ago.
            for follower in self.followers.values():
                if follower.log_end_offset >= self.end_seen:
                    follower.caught_up_ms = max(follower.caught_up_ms, monotonic_ms)
            self.end_seen = log_end_offset
        if not self.is_leader or not self.has_enough_in_sync:
            return high_watermark
        end = flushed_offset if self.flush_before_ack else log_end_offset
        for follower in self.followers.values():
            if follower.log_end_offset < end and self._counts(follower, log_end_offset, monotonic_ms):
                end = follower.log_end_offset
        return max(end, high_watermark)

    def _counts(self, follower: Follower, log_end_offset: int, monotonic_ms: int) -> bool:
        if follower.broker_id in self.isr or follower.broker_id in self.joining:
            return True
        # A caught-up follower is about to join the in-sync set. If the high watermark moved past it now, a follower
        # could never join under load. One that cannot join must not hold it back (KAFKA-15021).
        return (
            follower.log_end_offset >= 0
            and self.is_eligible(follower)
            and follower.is_caught_up(log_end_offset, monotonic_ms, self.lag_max_ms)
        )

    def is_eligible(self, follower: Follower) -> bool:
        """Whether a follower may join: registered, not leaving, and the same process that fetched (KIP-903)."""
        if self.eligible is None:
            return True
        registered = self.eligible.get(follower.broker_id)
        return registered is not None and follower.broker_epoch in (NO_EPOCH, registered)

    # -- followers --

    def follower(self, broker_id: int) -> Follower:
        found = self.followers.get(broker_id)
        if found is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker_id} is not a replica of {self.topic_partition} in leader epoch {self.leader_epoch}",
            )
        return found

    def may_join(self, broker_id: int, *, log_end_offset: int, high_watermark: int, monotonic_ms: int) -> bool:
        """Whether to propose a follower as in sync.

        It has everything committed, and everything up to the start of this leader epoch. It must also be caught up:
        while the high watermark cannot move, having everything below it proves little (KAFKA-19996).
        """
        if broker_id in self.isr or self.proposed is not None:
            return False
        follower = self.follower(broker_id)
        end = follower.log_end_offset
        return (
            end >= high_watermark
            and end >= self.epoch_start_offset
            and follower.is_caught_up(log_end_offset, monotonic_ms, self.lag_max_ms)
            and self.is_eligible(follower)
        )

    def propose_join(self, broker_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The in-sync set to propose with these followers, in assignment order. They hold back the high watermark."""
        self.joining |= set(broker_ids)
        self.proposed = self._in_order(self.isr | self.joining)
        return self.proposed

    def propose_leave(self, broker_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The in-sync set to propose without these brokers. They count until it is confirmed."""
        self.proposed = self._in_order(self.isr - set(broker_ids))
        return self.proposed

    def proposal_rejected(self) -> None:
        """The proposal will definitely not be applied."""
        self.joining, self.proposed = frozenset(), None

    def lagging(self, log_end_offset: int, monotonic_ms: int) -> tuple[int, ...]:
        """Members of the in-sync set that have not been caught up within replica.lag.time.max.ms."""
        return tuple(
            broker_id
            for broker_id, follower in self.followers.items()
            if broker_id in self.isr and not follower.is_caught_up(log_end_offset, monotonic_ms, self.lag_max_ms)
        )

    def _in_order(self, members: frozenset[int]) -> tuple[int, ...]:
        return tuple(b for b in self.replicas if b in members)

    def low_watermark(self, log_start_offset: int) -> int:
        """Every live replica has deleted its records below this offset; -1 while one has not reported its start."""
        eligible = self.eligible
        starts = [
            follower.log_start_offset
            for broker_id, follower in self.followers.items()
            if eligible is None or broker_id in eligible
        ]
        return min([log_start_offset, *starts])

    # -- how many bytes became readable --
    # Waiting fetches count bytes, but the limits are offsets. Both counters are exact when a limit reaches the one
    # above it, which is always the case while no follower lags and no transaction is open. In between, the bytes
    # are distributed evenly over the offsets.

    def committed_bytes(self, before: int, after: int, log_end_offset: int) -> int:
        """How many bytes the high watermark passed between `before` and `after`."""
        gained = _share(self.unreplicated_bytes, before, after, log_end_offset)
        self.unreplicated_bytes -= gained
        self.undecided_bytes += gained
        return gained

    def decided_bytes(self, before: int, after: int, high_watermark: int) -> int:
        """How many bytes the last stable offset passed between `before` and `after`."""
        gained = _share(self.undecided_bytes, before, after, high_watermark)
        self.undecided_bytes -= gained
        return gained


def _share(total_bytes: int, before: int, after: int, end: int) -> int:
    if after >= end:
        return total_bytes
    return -(-total_bytes * (after - before) // (end - before)) if after > before else 0
