"""Fetch (API 1): reads record batches. Consumers and followers use the same request. Pure.

v4   the oldest version since Kafka 4.0 (KIP-896); isolation level and aborted transactions (KIP-98)
v5   log start offset
v6   may answer KAFKA_STORAGE_ERROR (KIP-112)
v7   incremental fetch sessions (KIP-227)
v8   a broker answers before it throttles (KIP-219)
v9   current leader epoch, which fences stale leaders and readers (KIP-320)
v10  responses may contain zstd (KIP-110)
v11  the consumer's rack and a preferred read replica (KIP-392)
v12  flexible: compact lengths and tagged fields (KIP-482); last fetched epoch and diverging epoch (KIP-595)
v13  topic ids instead of names (KIP-516)
v14  may answer OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
v15  the replica id moves into a tagged field, with a replica epoch (KIP-903)
v16  endpoints of current leaders in the response (KIP-951)
v17  directory id of the replica (KIP-853)
v18  the fetcher's high watermark (KIP-1166)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Records, Struct, field


class FetchRequest(Message, api_key=1, versions=range(4, 19), flexible_since=12):
    cluster_id:            str | None = field("string", "12+", nullable="0+", default=None, tag=0, ignorable=True)
    replica_id:            int        = field("int32", "4-14", default=-1)
    replica_state:         FetchRequest.ReplicaState = field("ReplicaState", "15+", tag=1)
    max_wait_ms:           int        = field("int32")
    min_bytes:             int        = field("int32")
    max_bytes:             int        = field("int32", default=2**31 - 1)
    isolation_level:       int        = field("int8")
    session_id:            int        = field("int32", "7+", ignorable=True)
    session_epoch:         int        = field("int32", "7+", default=-1, ignorable=True)
    topics:                list[FetchRequest.FetchTopic] = field("[]FetchTopic")
    forgotten_topics_data: list[FetchRequest.ForgottenTopic] = field("[]ForgottenTopic", "7+")
    rack_id:               str        = field("string", "11+", ignorable=True)

    class ReplicaState(Struct):
        replica_id:    int = field("int32", "15+", default=-1)
        replica_epoch: int = field("int64", "15+", default=-1)

    class FetchTopic(Struct):
        topic:      str   = field("string", "4-12", ignorable=True)
        topic_id:   bytes = field("uuid", "13+", ignorable=True)
        partitions: list[FetchRequest.FetchPartition] = field("[]FetchPartition")

    class ForgottenTopic(Struct):
        topic:      str       = field("string", "7-12", ignorable=True)
        topic_id:   bytes     = field("uuid", "13+", ignorable=True)
        partitions: list[int] = field("[]int32", "7+")

    class FetchPartition(Struct):
        partition:            int   = field("int32")
        current_leader_epoch: int   = field("int32", "9+", default=-1, ignorable=True)
        fetch_offset:         int   = field("int64")
        last_fetched_epoch:   int   = field("int32", "12+", default=-1)
        log_start_offset:     int   = field("int64", "5+", default=-1, ignorable=True)
        partition_max_bytes:  int   = field("int32")
        replica_directory_id: bytes = field("uuid", "17+", tag=0, ignorable=True)
        high_watermark:       int   = field("int64", "18+", default=2**63 - 1, tag=1, ignorable=True)


class FetchResponse(Message, api_key=1, versions=range(4, 19), flexible_since=12):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16", "7+", ignorable=True)
    session_id:       int = field("int32", "7+")
    responses:        list[FetchResponse.FetchableTopicResponse] = field("[]FetchableTopicResponse")
    node_endpoints:   list[FetchResponse.NodeEndpoint] = field("[]NodeEndpoint", "16+", tag=0)

    class FetchableTopicResponse(Struct):
        topic:      str   = field("string", "4-12", ignorable=True)
        topic_id:   bytes = field("uuid", "13+", ignorable=True)
        partitions: list[FetchResponse.PartitionData] = field("[]PartitionData")

    class NodeEndpoint(Struct):
        node_id: int        = field("int32", "16+")
        host:    str        = field("string", "16+")
        port:    int        = field("int32", "16+")
        rack:    str | None = field("string", "16+", nullable="0+", default=None)

    class PartitionData(Struct):
        partition_index:        int = field("int32")
        error_code:             int = field("int16")
        high_watermark:         int = field("int64")
        last_stable_offset:     int = field("int64", default=-1)
        log_start_offset:       int = field("int64", "5+", default=-1, ignorable=True)
        diverging_epoch:        FetchResponse.EpochEndOffset = field("EpochEndOffset", "12+", tag=0)
        current_leader:         FetchResponse.LeaderIdAndEpoch = field("LeaderIdAndEpoch", "12+", tag=1)
        snapshot_id:            FetchResponse.SnapshotId = field("SnapshotId", "12+", tag=2)
        aborted_transactions:   list[FetchResponse.AbortedTransaction] | None = field("[]AbortedTransaction", nullable="0+")
        preferred_read_replica: int = field("int32", "11+", default=-1)
        records:                Records | None = field("records", nullable="0+")

    class EpochEndOffset(Struct):
        epoch:      int = field("int32", "12+", default=-1)
        end_offset: int = field("int64", "12+", default=-1)

    class LeaderIdAndEpoch(Struct):
        leader_id:    int = field("int32", "12+", default=-1)
        leader_epoch: int = field("int32", "12+", default=-1)

    class SnapshotId(Struct):
        end_offset: int = field("int64", default=-1)
        epoch:      int = field("int32", default=-1)

    class AbortedTransaction(Struct):
        producer_id:  int = field("int64")
        first_offset: int = field("int64")
