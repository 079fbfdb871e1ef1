"""Why a group rebalanced: causes are recorded as they happen; an event sums the rebalance up when it ends. Pure."""

from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.wire_values import CONSUMER

if TYPE_CHECKING:
    from ottla.coordinator.group.classic_group import ClassicGroup

JOINED = "joined"
LEFT = "left"
LEFT_BEFORE_JOINING = "left before joining"
TIMED_OUT = "timed out"
WAITED_TOO_LONG = "waited too long to join"
DID_NOT_REJOIN = "did not rejoin in time"
NEVER_SYNCED = "never synced"
CHANGED_SUBSCRIPTION = "changed its subscription"
LEADER_REJOINED = "leader rejoined"
TOPIC_CHANGED = "topic changed"
CAME_BACK = "static member came back"
COORDINATOR_MOVED = "coordinator moved"
REJOINED = "rejoined"
NO_ROOM = "was rejected for lack of room"
OVER_CAPACITY = "group is over its maximum size"
NOT_STORED = "assignment too large to store"

_ABOUT_THE_GROUP = frozenset({LEADER_REJOINED, TOPIC_CHANGED, CAME_BACK, COORDINATOR_MOVED, OVER_CAPACITY, NOT_STORED})
"""Causes that concern the group. The member named is the one that made the coordinator notice."""

REASON_MAX = 255
"""Clients limit reasons to this length; longer ones are truncated."""
CAUSES_MAX = 100
"""The most causes recorded for one rebalance, for groups that never settle."""


class Cause(NamedTuple):
    """One thing that made a rebalance necessary, or happened during it."""

    what: str
    member_id: str = ""
    reason: str = ""
    """The reason the client gave, if any (KIP-800)."""

    def describe(self) -> str:
        """
        >>> Cause("left", "ann-1", "closed").describe(), Cause("coordinator moved", "ann-1").describe()
        ("ann-1 left ('closed')", 'coordinator moved (ann-1)')
        """
        reason = f": {self.reason!r}" if self.reason else ""
        if self.what in _ABOUT_THE_GROUP:
            return f"{self.what} ({self.member_id}{reason})" if self.member_id or reason else self.what
        return f"{self.member_id} {self.what}" + (f" ({self.reason!r})" if self.reason else "")


class Rebalanced(NamedTuple):
    """A rebalance that ended: what `ottla group history` shows."""

    group_id: str
    generation: int
    started: int
    finished: int
    protocol: str | None
    leader: str | None
    causes: list[Cause]
    before: dict[str, Any]
    """Who had which partitions: `{member: {topic: [partitions]}}`."""
    after: dict[str, Any]


class RebalanceStory:
    """What is known about the rebalance in progress."""

    __slots__ = ("before", "causes", "protocol_type", "started")

    def __init__(self, group: "ClassicGroup", now: int) -> None:
        self.started = now
        self.causes: list[Cause] = []
        self.protocol_type = group.protocol_type
        self.before = {m.member_id: m.assignment for m in group.members.values() if not m.is_new}

    def note(self, what: str, member_id: str = "", reason: str | None = None) -> None:
        if len(self.causes) < CAUSES_MAX:
            self.causes.append(Cause(what, member_id, (reason or "")[:REASON_MAX]))

    def end(self, group: "ClassicGroup", now: int) -> Rebalanced:
        return Rebalanced(
            group.group_id,
            group.generation,
            self.started,
            now,
            group.protocol,
            group.leader_id,
            self.causes,
            {who: readable_assignment(self.protocol_type, data) for who, data in self.before.items()},
            {m.member_id: readable_assignment(group.protocol_type, m.assignment) for m in group.members.values()},
        )


def readable_assignment(protocol_type: str | None, assignment: bytes) -> Any:
    """`{topic: [partitions]}`, or the number of bytes if they cannot be decoded."""
    if not assignment:
        return {}
    if protocol_type == CONSUMER:
        try:
            # Every version starts like version 0, which has the partitions.
            decoded = ConsumerProtocolAssignment.decode(assignment, 0, 2)
        except ProtocolError:
            pass
        else:
            return {part.topic: sorted(part.partitions) for part in decoded.assigned_partitions}
    return f"{len(assignment)} bytes"
