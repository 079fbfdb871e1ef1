"""One classic group: its members, its state and its vote. Pure.

The table below has the states and the transitions between them. What requests and timers do to a group is in
joining.py, membership.py and rebalance.py.
"""

import enum
from collections import Counter
from sys import intern
from types import MappingProxyType
from typing import Any

from ottla.checks import moved
from ottla.coordinator.group.history import RebalanceStory
from ottla.coordinator.group.metadata_usage import MetadataUsage, Protocols, size_of
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.messages.group_records import GroupMetadataValue
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.wire_values import CONSUMER


class GroupState(enum.StrEnum):
    """As DescribeGroups and ListGroups spell them. Older documentation calls CompletingRebalance AwaitingSync."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD},
    GroupState.COMPLETING_REBALANCE: {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.DEAD: set(),
}

_NONE: Any = MappingProxyType({})
"""A shared empty dict: most groups of a large coordinator have no members."""
_NOBODY: Any = frozenset()
_NOT_READ: Any = object()


_UNCOUNTED = MetadataUsage()


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
        "is_loaded",
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
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.join: Waiting | None = None
        """Set and cleared by the group, which counts the members that have joined."""
        self.sync: Waiting | None = None
        self.is_new = False
        """Its first JoinGroup has not been answered yet."""
        self.is_loaded = False
        """Read from the log: only the chosen one of its protocols is known."""
        self.session_deadline: int | None = None
        self.session_entry = 0
        """The time of the session's entry in the heap of deadlines."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str:
        """The first protocol of its list that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """A group in which one of the members, the leader, computes the assignment for all."""

    __slots__ = (
        "_subscribed_topics",
        "_supporters",
        "_usage",
        "generation",
        "group_id",
        "initial_delay_left_ms",
        "join_deadline",
        "join_entry",
        "joined_count",
        "leader_id",
        "loaded_at",
        "members",
        "metadata_bytes",
        "new_member_added",
        "pending_members",
        "pending_sync",
        "protocol",
        "protocol_type",
        "state",
        "state_timestamp",
        "static_members",
        "story",
        "sync_deadline",
        "sync_entry",
        "topic_sizes",
    )

    def __init__(self, group_id: str, now: int, usage: MetadataUsage = _UNCOUNTED) -> None:
        self.group_id = group_id
        self._usage = usage
        self.metadata_bytes = 0
        """The memory that its members take."""
        self.state = GroupState.EMPTY
        self.state_timestamp = now
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = _NONE
        self.static_members: dict[str, str] = _NONE
        """Instance id to member id."""
        self._supporters: dict[str, int] = _NONE
        """How many members support each protocol."""
        self.joined_count = 0
        """How many members wait in JoinGroup."""
        self.pending_members: dict[str, int] = _NONE
        """Member ids that were returned but not used yet, with the time each one expires."""
        self.pending_sync: set[str] = _NOBODY
        """Members that have not sent SyncGroup in this generation."""
        self.new_member_added = False
        self.initial_delay_left_ms: int | None = None
        """Set during the first rebalance of an empty group, which waits for more members."""
        self.join_deadline: int | None = None
        self.sync_deadline: int | None = None
        # The times of their entries in the heap of deadlines. An entry may be too early, which saves moving it.
        self.join_entry: int | None = None
        self.sync_entry: int | None = None
        self._subscribed_topics: set[str] | None = None
        # For the history: the rebalance in progress, when the group was read from the log, and how many partitions
        # its topics had at the last assignment.
        self.story: RebalanceStory | None = None
        self.loaded_at: int | None = None
        self.topic_sizes: dict[str, int | None] | None = None

    # --- state --------------------------------------------------------------------------------------------

    def move(self, state: GroupState, now: int) -> None:
        self.state = moved(TRANSITIONS, f"group {self.group_id}", self.state, state)
        self.state_timestamp = now

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Only used to store offsets: no member has ever joined."""
        return self.protocol_type is None

    @property
    def rebalance_timeout_ms(self) -> int:
        return max(0, max((member.rebalance_timeout_ms for member in self.members.values()), default=0))

    def forget_members(self) -> None:
        """The group is no longer used: its members do not count anymore."""
        self._usage.size_bytes -= self.metadata_bytes
        self.metadata_bytes = 0

    def begin_story(self, now: int) -> RebalanceStory:
        """Records who owns what before a rebalance changes it. The same story continues until the rebalance ends."""
        if self.story is None:
            self.story = RebalanceStory(self, now)
        return self.story

    # --- members ------------------------------------------------------------------------------------------

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """The member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a stale static member."""
        if instance_id is not None:
            known = self.static_members.get(instance_id)
            if known is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"no member of group {self.group_id} has the group instance id {instance_id}",
                )
            if known != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"group instance id {instance_id} now belongs to member {known}"
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not in group {self.group_id}")
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"group {self.group_id} is in generation {self.generation}, not {generation}",
            )

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.members, self.static_members, self._supporters = {}, {}, {}
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        member.protocols = self._shared(member.protocols)
        self._count(member.protocols, 1)
        self.forget_pending(member.member_id)

    def remove(self, member: Member) -> None:
        assert member.join is None, f"{member.member_id} waits for a response"
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        self._count(member.protocols, -1)
        self.mark_synced(member.member_id)
        if self.is_leader(member):
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, instance_id: str, new_member_id: str) -> Member:
        """A static member returned under a new member id: it takes its old place."""
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
        # The same position, so that the order in which leaders are picked does not change.
        self.members = {
            (new_member_id if key == old_id else key): (replacement if key == old_id else value)
            for key, value in self.members.items()
        }
        self.static_members[instance_id] = new_member_id
        if self.mark_synced(old_id):
            self.pending_sync.add(new_member_id)
        if self.leader_id == old_id:
            self.leader_id = new_member_id
        return replacement

    def hand_out(self, member_id: str, until: int) -> None:
        """A member id was returned to a client, which has to rejoin with it."""
        if not self.pending_members:
            self.pending_members = {}
        self.pending_members[member_id] = until

    def forget_pending(self, member_id: str) -> bool:
        if member_id not in self.pending_members:
            return False
        del self.pending_members[member_id]
        return True

    # --- the join phase -----------------------------------------------------------------------------------

    def park(self, member: Member, waiting: Waiting) -> None:
        """The member waits in JoinGroup."""
        if member.join is None:
            self.joined_count += 1
        member.join = waiting

    def unpark(self, member: Member) -> Waiting | None:
        """The request to answer if the member waits in JoinGroup. It no longer waits."""
        waiting, member.join = member.join, None
        if waiting is not None:
            self.joined_count -= 1
        return waiting

    def has_all_joined(self) -> bool:
        return not self.pending_members and self.joined_count == len(self.members)

    def is_leader(self, member: Member) -> bool:
        return member.member_id == self.leader_id

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is a member that joined; False if none did."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join is not None:
            return True
        for member in self.members.values():
            if member.join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def mark_synced(self, member_id: str) -> bool:
        """No longer awaits this member's SyncGroup; returns whether it was awaited."""
        if member_id not in self.pending_sync:
            return False
        self.pending_sync.discard(member_id)
        return True

    def await_sync(self) -> None:
        """All members have to send SyncGroup now."""
        self.pending_sync = set(self.members)

    def stop_awaiting_sync(self) -> None:
        self.pending_sync = _NOBODY
        self.sync_deadline = None

    # --- the protocol -------------------------------------------------------------------------------------

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = self._shared(protocols)
        member.is_loaded = False
        self._count(protocols, 1)

    def _shared(self, protocols: Protocols) -> Protocols:
        """The same protocols; metadata equal to that of the first member is kept once for both."""
        first = next(iter(self.members.values()))
        kept = dict(first.protocols)
        return [(name, kept[name] if kept.get(name) == metadata else metadata) for name, metadata in protocols]

    def _count(self, protocols: Protocols, change: int) -> None:
        size = size_of(protocols) * change
        self.metadata_bytes += size
        self._usage.size_bytes += size
        # A name offered twice counts once.
        for name in {name for name, _ in protocols}:
            self._supporters[name] = self._supporters.get(name, 0) + change
            if not self._supporters[name]:
                del self._supporters[name]

    def candidates(self) -> set[str]:
        """Protocols that every member supports."""
        return {name for name, count in self._supporters.items() if count == len(self.members)}

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not self.members:
            # Also in the middle of a rebalance, after all members have left.
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        count = len(self.members)
        return any(self._supporters.get(name) == count for name, _ in protocols)

    def vote(self) -> str:
        """The protocol with the most votes; of equals the first by name, so that the result is deterministic."""
        candidates = self.candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return min(votes, key=lambda name: (-votes[name], name))

    @property
    def subscribed_topics(self) -> set[str] | None:
        """The topics that members were subscribed to at the last assignment; None if that cannot be decoded."""
        if self._subscribed_topics is _NOT_READ:
            self._subscribed_topics = self._read_subscriptions()
        return self._subscribed_topics

    def subscriptions_changed(self) -> None:
        """A new generation: its members' subscriptions are decoded when needed."""
        self._subscribed_topics = _NOT_READ

    def _read_subscriptions(self) -> set[str] | None:
        if not self.members:
            return set()
        if self.protocol_type != CONSUMER or self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata_for(self.protocol)
            try:
                if metadata[:1] >= b"\x80":
                    raise ProtocolError("a negative version")
                # Every version starts like version 0, which has the topics.
                topics.update(ConsumerProtocolSubscription.decode(metadata, 0, 2).topics)
            except ProtocolError:
                return None
        return topics

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may be consuming the topic; True if unknown."""
        topics = self.subscribed_topics
        return topics is None or topic in topics

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
    def from_record(
        cls, group_id: str, value: GroupMetadataValue, now: int, usage: MetadataUsage = _UNCOUNTED
    ) -> "ClassicGroup":
        group = cls(group_id, now, usage)
        group.generation = value.generation
        group.protocol_type = intern(value.protocol_type) if value.protocol_type else None
        group.state_timestamp = value.current_state_timestamp
        group.protocol = None if value.protocol is None else intern(value.protocol)
        for stored in value.members:
            # Old records have no rebalance timeout; the session timeout is used instead.
            rebalance_timeout = stored.rebalance_timeout if stored.rebalance_timeout >= 0 else stored.session_timeout
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                intern(stored.client_id),
                intern(stored.client_host),
                rebalance_timeout,
                stored.session_timeout,
                [(group.protocol or "", stored.subscription)],
                stored.assignment,
            )
            member.is_loaded = True
            group.add(member, value.protocol_type)
        if group.members:
            group.state = GroupState.STABLE
            group.loaded_at = now
            if value.leader in group.members:
                group.leader_id = value.leader
        group.subscriptions_changed()
        return group
