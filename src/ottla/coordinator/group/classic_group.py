"""One classic group: its members, its state and its vote. Pure.

The states and the ways between them are the table below. What requests and timers do to a group is in rebalance.py.
"""

import enum
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.framing import decode_versioned
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.group_records import GroupMetadataValue
from ottla.protocol.primitives import ProtocolError

CONSUMER = "consumer"
"""The protocol type whose subscriptions and assignments we can read."""


class GroupState(enum.StrEnum):
    """As DescribeGroups and ListGroups spell them. The documents' AwaitingSync is CompletingRebalance."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


ALLOWED = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD},
    GroupState.COMPLETING_REBALANCE: {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.DEAD: set(),
}


class Waiting:
    """A request parked until the group moves on."""

    __slots__ = ("api_version", "request_id")

    def __init__(self, request_id: int, api_version: int) -> None:
        self.request_id = request_id
        self.api_version = api_version


class Member:
    """One member of a classic group."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline",
        "session_entry",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: list[tuple[str, bytes]],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        """(name, metadata) in the member's order of preference."""
        self.assignment = assignment
        self.join: Waiting | None = None
        self.sync: Waiting | None = None
        self.is_new = False
        """Its first JoinGroup has not been answered yet."""
        self.session_deadline: int | None = None
        self.session_entry = 0
        """The time under which the session stands in the heap of deadlines."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """The first of its own list that everybody supports."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """A group whose members run the assignment themselves: one of them, the leader, for all."""

    __slots__ = (
        "causes",
        "generation",
        "group_id",
        "initial_delay_left_ms",
        "join_deadline",
        "leader_id",
        "members",
        "new_member_added",
        "pending_members",
        "pending_sync",
        "previous_assignments",
        "protocol",
        "protocol_type",
        "rebalance_started",
        "state",
        "state_timestamp",
        "static_members",
        "subscribed_topics",
        "sync_deadline",
    )

    def __init__(self, group_id: str, now: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp = now
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Instance id to member id."""
        self.pending_members: dict[str, int] = {}
        """Member ids handed out and not yet used, with the time each is forgotten."""
        self.pending_sync: set[str] = set()
        self.new_member_added = False
        self.initial_delay_left_ms: int | None = None
        """Set during the first rebalance of an empty group, which waits for more members to come."""
        self.join_deadline: int | None = None
        self.sync_deadline: int | None = None
        self.subscribed_topics: set[str] | None = set()
        """What the members subscribe to; None when a subscription cannot be read."""
        # For the history: why this rebalance, since when, and who had what before.
        self.causes: list[tuple[str, str, str]] = []
        self.rebalance_started: int | None = None
        self.previous_assignments: dict[str, Any] = {}

    # --- state --------------------------------------------------------------------------------------------

    def move(self, state: GroupState, now: int) -> None:
        assert state in ALLOWED[self.state], f"group {self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_timestamp = now

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Only ever used to store offsets: nobody has joined it."""
        return self.protocol_type is None or self.protocol_type == ""

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- members ------------------------------------------------------------------------------------------

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """The member, or the error that tells a stranger (25) or a zombie (82) what it is."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
            if known != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id} is now member {known}")
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not in group {self.group_id}")
        return member

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        self.pending_sync.discard(member_id)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        return member

    def replace_static(self, instance_id: str, new_member_id: str) -> Member:
        """A static member came back under a new id: it takes its old place."""
        old_id = self.static_members[instance_id]
        old = self.members[old_id]
        replacement = Member(
            new_member_id,
            instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        # The same place in the order, so that "the next existing member" stays the same one.
        self.members = {
            (new_member_id if key == old_id else key): (replacement if key == old_id else value)
            for key, value in self.members.items()
        }
        self.static_members[instance_id] = new_member_id
        if old_id in self.pending_sync:
            self.pending_sync.discard(old_id)
            self.pending_sync.add(new_member_id)
        if self.leader_id == old_id:
            self.leader_id = new_member_id
        return replacement

    def has_all_joined(self) -> bool:
        return not self.pending_members and all(member.join is not None for member in self.members.values())

    def waiting_joins(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Makes sure the leader is one that joined; False when nobody did."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join is not None:
            return True
        for member in self.members.values():
            if member.join is not None:
                self.leader_id = member.member_id
                return True
        return False

    # --- the protocol -------------------------------------------------------------------------------------

    def candidates(self, members: Iterable[Member] | None = None) -> set[str]:
        """Protocols that every member supports."""
        chosen = list(self.members.values() if members is None else members)
        if not chosen:
            return set()
        return set.intersection(*({name for name, _ in member.protocols} for member in chosen))

    def supports(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not self.members:
            # Also in the middle of a rebalance from which everyone has gone.
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return bool({name for name, _ in protocols} & self.candidates())

    def vote(self) -> str:
        """Most votes wins; of equal ones the first by name, so that every run decides alike."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return min(votes, key=lambda name: (-votes[name], name))

    def refresh_subscriptions(self) -> None:
        self.subscribed_topics = self._read_subscriptions()

    def _read_subscriptions(self) -> set[str] | None:
        if not self.members:
            return set()
        if self.protocol_type != CONSUMER or self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                subscription = decode_versioned(
                    ConsumerProtocolSubscription, member.metadata_for(self.protocol), accept_newer=True
                )
            except ProtocolError:
                return None
            topics.update(subscription.topics)
        return topics

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may be consuming the topic; when in doubt, yes."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def assignments(self) -> dict[str, Any]:
        """Who has which partitions, for people: `{member: {topic: [partitions]}}`, or a size where unreadable."""
        return {
            member.member_id: readable_assignment(self.protocol_type, member.assignment)
            for member in self.members.values()
        }

    # --- stored form --------------------------------------------------------------------------------------

    def to_record(self) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp,
            members=[
                GroupMetadataValue.MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata_for(self.protocol),
                    assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue, now: int) -> "ClassicGroup":
        group = cls(group_id, now)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.state_timestamp = value.current_state_timestamp
        for stored in value.members:
            # A group stored before versions had a rebalance timeout uses the session's.
            rebalance_timeout = stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout
            protocols = [(value.protocol, stored.subscription)] if value.protocol is not None else []
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                rebalance_timeout,
                stored.session_timeout,
                protocols,
                stored.assignment,
            )
            group.add(member, value.protocol_type)
        group.protocol = value.protocol
        group.leader_id = value.leader
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        group.refresh_subscriptions()
        return group


def readable_assignment(protocol_type: str | None, assignment: bytes) -> Any:
    if not assignment:
        return {}
    if protocol_type == CONSUMER:
        try:
            decoded = decode_versioned(ConsumerProtocolAssignment, assignment, accept_newer=True)
        except ProtocolError:
            pass
        else:
            return {part.topic: sorted(part.partitions) for part in decoded.assigned_partitions}
    return f"{len(assignment)} bytes"
