"""The classic rebalance protocol: what JoinGroup, SyncGroup, Heartbeat, LeaveGroup and time do to a group. Pure.

Nothing here waits: a JoinGroup that must wait is noted in the group, and the step that ends the wait (the last member
to join, or a timer) returns the replies for everyone. Deadlines live on the group and its members; the heap only says
when to look.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ottla.coordinator.effects import Deadlines, Effects, RequestInfo
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState, Member, Waiting
from ottla.coordinator.group.config import GroupConfig
from ottla.coordinator.group.records import group_key, group_value
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a member may be parked in its first JoinGroup; it has no session yet that could tell it is gone."""

CHANGED = "changed its subscription"


class Due(NamedTuple):
    """What a deadline is about."""

    kind: str
    group_id: str
    who: str = ""


class Rebalanced(NamedTuple):
    """A rebalance that ended: what `ottla group history` shows."""

    group_id: str
    generation: int
    started: int
    finished: int
    protocol: str | None
    leader: str | None
    causes: list[tuple[str, str, str]]
    """(what happened, the member it happened to, the reason the client gave)."""
    before: dict[str, Any]
    after: dict[str, Any]


class ClassicRebalance:
    """The rules of classic groups, over the groups of one shard."""

    def __init__(
        self, config: GroupConfig, groups: dict[str, Any], deadlines: Deadlines, make_uuid: Callable[[], str]
    ) -> None:
        self._config = config
        self._groups = groups
        self._deadlines = deadlines
        self._make_uuid = make_uuid

    # --- JoinGroup ----------------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        effects = Effects()
        try:
            self._join(request, info, request_id, now, effects)
        except KafkaError as error:
            effects.reply(request_id, _join_error(error.code, info.api_version, request.member_id))
        return effects

    def _join(self, request: JoinGroupRequest, info: RequestInfo, request_id: int, now: int, effects: Effects) -> None:
        timeout_ms = request.session_timeout_ms
        if not self._config.min_session_timeout_ms <= timeout_ms <= self._config.max_session_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, f"{timeout_ms} ms")
        protocols = [(protocol.name, protocol.metadata) for protocol in request.protocols]
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {request.group_id}")
            group = ClassicGroup(request.group_id, now)
            if not group.supports(request.protocol_type, protocols):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a protocol type and a protocol are needed")
            self._groups[request.group_id] = group
            self._store(group, effects)
        self._admit(group, request.member_id)
        if not group.supports(request.protocol_type, protocols):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {group.group_id} has none of these")
        waiting = Waiting(request_id, info.api_version)
        if request.member_id:
            self._join_known(group, request, protocols, info, waiting, now, effects)
        elif request.group_instance_id is not None:
            self._join_static(group, request, protocols, info, waiting, now, effects)
        elif info.api_version >= 4:
            # Only the second JoinGroup, with the id, makes a member: a client that never gets this answer leaves
            # nothing behind that others would have to wait for (KIP-394).
            member_id = f"{info.client_id}-{self._make_uuid()}"
            group.pending_members[member_id] = now + timeout_ms
            self._deadlines.add(now + timeout_ms, Due("pending", group.group_id, member_id))
            effects.reply(request_id, _join_error(ErrorCode.MEMBER_ID_REQUIRED, info.api_version, member_id))
        else:
            member_id = f"{info.client_id}-{self._make_uuid()}"
            self._add(group, member_id, request, protocols, info, waiting, now, effects)

    def _admit(self, group: ClassicGroup, member_id: str) -> None:
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Everybody has to come again: the slowest are those for whom there is no room.
            if (member is not None and member.join is not None) or group.waiting_joins() < self._config.max_size:
                return
        elif member is not None or len(group.members) < self._config.max_size:
            return
        if member is not None:
            group.remove(member_id)
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id} has {self._config.max_size} members"
        )

    def _join_known(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        protocols: list[tuple[str, bytes]],
        info: RequestInfo,
        waiting: Waiting,
        now: int,
        effects: Effects,
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending_members:
            self._add(group, member_id, request, protocols, info, waiting, now, effects)
            return
        member = group.member(member_id, request.group_instance_id)
        unchanged = member.protocols == protocols
        reason = request.reason or ""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._update(group, member, request, protocols, info, waiting, effects)
            self._complete_if_all_joined(group, now, effects)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            if unchanged:
                # The answer got lost: give it again.
                effects.reply(waiting.request_id, self._join_reply(group, member, waiting.api_version))
            else:
                self._update(group, member, request, protocols, info, waiting, effects)
                self._prepare(group, now, effects, (CHANGED, member_id, reason))
        elif group.state is GroupState.STABLE:
            if member_id == group.leader_id:
                # The leader rejoins to have the assignment made anew: metadata changed, or it was told to.
                self._update(group, member, request, protocols, info, waiting, effects)
                cause = "leader rejoined" if unchanged else CHANGED
                self._prepare(group, now, effects, (cause, member_id, reason))
            elif not unchanged:
                self._update(group, member, request, protocols, info, waiting, effects)
                self._prepare(group, now, effects, (CHANGED, member_id, reason))
            else:
                effects.reply(waiting.request_id, self._join_reply(group, member, waiting.api_version))
        else:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} is {group.state}")

    def _join_static(
        self,
        group: ClassicGroup,
        request: JoinGroupRequest,
        protocols: list[tuple[str, bytes]],
        info: RequestInfo,
        waiting: Waiting,
        now: int,
        effects: Effects,
    ) -> None:
        instance_id = request.group_instance_id
        assert instance_id is not None
        new_id = f"{instance_id}-{self._make_uuid()}"
        old_id = group.static_members.get(instance_id)
        if old_id is None:
            self._add(group, new_id, request, protocols, info, waiting, now, effects)
            return
        old = group.members[old_id]
        old_leader = group.leader_id
        _answer_fenced(old, effects)
        member = group.replace_static(instance_id, new_id)
        self.restart_session(group, member, now)
        if group.state is GroupState.STABLE:
            before = group.protocol
            old_protocols, member.protocols = member.protocols, protocols
            if group.vote() == before:
                # Its place and its partitions waited for it: nobody else needs to notice (KIP-345).
                self._take_details(member, request, info)
                reply = self._join_reply(group, member, waiting.api_version)
                if waiting.api_version >= 9:
                    reply.skip_assignment = member.member_id == group.leader_id
                else:
                    # Older clients would assign anew on finding themselves leader; an id nobody has stops them.
                    reply.leader = old_leader or ""
                    reply.members = []
                self._store(group, effects)
                effects.reply(waiting.request_id, reply)
                return
            member.protocols = old_protocols
            self._update(group, member, request, protocols, info, waiting, effects)
            self._prepare(group, now, effects, (CHANGED, new_id, request.reason or ""))
        elif group.state is GroupState.COMPLETING_REBALANCE:
            self._update(group, member, request, protocols, info, waiting, effects)
            self._prepare(group, now, effects, ("static member came back", new_id, request.reason or ""))
        else:
            self._update(group, member, request, protocols, info, waiting, effects)
            self._complete_if_all_joined(group, now, effects)

    def _add(
        self,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        protocols: list[tuple[str, bytes]],
        info: RequestInfo,
        waiting: Waiting,
        now: int,
        effects: Effects,
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            info.client_id,
            info.client_host,
            0,
            request.session_timeout_ms,
            protocols,
        )
        self._take_details(member, request, info)
        member.is_new = True
        member.join = waiting
        group.add(member, request.protocol_type)
        group.new_member_added = True
        self._set_session(group, member, now + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare_or_complete(group, now, effects, ("joined", member_id, request.reason or ""))

    def _update(
        self,
        group: ClassicGroup,
        member: Member,
        request: JoinGroupRequest,
        protocols: list[tuple[str, bytes]],
        info: RequestInfo,
        waiting: Waiting,
        effects: Effects,
    ) -> None:
        member.protocols = protocols
        self._take_details(member, request, info)
        if member.join is not None:
            # The client gave up on its first JoinGroup and sent another: only one can be answered in earnest.
            effects.reply(
                member.join.request_id,
                _join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.join.api_version, member.member_id),
            )
        member.join = waiting

    @staticmethod
    def _take_details(member: Member, request: JoinGroupRequest, info: RequestInfo) -> None:
        member.client_id, member.client_host = info.client_id, info.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = (
            request.rebalance_timeout_ms if info.api_version >= 1 else request.session_timeout_ms
        )

    # --- the join phase -----------------------------------------------------------------------------------

    def _prepare_or_complete(
        self, group: ClassicGroup, now: int, effects: Effects, cause: tuple[str, str, str]
    ) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            group.causes.append(cause)
            self._complete_if_all_joined(group, now, effects)
        else:
            self._prepare(group, now, effects, cause)

    def _prepare(self, group: ClassicGroup, now: int, effects: Effects, cause: tuple[str, str, str]) -> None:
        """Asks everyone to join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                _answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, effects)
        else:
            group.previous_assignments = group.assignments()
            group.rebalance_started = now
        group.causes.append(cause)
        group.sync_deadline = None
        group.pending_sync.clear()
        was_empty = group.is_empty
        group.move(GroupState.PREPARING_REBALANCE, now)
        if was_empty:
            # The first to come waits a little for the others, so that they start with one rebalance, not many.
            delay = self._config.initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay, 0)
            group.new_member_added = False
            self._set_join_deadline(group, now + delay)
        else:
            self._set_join_deadline(group, now + group.rebalance_timeout_ms)
            self._complete_if_all_joined(group, now, effects)

    def _complete_if_all_joined(self, group: ClassicGroup, now: int, effects: Effects) -> None:
        if group.initial_delay_left_ms is None and group.has_all_joined():
            self._complete_join(group, now, effects)

    def _complete_join(self, group: ClassicGroup, now: int, effects: Effects) -> None:
        """Ends the join phase: who did not come is out (unless static), the rest gets a new generation."""
        group.initial_delay_left_ms = group.join_deadline = None
        for member in [m for m in group.members.values() if m.join is None and not m.is_static]:
            group.remove(member.member_id)
            group.causes.append(("did not rejoin in time", member.member_id, ""))
        if group.members and not group.elect_joined_leader():
            # Only static members that have not come: keep their places for another round.
            self._set_join_deadline(group, now + group.rebalance_timeout_ms)
            return
        group.generation += 1
        group.new_member_added = False
        if not group.members:
            self._become_empty(group, now, effects)
            return
        group.protocol = group.vote()
        group.refresh_subscriptions()
        group.move(GroupState.COMPLETING_REBALANCE, now)
        for member in group.members.values():
            member.is_new = False
            if member.join is not None:
                effects.reply(member.join.request_id, self._join_reply(group, member, member.join.api_version))
                member.join = None
            self.restart_session(group, member, now)
        group.pending_sync = set(group.members)
        self._set_sync_deadline(group, now + group.rebalance_timeout_ms)

    def _become_empty(self, group: ClassicGroup, now: int, effects: Effects) -> None:
        group.protocol = group.leader_id = None
        group.subscribed_topics = set()
        group.move(GroupState.EMPTY, now)
        self._store(group, effects)
        self._note(group, now, effects)

    def _join_reply(self, group: ClassicGroup, member: Member, api_version: int) -> JoinGroupResponse:
        members = []
        if member.member_id == group.leader_id:
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

    # --- SyncGroup ----------------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        effects = Effects()
        try:
            self._sync(request, info, request_id, now, effects)
        except KafkaError as error:
            effects.reply(request_id, SyncGroupResponse(error_code=error.code))
        return effects

    def _sync(self, request: SyncGroupRequest, info: RequestInfo, request_id: int, now: int, effects: Effects) -> None:
        group = self._existing(request.group_id)
        member = group.member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{request.generation_id} is not {group.generation}")
        for asked, actual in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
            if asked is not None and asked != actual:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{asked} is not {actual}")
        if group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.discard(member.member_id)
        if group.state is GroupState.STABLE:
            self.restart_session(group, member, now)
            effects.reply(request_id, self._sync_reply(group, member))
            return
        _answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, effects)
        member.sync = Waiting(request_id, info.api_version)
        if member.member_id != group.leader_id:
            return
        assigned = {part.member_id: part.assignment for part in request.assignments}
        for each in group.members.values():
            each.assignment = assigned.get(each.member_id, b"")
        # Stable from here on; the replies leave when the record is committed, and if it cannot be appended this
        # shard is loaded anew without it.
        group.move(GroupState.STABLE, now)
        self._store(group, effects)
        for each in group.members.values():
            if each.sync is not None:
                effects.reply(each.sync.request_id, self._sync_reply(group, each))
                each.sync = None
                self.restart_session(group, each, now)
        self._note(group, now, effects)

    @staticmethod
    def _sync_reply(group: ClassicGroup, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
        )

    # --- Heartbeat and LeaveGroup -------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, now: int) -> HeartbeatResponse:
        group = self._existing(request.group_id)
        member = group.member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{request.generation_id} is not {group.generation}")
        if group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self.restart_session(group, member, now)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def leave(self, request: LeaveGroupRequest, info: RequestInfo, request_id: int, now: int) -> Effects:
        effects = Effects()
        if info.api_version < 3:
            leaving = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
        else:
            leaving = request.members
        group = self._groups.get(request.group_id)
        results, gone = [], []
        for each in leaving:
            code = ErrorCode.NONE
            try:
                if group is None:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                if each.member_id in group.pending_members:
                    del group.pending_members[each.member_id]
                    gone.append(("left before joining", each.member_id, each.reason or ""))
                else:
                    member_id = each.member_id
                    if not member_id and each.group_instance_id is not None:
                        member_id = group.static_members.get(each.group_instance_id, "")
                    member = group.member(member_id, each.group_instance_id)
                    self._dismiss(group, member, effects)
                    gone.append(("left", member_id, each.reason or ""))
            except KafkaError as error:
                code = error.code
            results.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code
                )
            )
        if gone and group is not None:
            self._went(group, now, effects, gone)
        if info.api_version < 3:
            response = LeaveGroupResponse(error_code=results[0].error_code)
        else:
            response = LeaveGroupResponse(members=results)
        effects.reply(request_id, response)
        return effects

    def _dismiss(self, group: ClassicGroup, member: Member, effects: Effects) -> None:
        group.remove(member.member_id)
        if member.join is not None:
            effects.reply(member.join.request_id, _join_error(ErrorCode.UNKNOWN_MEMBER_ID, member.join.api_version, ""))
            member.join = None
        _answer_sync(member, ErrorCode.UNKNOWN_MEMBER_ID, effects)

    def _went(self, group: ClassicGroup, now: int, effects: Effects, causes: list[tuple[str, str, str]]) -> None:
        """Members are gone: the rest shares what they had."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            group.causes.extend(causes[:-1])
            self._prepare(group, now, effects, causes[-1])
        elif group.state is GroupState.PREPARING_REBALANCE:
            group.causes.extend(causes)
            self._complete_if_all_joined(group, now, effects)

    # --- time ---------------------------------------------------------------------------------------------

    def due(self, when: int, due: Due, now: int, effects: Effects) -> None:
        """A deadline fired. Its owner knows whether it still holds; one that moved is put back."""
        group = self._groups.get(due.group_id)
        if group is None:
            return
        if due.kind == "session":
            self._session_due(group, when, due, now, effects)
        elif due.kind == "join":
            if _holds(group.join_deadline, now):
                self._join_due(group, now, effects)
        elif due.kind == "sync":
            if _holds(group.sync_deadline, now):
                self._sync_due(group, now, effects)
        elif due.kind == "pending" and _holds(group.pending_members.get(due.who), now):
            del group.pending_members[due.who]
            if group.state is GroupState.PREPARING_REBALANCE:
                self._complete_if_all_joined(group, now, effects)

    def _session_due(self, group: ClassicGroup, when: int, due: Due, now: int, effects: Effects) -> None:
        member = group.members.get(due.who)
        if member is None or when != member.session_entry:
            return
        deadline = member.session_deadline
        if deadline is not None and deadline > now:
            member.session_entry = deadline
            self._deadlines.add(deadline, due)
            return
        member.session_deadline = None
        if not member.is_new and (member.join is not None or member.sync is not None):
            # It waits for us, so it is alive; its session starts again with the answer.
            return
        self._dismiss(group, member, effects)
        reason = "never confirmed its place" if member.is_new else "timed out"
        self._went(
            group, now, effects, [(reason, member.member_id, f"no heartbeat for {member.session_timeout_ms} ms")]
        )

    def _join_due(self, group: ClassicGroup, now: int, effects: Effects) -> None:
        group.join_deadline = None
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        left = group.initial_delay_left_ms
        if left and group.new_member_added:
            delay = min(self._config.initial_rebalance_delay_ms, left)
            group.new_member_added = False
            group.initial_delay_left_ms = max(left - delay, 0)
            self._set_join_deadline(group, now + delay)
        else:
            self._complete_join(group, now, effects)

    def _sync_due(self, group: ClassicGroup, now: int, effects: Effects) -> None:
        group.sync_deadline = None
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        gone = []
        for member_id in sorted(group.pending_sync):
            member = group.members.get(member_id)
            if member is not None:
                self._dismiss(group, member, effects)
                gone.append(("never synced", member_id, ""))
        if gone:
            self._went(group, now, effects, gone)

    def start_sessions(self, group: ClassicGroup, now: int) -> None:
        """After a load every member's session begins afresh."""
        for member in group.members.values():
            self.restart_session(group, member, now)

    def restart_session(self, group: ClassicGroup, member: Member, now: int) -> None:
        deadline = now + member.session_timeout_ms
        if member.session_deadline is None or deadline < member.session_entry:
            self._set_session(group, member, deadline)
        else:
            # The entry in the heap fires early and is put back, so a heartbeat costs no heap operation.
            member.session_deadline = deadline

    def _set_session(self, group: ClassicGroup, member: Member, deadline: int) -> None:
        member.session_deadline = member.session_entry = deadline
        self._deadlines.add(deadline, Due("session", group.group_id, member.member_id))

    def _set_join_deadline(self, group: ClassicGroup, deadline: int) -> None:
        group.join_deadline = deadline
        self._deadlines.add(deadline, Due("join", group.group_id))

    def _set_sync_deadline(self, group: ClassicGroup, deadline: int) -> None:
        group.sync_deadline = deadline
        self._deadlines.add(deadline, Due("sync", group.group_id))

    @staticmethod
    def _store(group: ClassicGroup, effects: Effects) -> None:
        effects.append(group_key(group.group_id), group_value(group.to_record()))
        effects.is_soft = True

    # --- shared -------------------------------------------------------------------------------------------

    def _existing(self, group_id: str) -> ClassicGroup:
        group: ClassicGroup | None = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id}")
        return group

    def _note(self, group: ClassicGroup, now: int, effects: Effects) -> None:
        started = group.rebalance_started if group.rebalance_started is not None else now
        effects.events.append(
            Rebalanced(
                group.group_id,
                group.generation,
                started,
                now,
                group.protocol,
                group.leader_id,
                group.causes,
                group.previous_assignments,
                group.assignments(),
            )
        )
        group.causes = []
        group.rebalance_started = None
        group.previous_assignments = {}


def _holds(deadline: int | None, now: int) -> bool:
    """Whether a deadline that fired is the one its owner means: a later one has an entry of its own."""
    return deadline is not None and deadline <= now


def _join_error(code: ErrorCode, api_version: int, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, member_id=member_id, protocol_name=None if api_version >= 7 else "", generation_id=-1
    )


def _answer_sync(member: Member, code: ErrorCode, effects: Effects) -> None:
    if member.sync is not None:
        effects.reply(member.sync.request_id, SyncGroupResponse(error_code=code))
        member.sync = None


def _answer_fenced(member: Member, effects: Effects) -> None:
    """A newer instance took the place: whoever waits under the old id is told so."""
    if member.join is not None:
        effects.reply(
            member.join.request_id,
            _join_error(ErrorCode.FENCED_INSTANCE_ID, member.join.api_version, member.member_id),
        )
        member.join = None
    _answer_sync(member, ErrorCode.FENCED_INSTANCE_ID, effects)
