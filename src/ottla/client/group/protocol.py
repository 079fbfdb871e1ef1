"""The messages of a group member: builds the requests, and decodes the responses into plain values. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.assignors.base import Assignment, ClusterMetadata, PartitionInfo, Subscription
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.model import CommittedOffset
from ottla.client.core.offset_requests import build_offset_fetch, commit_topics
from ottla.client.core.settings import ConsumerConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.framing import decode_versioned, encode_versioned
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.protocol.wire_values import CONSUMER
from ottla.types import TopicPartition, partitions_by_topic

BLOB_VERSION = 3
"""Version of the encoded subscriptions and assignments: v1 adds owned partitions (KIP-429), v2 the generation
(KIP-792), v3 the rack (KIP-881). Readers of older versions ignore the rest."""

Build = Callable[[int], Any]


def join_request(
    config: ConsumerConfig,
    member_id: str,
    generation: int,
    owned: Iterable[TopicPartition],
    subscriptions: list[tuple[str, Subscription]],
    reason: str,
) -> Build:
    """JoinGroup with the subscription of each assignor, the preferred one first. The reason is for logs (KIP-800)."""
    had = [
        ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
        for topic, partitions in partitions_by_topic(sorted(owned)).items()
    ]
    protocols = []
    for name, subscription in subscriptions:
        blob = ConsumerProtocolSubscription(
            topics=subscription.topics,
            user_data=subscription.user_data,
            owned_partitions=had,
            generation_id=generation,
            rack_id=subscription.rack_id or config.client_rack or None,
        )
        metadata = encode_versioned(blob, BLOB_VERSION)
        protocols.append(JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata))

    def build(version: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group_of(config),
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member_id,
            group_instance_id=_instance_id(config, version, since=5),
            protocol_type=CONSUMER,
            protocols=protocols,
            reason=reason,
        )

    return build


def sync_request(
    config: ConsumerConfig, member_id: str, generation: int, protocol: str | None, shares: Mapping[str, Assignment]
) -> Build:
    """SyncGroup; `shares` is empty unless this member is the leader."""
    assignments = []
    for member, share in shares.items():
        parts = [
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in partitions_by_topic(sorted(share.partitions)).items()
        ]
        blob = ConsumerProtocolAssignment(assigned_partitions=parts, user_data=share.user_data)
        assignments.append(
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member, assignment=encode_versioned(blob, BLOB_VERSION)
            )
        )

    def build(version: int) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=group_of(config),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=_instance_id(config, version, since=3),
            protocol_type=CONSUMER,
            protocol_name=protocol,
            assignments=assignments,
        )

    return build


def heartbeat_request(config: ConsumerConfig, member_id: str, generation: int) -> Build:
    def build(version: int) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=group_of(config),
            generation_id=generation,
            member_id=member_id,
            group_instance_id=_instance_id(config, version, since=3),
        )

    return build


def leave_request(config: ConsumerConfig, member_id: str, reason: str) -> Build:
    def build(version: int) -> LeaveGroupRequest:
        if version < 3:
            return LeaveGroupRequest(group_id=group_of(config), member_id=member_id)
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason)
        return LeaveGroupRequest(group_id=group_of(config), members=[identity])

    return build


def offset_commit_request(
    config: ConsumerConfig, member_id: str, generation: int, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Build:
    topics = commit_topics(offsets)

    def build(version: int) -> OffsetCommitRequest:
        # With assign() and a group.id there is no member, so no generation and no instance id either.
        instance_id = _instance_id(config, version, since=7) if member_id else None
        return OffsetCommitRequest(
            group_id=group_of(config),
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=topics,
        )

    return build


def offset_fetch_request(config: ConsumerConfig, partitions: Iterable[TopicPartition]) -> Build:
    """OffsetFetch. With read_committed it waits for pending offsets of open transactions (KIP-447)."""
    wanted = partitions_by_topic(sorted(partitions))
    require_stable = config.isolation_level == "read_committed"

    return lambda version: build_offset_fetch(group_of(config), wanted, require_stable, version)


def group_of(config: ConsumerConfig) -> str:
    """The group id. These requests are only built for consumers that have one."""
    assert config.group_id is not None
    return config.group_id


def _instance_id(config: ConsumerConfig, version: int, *, since: int) -> str | None:
    if config.group_instance_id is not None and version < since:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, "the broker does not support static membership (group.instance.id, KIP-345)"
        )
    return config.group_instance_id


def read_subscriptions(members: Iterable[Any]) -> dict[str, Subscription]:
    """Member id -> subscription, from the JoinGroup response of the leader."""
    return {member.member_id: read_subscription(member.metadata, member.group_instance_id) for member in members}


def read_subscription(blob: bytes, group_instance_id: str | None = None) -> Subscription:
    """The subscription that a member sent with JoinGroup. Raises ProtocolError."""
    read = decode_versioned(ConsumerProtocolSubscription, blob, accept_newer=True)
    return Subscription(
        topics=list(read.topics),
        user_data=read.user_data,
        owned_partitions=[TopicPartition(part.topic, p) for part in read.owned_partitions for p in part.partitions],
        generation_id=read.generation_id,
        rack_id=read.rack_id,
        group_instance_id=group_instance_id,
    )


def read_assignment(blob: bytes) -> Assignment:
    """The assignment of a SyncGroup response; no bytes are an empty assignment. Raises ProtocolError."""
    if not blob:
        return Assignment([])
    read = decode_versioned(ConsumerProtocolAssignment, blob, accept_newer=True)
    partitions = [TopicPartition(part.topic, p) for part in read.assigned_partitions for p in part.partitions]
    return Assignment(sorted(partitions), read.user_data)


def cluster_metadata(view: ClusterView, topics: Iterable[str]) -> ClusterMetadata:
    """The metadata of these topics for an assignor: partitions, and the racks of leaders and replicas (KIP-881)."""
    racks = {node_id: node.rack for node_id, node in view.brokers.items() if node.rack}
    infos = []
    for topic in topics:
        description = view.topics.get(topic)
        if description is None:
            continue
        for partition in description.partitions:
            near = frozenset(racks[node_id] for node_id in partition.replicas if node_id in racks)
            infos.append(PartitionInfo(topic, partition.partition, near, racks.get(partition.leader)))
    return ClusterMetadata(infos)
