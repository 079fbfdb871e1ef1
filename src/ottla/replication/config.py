"""The broker settings that replication uses. Pure."""

from dataclasses import dataclass

from ottla.config import BaseConfig, setting
from ottla.replication.replica_selection import is_known_selector
from ottla.types import INT64_MAX


@dataclass(init=False, repr=False, eq=False)
class ReplicaConfig(BaseConfig):
    """How a broker keeps its replicas."""

    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        300_000,
        "How often to check for segments to delete.",
        kind="long",
        at_least=1,
    )
    log_cleaner_enable: bool = setting("log.cleaner.enable", True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        15_000,
        "How long after a write a log is checked for compaction.",
        kind="long",
        at_least=0,
        read_only=False,
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How long after a change high watermarks are written to the checkpoint file.",
        kind="long",
        at_least=1,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        86_400_000,
        "How long an idle producer's sequence numbers are remembered.",
        at_least=1,
        read_only=False,
    )
    producer_id_expiration_check_interval_ms: int = setting(
        "producer.id.expiration.check.interval.ms", 600_000, "How often to remove idle producers.", at_least=1
    )
    clock_jump_grace_ms: int = setting(
        "ottla.clock.jump.grace.ms",
        86_400_000,
        "After the wall clock jumps forward by more than an hour, records, tombstones, committed offsets and "
        "transactional ids expire by the old time for this long. 0: the clock is always trusted.",
        kind="long",
        at_least=0,
        read_only=False,
    )
    replica_lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that was not caught up for this long leaves the in-sync set.",
        kind="long",
    )
    replica_fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes", 1_048_576, "The most bytes that a follower fetches per partition.", at_least=0
    )
    replica_fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms", 500, "How long a follower's fetch may wait for records."
    )
    replica_fetch_min_bytes: int = setting("replica.fetch.min.bytes", 1, "How many bytes a follower's fetch waits for.")
    replica_fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes", 10_485_760, "The largest fetch response to a follower.", at_least=0
    )
    replica_fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms",
        1000,
        "The longest time that a follower waits after failed fetches. The first retries come sooner.",
        at_least=0,
    )
    replica_socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms", 30_000, "How long a follower waits for the answer to a fetch.", at_least=1
    )
    replica_selector_class: str | None = setting(
        "replica.selector.class",
        None,
        "RackAwareReplicaSelector: consumers that name their rack read from a replica there. Unset: from the leader.",
        check=lambda name: is_known_selector(name),
        rule="must be RackAwareReplicaSelector or LeaderSelector",
    )
    leader_replication_throttled_rate: int = setting(
        "leader.replication.throttled.rate",
        INT64_MAX,
        "Bytes per second that this broker sends to replicas that catch up, of leaders that the topic setting "
        "leader.replication.throttled.replicas names.",
        kind="long",
        at_least=0,
        read_only=False,
    )
    follower_replication_throttled_rate: int = setting(
        "follower.replication.throttled.rate",
        INT64_MAX,
        "Bytes per second that this broker fetches for its replicas that catch up, if the topic setting "
        "follower.replication.throttled.replicas names them.",
        kind="long",
        at_least=0,
        read_only=False,
    )
    flush_before_ack: bool = setting(
        "ottla.flush.before.ack",
        False,
        "acks=all waits until the records are synced to disk (one sync covers many requests).",
    )
