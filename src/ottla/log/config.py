"""The settings of one topic, under Kafka's names with Kafka's defaults. Pure."""

from dataclasses import dataclass
from typing import Any

from ottla.checks import unsigned_from_text
from ottla.config import setting, settings_of
from ottla.types import INT64_MAX

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

REPLICA_LIST_RULE = "must be * or a list of partition:broker, separated by commas"


def is_replica_list(items: tuple[str, ...]) -> bool:
    """Whether a setting is `*` or a list of partition:broker."""
    return items == ("*",) or all(_is_replica(item) for item in items)


def _is_replica(item: str) -> bool:
    partition, colon, broker = item.partition(":")
    return bool(colon) and unsigned_from_text(partition) is not None and unsigned_from_text(broker) is not None


# fmt: off
@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    """The settings of one topic. Each default comes from the broker setting named `server_name`."""

    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy", ("delete",),
        "delete removes old segments, compact keeps the last record of each key; both can be set.",
        choices=("delete", "compact"), server_name="log.cleanup.policy")
    compression_type: str = setting(
        "compression.type", "producer",
        "How the broker compresses stored batches; producer keeps the producer's compression.",
        choices=COMPRESSION_TYPES, server_name="compression.type")
    compression_gzip_level: int = setting(
        "compression.gzip.level", -1, "Level when the broker compresses with gzip (-1 is the codec's default).",
        check=lambda v: v == -1 or 1 <= v <= 9, rule="must be -1, or between 1 and 9",
        server_name="compression.gzip.level")
    compression_lz4_level: int = setting(
        "compression.lz4.level", 9, "Level when the broker compresses with lz4.",
        at_least=1, at_most=17, server_name="compression.lz4.level")
    compression_zstd_level: int = setting(
        "compression.zstd.level", 3, "Level when the broker compresses with zstd.",
        at_least=-131072, at_most=22, server_name="compression.zstd.level")
    delete_retention_ms: int = setting(
        "delete.retention.ms", 86_400_000, "How long a tombstone stays readable after compaction reached it.",
        kind="long", at_least=0, server_name="log.cleaner.delete.retention.ms")
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms", 60_000, "How long a deleted segment's files stay on disk.",
        kind="long", at_least=0, server_name="log.segment.delete.delay.ms")
    flush_messages: int = setting(
        "flush.messages", INT64_MAX, "Sync the log to disk after this many records.",
        kind="long", at_least=1, server_name="log.flush.interval.messages")
    flush_ms: int = setting(
        "flush.ms", INT64_MAX, "Sync the log to disk after this long at the latest.",
        kind="long", at_least=0, server_name="log.flush.interval.ms")
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        "follower.replication.throttled.replicas", (),
        "The replicas that follower.replication.throttled.rate limits while they catch up: "
        "partition:broker, separated by commas, or *.",
        check=lambda v: is_replica_list(v), rule=REPLICA_LIST_RULE)
    index_interval_bytes: int = setting(
        "index.interval.bytes", 4096, "Bytes of records between two entries in the offset index.",
        at_least=0, server_name="log.index.interval.bytes")
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        "leader.replication.throttled.replicas", (),
        "The leaders that leader.replication.throttled.rate limits towards followers that catch up: "
        "partition:broker, separated by commas, or *.",
        check=lambda v: is_replica_list(v), rule=REPLICA_LIST_RULE)
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms", INT64_MAX, "The longest time a record can stay uncompacted.",
        kind="long", at_least=1, server_name="log.cleaner.max.compaction.lag.ms")
    max_decompressed_bytes: int = setting(
        "ottla.max.decompressed.bytes", 33_554_432, "The largest record batch accepted once it is decompressed.",
        at_least=1024, server_name="ottla.max.decompressed.bytes")
    max_message_bytes: int = setting(
        "max.message.bytes", 1_048_588, "The largest record batch accepted, as stored.",
        at_least=0, server_name="message.max.bytes")
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms", 3_600_000, "How far in the future a record's timestamp can be.",
        kind="long", at_least=0, server_name="log.message.timestamp.after.max.ms")
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms", INT64_MAX, "How far in the past a record's timestamp can be.",
        kind="long", at_least=0, server_name="log.message.timestamp.before.max.ms")
    message_timestamp_type: str = setting(
        "message.timestamp.type", "CreateTime", "Record timestamps come from the producer or from the broker.",
        choices=("CreateTime", "LogAppendTime"), server_name="log.message.timestamp.type")
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio", 0.5, "Compact when this fraction of the log is not yet compacted.",
        at_least=0, at_most=1, server_name="log.cleaner.min.cleanable.ratio")
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms", 0, "The minimum time a record stays uncompacted.",
        kind="long", at_least=0, server_name="log.cleaner.min.compaction.lag.ms")
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "The minimum number of in-sync replicas for acks=all.",
        at_least=1, server_name="min.insync.replicas")
    preallocate: bool = setting(
        "preallocate", False, "Accepted for compatibility, no effect: files are never preallocated.",
        server_name="log.preallocate")
    retention_bytes: int = setting(
        "retention.bytes", -1, "Delete old segments while a partition is larger than this (-1: no limit).",
        kind="long", server_name="log.retention.bytes")
    retention_ms: int = setting(
        "retention.ms", 604_800_000, "Delete segments whose newest record is older than this (-1: never).",
        kind="long", at_least=-1, server_name="log.retention.ms")
    segment_bytes: int = setting(
        "segment.bytes", 1_073_741_824, "Start a new segment file at this size.",
        at_least=1024 * 1024, server_name="log.segment.bytes")
    segment_index_bytes: int = setting(
        "segment.index.bytes", 10_485_760, "The maximum size of an index file; a full index starts a new segment.",
        at_least=4, server_name="log.index.size.max.bytes")
    segment_jitter_ms: int = setting(
        "segment.jitter.ms", 0, "Random time subtracted from segment.ms, so that partitions do not roll at once.",
        kind="long", at_least=0, server_name="log.roll.jitter.ms")
    segment_ms: int = setting(
        "segment.ms", 604_800_000, "Start a new segment after this long at the latest.",
        kind="long", at_least=1, server_name="log.roll.ms")
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable", False, "Whether an out-of-sync replica can become leader if no other can.",
        server_name="unclean.leader.election.enable")

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


# fmt: on


def topic_default(topic_setting: str) -> Any:
    """Declares the broker setting that holds a topic setting's default: same rules, can be changed at run time."""
    declared = settings_of(TopicConfig)[topic_setting]
    return setting(
        declared.server_name,
        declared.default,
        f"Default of the topic setting {topic_setting}: {declared.doc}",
        kind=declared.kind,
        check=declared.check,
        rule=declared.rule,
        at_least=declared.at_least,
        at_most=declared.at_most,
        choices=declared.choices,
        read_only=False,
    )
