"""The phases of a classic rebalance (prepare, complete), and the timers of a group (sessions, deadlines). Pure.

Nothing here waits: a request that must wait is noted in the group, and the step that ends the wait (the last member
to join, or a timer) returns the replies for everyone. Deadlines live on the group and its members; the heap only says
when to check.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ottla.coordinator.effects import Deadlines, Effects
from ottla.coordinator.group import history
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState, Member
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.history import Cause
from ottla.coordinator.group.records import group_key, group_value
from ottla.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

PENDING_BYTES_MAX = 2 * 1024 * 1024
"""How much memory a shard spends on member ids that were returned to clients and not used yet (KIP-394)."""
PENDING_BYTES = 1_500
"""What one of them takes, with the group that may exist only because of it."""
DEADLINES_MIN = 1_000
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a new member may wait in its first JoinGroup. It has no session yet that could expire."""


class Due(NamedTuple):
    """What a deadline is about."""

    kind: str
    group_id: str
    who: str = ""


class ClassicRebalance:
    """Moves groups from one state to the next. The rules of requests are in joining.py and membership.py."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, ClassicGroup],
        deadlines: Deadlines,
        partition_count: Callable[[str], int | None],
        has_offsets: Callable[[str], bool],
    ) -> None:
        self.config = config
        self.groups = groups
        self._deadlines = deadlines
        self._partition_count = partition_count
        self._has_offsets = has_offsets
        self._handed_out: dict[str, str] = {}
        """Member ids that were returned to clients, the oldest first, and their groups. Some are members by now."""
        self._handed_out_bytes = 0
        self._crowded_at = DEADLINES_MIN
        """With this many deadlines it is worth removing those that are no longer needed."""

    # --- the join phase -----------------------------------------------------------------------------------

    def prepare_or_complete(self, group: ClassicGroup, now: int, effects: Effects[Any], *causes: Cause) -> None:
        """Something changed: starts a rebalance, or completes the one in progress if possible."""
        if group.state is GroupState.PREPARING_REBALANCE:
            story = group.begin_story(now)
            for cause in causes:
                story.note(*cause)
            self.complete_if_all_joined(group, now, effects)
        else:
            self.prepare(group, now, effects, *causes)

    def prepare(self, group: ClassicGroup, now: int, effects: Effects[Any], *causes: Cause) -> None:
        """Starts a rebalance: all members have to rejoin."""
        story = group.begin_story(now)
        for cause in causes:
            story.note(*cause)
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                if answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, effects):
                    # Its session may have expired while it waited; without one, its death would go unnoticed.
                    self.restart_session(group, member, now)
        group.stop_awaiting_sync()
        was_empty = group.is_empty
        group.move(GroupState.PREPARING_REBALANCE, now)
        if was_empty:
            # The first member waits a little for the others, so that they start with one rebalance, not many (KIP-134).
            delay = self.config.group_initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay, 0)
            group.new_member_added = False
            self._set_join_deadline(group, now + delay)
        else:
            self._set_join_deadline(group, now + group.rebalance_timeout_ms)
            self.complete_if_all_joined(group, now, effects)

    def complete_if_all_joined(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        # The initial delay is never cut short: more members may join.
        if group.initial_delay_left_ms is None and group.has_all_joined():
            self._complete_join(group, now, effects)

    def _complete_join(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        """Ends the join phase: removes members that did not rejoin (unless static), starts a new generation."""
        story = group.begin_story(now)
        group.initial_delay_left_ms = group.join_deadline = None
        if group.joined_count < len(group.members):
            for member in [m for m in group.members.values() if m.join is None and not m.is_static]:
                group.remove(member)
                story.note(history.DID_NOT_REJOIN, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members that have not rejoined: keep their places for another round.
            self._set_join_deadline(group, now + group.rebalance_timeout_ms)
            return
        group.generation += 1
        group.new_member_added = False
        if not group.members:
            self._become_empty(group, now, effects)
            return
        group.protocol = group.vote()
        group.subscriptions_changed()
        group.move(GroupState.COMPLETING_REBALANCE, now)
        for member in group.members.values():
            member.is_new = False
            waiting = group.unpark(member)
            if waiting is not None:
                effects.reply(waiting.request_id, join_reply(group, member))
            self.restart_session(group, member, now)
        group.await_sync()
        self._set_sync_deadline(group, now + group.rebalance_timeout_ms)

    def _become_empty(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        group.protocol = group.leader_id = None
        group.subscriptions_changed()
        group.move(GroupState.EMPTY, now)
        self.store(group, effects)
        self.end_story(group, now, effects)

    # --- the sync phase -----------------------------------------------------------------------------------

    def assign(self, group: ClassicGroup, assigned: dict[str, bytes], now: int, effects: Effects[Any]) -> None:
        """The leader sent the assignment: each member that waits in SyncGroup gets its part."""
        for member in group.members.values():
            member.assignment = assigned.get(member.member_id, b"")
        group.state_timestamp = now
        key, value = group_key(group.group_id), group_value(group.to_record())
        if len(key) + len(value) > self.config.record_max_bytes:
            self._refuse_assignment(group, len(value), now, effects)
            return
        # Stable from here on. The replies are sent when the record is committed; if it cannot be appended, the shard
        # is loaded again without it.
        group.move(GroupState.STABLE, now)
        effects.append(key, value)
        effects.is_soft = True
        for member in group.members.values():
            if member.sync is not None:
                effects.reply(member.sync.request_id, sync_reply(group, member))
                member.sync = None
                self.restart_session(group, member, now)
        self.end_story(group, now, effects)

    def _refuse_assignment(self, group: ClassicGroup, size: int, now: int, effects: Effects[Any]) -> None:
        """Rejects an assignment that is too large to store: waiting members get an error, and the group rebalances."""
        for member in group.members.values():
            if answer_sync(member, ErrorCode.UNKNOWN_SERVER_ERROR, effects):
                self.restart_session(group, member, now)
        self.prepare(group, now, effects, Cause(history.NOT_STORED, group.leader_id or "", f"{size} bytes"))

    # --- members that leave -------------------------------------------------------------------------------

    def dismiss(self, group: ClassicGroup, member: Member, now: int, effects: Effects[Any]) -> None:
        """Removes a member, and answers the request it waits in. Call `members_removed` afterwards."""
        group.begin_story(now)
        waiting = group.unpark(member)
        group.remove(member)
        if waiting is not None:
            effects.reply(waiting.request_id, join_error(ErrorCode.UNKNOWN_MEMBER_ID, waiting.api_version, ""))
        answer_sync(member, ErrorCode.UNKNOWN_MEMBER_ID, effects)

    def members_removed(self, group: ClassicGroup, now: int, effects: Effects[Any], causes: Iterable[Cause]) -> None:
        """Members were removed: the others rebalance."""
        if not group.is_empty:
            self.prepare_or_complete(group, now, effects, *causes)

    # --- time ---------------------------------------------------------------------------------------------

    def due(self, when: int, due: Due, now: int, effects: Effects[Any]) -> None:
        """An entry of the heap fired. If the deadline moved in the meantime, it is added again."""
        group = self.groups.get(due.group_id)
        if group is None:
            return
        if due.kind == "session":
            self._session_due(group, when, due, now, effects)
        elif due.kind == "join":
            if when == group.join_entry:
                group.join_entry = None
                self._join_due(group, now, effects)
        elif due.kind == "sync":
            if when == group.sync_entry:
                group.sync_entry = None
                self._sync_due(group, now, effects)
        elif due.kind == "pending" and _has_passed(group.pending_members.get(due.who), now):
            self._forget_pending(group, due.who, now, effects)

    def _session_due(self, group: ClassicGroup, when: int, due: Due, now: int, effects: Effects[Any]) -> None:
        member = group.members.get(due.who)
        if member is None or when != member.session_entry:
            return
        deadline = member.session_deadline
        if deadline is not None and deadline > now:
            member.session_entry = deadline
            self._add_deadline(deadline, due)
            return
        member.session_deadline = None
        if not member.is_new and (member.join is not None or member.sync is not None):
            # It waits for a response, so it is alive; its session starts again with the response.
            return
        self.dismiss(group, member, now, effects)
        if member.is_new:
            cause = Cause(history.WAITED_TOO_LONG, member.member_id, f"{NEW_MEMBER_JOIN_TIMEOUT_MS} ms in JoinGroup")
        else:
            cause = Cause(history.TIMED_OUT, member.member_id, f"no heartbeat for {member.session_timeout_ms} ms")
        self.members_removed(group, now, effects, [cause])

    def _join_due(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        if not _has_passed(group.join_deadline, now):
            if group.join_deadline is not None:
                self._set_join_deadline(group, group.join_deadline)
            return
        group.join_deadline = None
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        left = group.initial_delay_left_ms
        if left and group.new_member_added:
            delay = min(self.config.group_initial_rebalance_delay_ms, left)
            group.new_member_added = False
            group.initial_delay_left_ms = left - delay
            self._set_join_deadline(group, now + delay)
        else:
            self._complete_join(group, now, effects)

    def _sync_due(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        if not _has_passed(group.sync_deadline, now):
            if group.sync_deadline is not None:
                self._set_sync_deadline(group, group.sync_deadline)
            return
        group.sync_deadline = None
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        gone = []
        for member in [m for m in group.members.values() if m.member_id in group.pending_sync]:
            self.dismiss(group, member, now, effects)
            gone.append(Cause(history.NEVER_SYNCED, member.member_id))
        self.members_removed(group, now, effects, gone)

    def after_load(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        """Restarts every member's session. A group larger than `group.max.size` starts a rebalance."""
        if not group.members:
            return
        group.loaded_at = now
        for member in group.members.values():
            self.set_session(group, member, now + member.session_timeout_ms)
        if len(group.members) > self.config.group_max_size:
            # All members have to rejoin, which lets them commit first; the last ones do not fit.
            self.prepare(group, now, effects, Cause(history.OVER_CAPACITY, "", f"{len(group.members)} members"))

    def restart_session(self, group: ClassicGroup, member: Member, now: int) -> None:
        deadline = now + member.session_timeout_ms
        if member.session_deadline is None or deadline < member.session_entry:
            self.set_session(group, member, deadline)
        else:
            # The entry in the heap fires early and is added again, so a heartbeat costs no heap operation.
            member.session_deadline = deadline

    def set_session(self, group: ClassicGroup, member: Member, deadline: int) -> None:
        member.session_deadline = member.session_entry = deadline
        self._add_deadline(deadline, Due("session", group.group_id, member.member_id))

    def expect(self, group: ClassicGroup, member_id: str, until: int, now: int, effects: Effects[Any]) -> None:
        """A member id was returned to a client, which must join with it before `until`. If clients request too many
        ids, the oldest are evicted: their clients have to request new ones."""
        group.hand_out(member_id, until)
        self._add_deadline(until, Due("pending", group.group_id, member_id))
        self._handed_out[member_id] = group.group_id
        self._handed_out_bytes += PENDING_BYTES + len(member_id)
        while self._handed_out_bytes > PENDING_BYTES_MAX:
            oldest = next(iter(self._handed_out))
            its_group = self.groups.get(self._handed_out.pop(oldest))
            self._handed_out_bytes -= PENDING_BYTES + len(oldest)
            if its_group is not None and oldest in its_group.pending_members:
                self._forget_pending(its_group, oldest, now, effects)

    def _forget_pending(self, group: ClassicGroup, member_id: str, now: int, effects: Effects[Any]) -> None:
        group.forget_pending(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined(group, now, effects)
            return
        is_unused = group.is_empty and not group.generation and not group.pending_members
        if is_unused and not self._has_offsets(group.group_id):
            # Nobody has ever joined it. Clients with made-up group ids must not fill the memory.
            effects.append(group_key(group.group_id), None)

    def _add_deadline(self, when: int, due: Due) -> None:
        self._deadlines.add(when, due)
        if len(self._deadlines) > self._crowded_at:
            # Members that left and ids that were used leave their deadlines behind, for minutes.
            self._deadlines.keep(self._is_needed)
            self._crowded_at = max(DEADLINES_MIN, 2 * len(self._deadlines))

    def _is_needed(self, when: int, due: Due) -> bool:
        """Whether an entry of the heap will do anything when it fires."""
        if not due.group_id:
            return True
        group = self.groups.get(due.group_id)
        if group is None:
            return False
        if due.kind == "session":
            member = group.members.get(due.who)
            return member is not None and member.session_entry == when
        if due.kind == "pending":
            return due.who in group.pending_members
        return when == (group.join_entry if due.kind == "join" else group.sync_entry)

    @staticmethod
    def shift_deadlines(group: ClassicGroup, milliseconds: int) -> None:
        """The clock jumped; the heap of deadlines has been shifted already."""
        for name in ("join_deadline", "join_entry", "sync_deadline", "sync_entry"):
            when = getattr(group, name)
            if when is not None:
                setattr(group, name, when + milliseconds)
        for member_id in group.pending_members:
            group.pending_members[member_id] += milliseconds
        for member in group.members.values():
            member.session_entry += milliseconds
            if member.session_deadline is not None:
                member.session_deadline += milliseconds

    def _set_join_deadline(self, group: ClassicGroup, deadline: int) -> None:
        group.join_deadline = deadline
        if group.join_entry is None or deadline < group.join_entry:
            group.join_entry = deadline
            self._add_deadline(deadline, Due("join", group.group_id))

    def _set_sync_deadline(self, group: ClassicGroup, deadline: int) -> None:
        group.sync_deadline = deadline
        if group.sync_entry is None or deadline < group.sync_entry:
            group.sync_entry = deadline
            self._add_deadline(deadline, Due("sync", group.group_id))

    # --- shared -------------------------------------------------------------------------------------------

    @staticmethod
    def store(group: ClassicGroup, effects: Effects[Any]) -> None:
        effects.append(group_key(group.group_id), group_value(group.to_record()))
        effects.is_soft = True

    def end_story(self, group: ClassicGroup, now: int, effects: Effects[Any]) -> None:
        story, group.story = group.begin_story(now), None
        group.loaded_at = None
        topics = group.subscribed_topics if group.members else None
        group.topic_sizes = None if topics is None else {topic: self._partition_count(topic) for topic in topics}
        effects.events.append(story.end(group, now))

    def changed_topics(self, group: ClassicGroup) -> str:
        """Describes which topics of the group changed their number of partitions since the last assignment."""
        changes = []
        for topic, before in sorted((group.topic_sizes or {}).items()):
            after = self._partition_count(topic)
            if before != after:
                changes.append(f"{topic}: {before or 'no'} -> {after or 'no'} partitions")
        return ", ".join(changes)


def _has_passed(deadline: int | None, now: int) -> bool:
    """Whether a deadline has passed; False if it was moved or removed."""
    return deadline is not None and deadline <= now


def join_reply(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """The current generation. Only the leader sees the members."""
    members = []
    if group.is_leader(member):
        members = [
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.metadata_for(group.protocol),
            )
            for each in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader_id or "",
        member_id=member.member_id,
        members=members,
    )


def join_error(code: ErrorCode, api_version: int, member_id: str) -> JoinGroupResponse:
    # Before version 7 the protocol name cannot be null (KIP-559).
    return JoinGroupResponse(
        error_code=code, member_id=member_id, protocol_name=None if api_version >= 7 else "", generation_id=-1
    )


def sync_reply(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def answer_sync(member: Member, code: ErrorCode, effects: Effects[Any]) -> bool:
    """Answers a member that waits in SyncGroup with an error; returns whether it waited."""
    if member.sync is None:
        return False
    effects.reply(member.sync.request_id, SyncGroupResponse(error_code=code))
    member.sync = None
    return True
