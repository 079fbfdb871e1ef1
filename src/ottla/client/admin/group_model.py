"""Values about groups that the admin returns: listings, descriptions, members. Pure."""

from dataclasses import dataclass
from typing import Any

from ottla.client.core.model import Node
from ottla.client.group import protocol
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.wire_values import CONSUMER
from ottla.types import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group of a list. `state` and `group_type` are empty if an old broker does not return them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription: its topics, the partitions it owned, and the assignor's user data."""

    topics: tuple[str, ...]
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member. During a rebalance the broker does not return its subscription and assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    subscription: MemberSubscription | None
    """None if it is not known, or the member is not a consumer."""
    assignment: tuple[TopicPartition, ...]
    metadata: bytes = b""
    assignment_bytes: bytes = b""

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def host(self) -> str:
        """The address without the slash that brokers put in front of it, as Java does."""
        return self.client_host.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its members and its coordinator. `protocol` is the assignor, if there is one."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    group_type: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    """The group epoch of the new protocol (KIP-848). Brokers do not return the generation of a classic group."""

    @property
    def owners(self) -> dict[TopicPartition, GroupMember]:
        """The owner of each partition."""
        return {partition: member for member in self.members for partition in member.assignment}


def read_subscription(metadata: bytes) -> MemberSubscription | None:
    """A consumer's subscription, or None if the bytes are not one.

    >>> read_subscription(bytes.fromhex("000000000001000174ffffffff")).topics
    ('t',)
    """
    if not metadata:
        return None
    try:
        read = protocol.read_subscription(metadata)
    except ProtocolError:
        return None
    return MemberSubscription(
        tuple(read.topics), tuple(sorted(read.owned_partitions)), read.generation_id, read.rack_id, read.user_data
    )


def read_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    """A consumer's partitions in order; empty if the bytes are not an assignment.

    >>> read_assignment(bytes.fromhex("000000000001000174000000020000000000000001ffffffff"))
    (TopicPartition(topic='t', partition=0), TopicPartition(topic='t', partition=1))
    """
    try:
        return tuple(protocol.read_assignment(assignment).partitions)
    except ProtocolError:
        return ()


def classic_group(described: Any, coordinator: Node) -> GroupDescription:
    """A group of a DescribeGroups response."""
    is_consumer = described.protocol_type == CONSUMER
    members = [
        GroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscription=read_subscription(member.member_metadata) if is_consumer else None,
            assignment=read_assignment(member.member_assignment) if is_consumer else (),
            metadata=member.member_metadata,
            assignment_bytes=member.member_assignment,
        )
        for member in described.members
    ]
    return GroupDescription(
        group_id=described.group_id,
        state=described.group_state,
        protocol_type=described.protocol_type,
        protocol=described.protocol_data,
        group_type="classic",
        coordinator=coordinator,
        members=tuple(sorted(members, key=lambda member: member.member_id)),
    )


def consumer_group(described: Any, coordinator: Node) -> GroupDescription:
    """A group of a ConsumerGroupDescribe response: the protocol that assigns on the broker (KIP-848)."""
    members = [
        GroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscription=MemberSubscription(
                topics=tuple(member.subscribed_topic_names), generation=member.member_epoch, rack=member.rack_id
            ),
            assignment=tuple(
                sorted(
                    TopicPartition(part.topic_name, p)
                    for part in member.assignment.topic_partitions
                    for p in part.partitions
                )
            ),
        )
        for member in described.members
    ]
    return GroupDescription(
        group_id=described.group_id,
        state=described.group_state,
        protocol_type=CONSUMER,
        protocol=described.assignor_name,
        group_type="consumer",
        coordinator=coordinator,
        members=tuple(sorted(members, key=lambda member: member.member_id)),
        epoch=described.group_epoch,
    )
