"""Short builders for the requests of group members, for pure shards and for whole brokers."""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.protocol.framing import encode_versioned
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.types import ZERO_UUID

Protocols = Mapping[str, bytes] | list[tuple[str, bytes]]


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 3)


def assignment(**partitions: list[int]) -> bytes:
    """assignment(orders=[0, 1])"""
    parts = [ConsumerProtocolAssignment.TopicPartition(topic=t, partitions=p) for t, p in partitions.items()]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=parts), 3)


def join_request(
    member_id: str = "",
    *,
    group: str = "g",
    protocols: Protocols | None = None,
    instance: str | None = None,
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
    protocol_type: str = "consumer",
    reason: str | None = None,
) -> JoinGroupRequest:
    offered: Protocols = {"range": subscription("orders")} if protocols is None else protocols
    named: Iterable[tuple[str, bytes]] = offered if isinstance(offered, list) else offered.items()
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in named],
        reason=reason,
    )


def sync_request(
    member_id: str,
    generation: int,
    assigned: Mapping[str, bytes] | None = None,
    *,
    group: str = "g",
    instance: str | None = None,
    protocol: str | None = "range",
    protocol_type: str | None = "consumer",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_name=protocol,
        protocol_type=protocol_type,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assigned or {}).items()
        ],
    )


def heartbeat_request(
    member_id: str, generation: int, *, group: str = "g", instance: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance)


def leave_request(
    *members: tuple[str, str | None], group: str = "g", reason: str | None = None, version: int = 5
) -> LeaveGroupRequest:
    """Members leave, each as (member id, instance id); before version 3 just one."""
    request = LeaveGroupRequest(group_id=group)
    if version < 3:
        ((request.member_id, _),) = members
    else:
        request.members = [
            LeaveGroupRequest.MemberIdentity(member_id=m, group_instance_id=i, reason=reason) for m, i in members
        ]
    return request


def commit_request(
    offsets: Mapping[int, int],
    *,
    group: str = "g",
    member_id: str = "",
    generation: int = -1,
    topic: str = "orders",
    topic_id: bytes = ZERO_UUID,
    metadata: str | None = "",
    instance: str | None = None,
    leader_epoch: int = -1,
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    """Commits offsets by partition of one topic, named by its id if there is one."""
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic if topic_id == ZERO_UUID else "",
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_metadata=metadata,
                        committed_leader_epoch=leader_epoch,
                    )
                    for partition, offset in offsets.items()
                ],
            )
        ],
    )


def transactional_commit_request(
    offsets: Mapping[int, int],
    *,
    producer_id: int = 7,
    producer_epoch: int = 0,
    transactional_id: str = "txn",
    group: str = "g",
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    topic: str = "orders",
    topic_id: bytes = ZERO_UUID,
    metadata: str | None = "",
) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name=topic if topic_id == ZERO_UUID else "",
                topic_id=topic_id,
                partitions=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset, committed_metadata=metadata
                    )
                    for partition, offset in offsets.items()
                ],
            )
        ],
    )


def offsets_request(
    *groups: str,
    version: int = 8,
    topics: Mapping[str, list[int]] | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
    stable: bool = False,
) -> OffsetFetchRequest:
    """OffsetFetch of topics and their partitions, or of everything; before version 8 for one group only."""
    make: Any = OffsetFetchRequest.OffsetFetchRequestTopic
    if version >= 8:
        make = OffsetFetchRequest.OffsetFetchRequestTopics
    asked = None
    if topics is not None:
        asked = [make(name="" if topic_ids else name, partition_indexes=parts) for name, parts in topics.items()]
        if topic_ids:
            for topic, name in zip(asked, topics, strict=True):
                topic.topic_id = topic_ids[name]
    if version < 8:
        (group,) = groups
        return OffsetFetchRequest(group_id=group, topics=asked, require_stable=stable)
    return OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=asked) for group in groups],
        require_stable=stable,
    )


def delete_offsets_request(
    partitions: Iterable[int], *, group: str = "g", topic: str = "orders"
) -> OffsetDeleteRequest:
    make = OffsetDeleteRequest.OffsetDeleteRequestPartition
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=topic, partitions=[make(partition_index=partition) for partition in partitions]
            )
        ],
    )
