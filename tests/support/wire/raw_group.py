"""A member of a classic group over one raw connection: it sends exactly the requests of a script.

Joins block until the coordinator answers, so a script with two members posts the one and awaits the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from ottla.errors import ErrorCode
from ottla.protocol.framing import decode_response, encode_versioned
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, until
from tests.support.wire.raw import RawConnection

CONSUMER = "consumer"


def subscription(topics: Sequence[str]) -> bytes:
    """The subscription that a consumer sends to the group leader (version 1, as librdkafka writes it)."""
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


def assignment(partitions: Sequence[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [ConsumerProtocolAssignment.TopicPartition(topic=t, partitions=p) for t, p in by_topic.items()]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=parts), 1)


def await_coordinator(connection: RawConnection, group_id: str) -> None:
    """Waits until the group's coordinator has loaded. The first group of a broker creates the offsets topic."""
    heartbeat = HeartbeatRequest(group_id=group_id, generation_id=1, member_id="unknown")

    def has_coordinator() -> bool:
        found = connection.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]), 4)
        if found.coordinators[0].error_code != ErrorCode.NONE:
            return False
        code = connection.ask(heartbeat, 4).error_code
        return code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)

    assert until(has_coordinator), f"group {group_id} has no coordinator after {PATIENCE_S:.0f} s"


class RawMember:
    """One member of one group.

    >>> with RawMember(bootstrap, "g", ["orders"]) as ann:
    ...     ann.join()                              # with the id that the first answer gave
    ...     ann.sync({ann.member_id: [TopicPartition("orders", 0)]})
    """

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        topics: Sequence[str] = (),
        *,
        client_id: str = "raw",
        instance_id: str | None = None,
        protocols: Sequence[str] = ("range",),
        session_timeout_ms: int = 600_000,
        rebalance_timeout_ms: int = 600_000,
        reason: str | None = None,
    ) -> None:
        self.connection = RawConnection(bootstrap, client_id=client_id)
        self.group_id = group_id
        self.topics = list(topics)
        self.instance_id = instance_id
        self.protocols = list(protocols)
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.reason = reason
        self.member_id = ""
        self.generation = -1
        self.protocol: str | None = None
        self.leader = ""
        await_coordinator(self.connection, group_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects without leaving: the member's session continues."""
        self.connection.close()

    @property
    def is_leader(self) -> bool:
        return self.leader == self.member_id

    # --- joining ------------------------------------------------------------------------------------------

    def join_request(self) -> JoinGroupRequest:
        metadata = subscription(self.topics)
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=CONSUMER,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.protocols
            ],
            reason=self.reason,
        )

    def post_join(self, version: int = 9) -> None:
        """Asks to join and does not wait; a new dynamic member gets its id first."""
        if not self.member_id and self.instance_id is None and version >= 4:
            answer = self.connection.ask(self.join_request(), version)
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, answer
            self.member_id = answer.member_id
        self.connection.post(self.join_request(), version)

    def await_join(self, version: int = 9) -> Any:
        frame = self.connection.receive()
        assert frame is not None, "the broker disconnected"
        answer = decode_response(JoinGroupRequest.api_key, version, frame)[1]
        if answer.error_code == ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.protocol, self.leader = answer.protocol_name, answer.leader
        return answer

    def join(self, version: int = 9) -> Any:
        self.post_join(version)
        return self.await_join(version)

    # --- after joining -----------------------------------------------------------------------------

    def sync_request(self, assigned: Mapping[str, Sequence[TopicPartition]] | None = None) -> SyncGroupRequest:
        parts = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment(partitions))
            for member_id, partitions in (assigned or {}).items()
        ]
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=CONSUMER,
            protocol_name=self.protocol,
            assignments=parts,
        )

    def sync(self, assigned: Mapping[str, Sequence[TopicPartition]] | None = None, version: int = 5) -> Any:
        """A follower sends no assignments and waits for the leader's."""
        return self.connection.ask(self.sync_request(assigned), version)

    def heartbeat(self, version: int = 4) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        return ErrorCode(self.connection.ask(request, version).error_code)

    def commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: str | None = "", version: int = 9
    ) -> list[ErrorCode]:
        """The error of each partition, in order."""
        topics: dict[str, Any] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, OffsetCommitRequest.OffsetCommitRequestTopic(name=name))
            topic.partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 7 else None,
            topics=list(topics.values()),
        )
        answer = self.connection.ask(request, version)
        return [ErrorCode(p.error_code) for topic in answer.topics for p in topic.partitions]

    def leave(self, reason: str | None = None, version: int = 5) -> Any:
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.instance_id, reason=reason
        )
        return self.connection.ask(LeaveGroupRequest(group_id=self.group_id, members=[identity]), version)


def settle(*members: RawMember, partitions: Sequence[TopicPartition] = ()) -> None:
    """All of them join, one after the other; then partitions are dealt out in turn, in the order of the members."""
    for i, newcomer in enumerate(members):
        newcomer.post_join()
        for member in members[:i]:
            await_rebalance(member)
            member.post_join()
        for member in members[: i + 1]:
            answer = member.await_join()
            assert answer.error_code == ErrorCode.NONE, answer
    hand_out(*members, partitions=partitions)


def hand_out(*members: RawMember, partitions: Sequence[TopicPartition] = ()) -> None:
    """SyncGroup of the leader and of all other members."""
    assigned = {m.member_id: list(partitions[i :: len(members)]) for i, m in enumerate(members)}
    leader = next(member for member in members if member.is_leader)
    followers = [member for member in members if member is not leader]
    for member in followers:
        member.connection.post(member.sync_request(), 5)
    assert leader.sync(assigned).error_code == ErrorCode.NONE
    for member in followers:
        frame = member.connection.receive()
        assert frame is not None
        assert decode_response(SyncGroupRequest.api_key, 5, frame)[1].error_code == ErrorCode.NONE


def await_rebalance(member: RawMember) -> None:
    """Heartbeats until the member gets REBALANCE_IN_PROGRESS."""
    rebalances = until(lambda: member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, pause_s=0.002)
    assert rebalances, f"group {member.group_id} does not rebalance"
