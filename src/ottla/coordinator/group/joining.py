"""JoinGroup to a classic group: new members, known members, returning static members. Pure."""

import logging
from collections.abc import Callable

from ottla.coordinator.effects import Effects, RequestInfo
from ottla.coordinator.group import history
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState, Member, Waiting
from ottla.coordinator.group.history import Cause
from ottla.coordinator.group.metadata_usage import MetadataUsage, Protocols, size_of
from ottla.coordinator.group.rebalance import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    ClassicRebalance,
    answer_sync,
    join_error,
    join_reply,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

log = logging.getLogger("ottla.coordinator")

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
ID_PREFIX_MAX = 1_000
"""How much of a client id or instance id goes into member ids, which must fit into strings of the protocol."""

WARNING_INTERVAL_MS = 10_000
"""A rejected client keeps retrying; one log line in this time is enough."""


class Join:
    """One JoinGroup request while the rules are applied to it."""

    __slots__ = ("effects", "group", "info", "now", "protocols", "reason", "request", "waiting")

    def __init__(self, request: JoinGroupRequest, info: RequestInfo, request_id: int, now: int) -> None:
        self.request = request
        self.info = info
        self.now = now
        self.effects: Effects[JoinGroupResponse] = Effects()
        self.protocols: Protocols = [(protocol.name, protocol.metadata) for protocol in request.protocols]
        self.reason = request.reason or ""
        self.waiting = Waiting(request_id, info.api_version)
        self.group: ClassicGroup


class Joining:
    """The rules of JoinGroup."""

    def __init__(
        self,
        rebalance: ClassicRebalance,
        make_uuid: Callable[[], str],
        usage: MetadataUsage,
        total_usage: Callable[[], int] | None = None,
    ) -> None:
        self._rebalance = rebalance
        self._config = rebalance.config
        self._groups = rebalance.groups
        self._make_uuid = make_uuid
        self._usage = usage
        self._total_usage = total_usage or (lambda: usage.size_bytes)
        self._silent_until = 0

    def join(
        self, request: JoinGroupRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[JoinGroupResponse]:
        join = Join(request, info, request_id, now)
        try:
            self._join(join)
        except KafkaError as error:
            # A member that does not fit is no longer in the group, so it has no member id.
            member_id = "" if error.code is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
            join.effects.reply(request_id, join_error(error.code, info.api_version, member_id))
        return join.effects

    def _join(self, join: Join) -> None:
        request = join.request
        timeout_ms = request.session_timeout_ms
        if not self._config.group_min_session_timeout_ms <= timeout_ms <= self._config.group_max_session_timeout_ms:
            raise KafkaError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms={timeout_ms} must be between group.min.session.timeout.ms "
                f"({self._config.group_min_session_timeout_ms}) and group.max.session.timeout.ms "
                f"({self._config.group_max_session_timeout_ms})",
            )
        group = self._groups.get(request.group_id)
        is_created = group is None
        if group is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id} does not exist")
            group = ClassicGroup(request.group_id, join.now, self._usage)
        join.group = group
        self._admit(join)
        if not group.supports(request.protocol_type, join.protocols):
            names = ", ".join(name for name, _ in join.protocols) or "none"
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the members of group {group.group_id} share none of the member's protocols of type "
                f"{request.protocol_type or '(empty)'}: {names}",
            )
        self._check_memory(join)
        if is_created:
            self._groups[request.group_id] = group
            self._rebalance.store(group, join.effects)
        if request.member_id:
            self._join_known(join)
        elif request.group_instance_id is not None:
            self._join_static(join)
        else:
            self._join_new(join)

    def _admit(self, join: Join) -> None:
        """Raises if there is no room (`group.max.size`)."""
        group, member_id = join.group, join.request.member_id
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Every member has to rejoin; the last ones to do so do not fit.
            if (member is not None and member.join is not None) or group.joined_count < self._config.group_max_size:
                return
        elif (
            member is not None
            or len(group.members) < self._config.group_max_size
            # A static member takes its own place again.
            or (not member_id and join.request.group_instance_id in group.static_members)
        ):
            return
        why = f"at most {self._config.group_max_size} members"
        raise self._rejection(join, why, f"group {group.group_id} has {self._config.group_max_size} members")

    def _check_memory(self, join: Join) -> None:
        """Raises if there is no room for the member's metadata, in its group or in this broker. All members' metadata
        is sent to the leader in one response, and stays in memory as long as the group."""
        group, request, config = join.group, join.request, self._config
        known = group.static_members.get(request.group_instance_id or "", request.member_id)
        member = group.members.get(known)
        growth = size_of(join.protocols) - (0 if member is None else size_of(member.protocols))
        for name, used, limit in (
            ("ottla.group.metadata.max.bytes", group.metadata_bytes, config.group_metadata_max_bytes),
            ("ottla.groups.metadata.max.bytes", self._total_usage(), config.groups_metadata_max_bytes),
        ):
            if growth > 0 and used + growth > limit:
                detail = (
                    f"group {group.group_id}: client {join.info.client_id!r} at {join.info.client_host} cannot join "
                    f"with {size_of(join.protocols)} bytes of metadata: {used + growth} bytes would be more than "
                    f"{name}={limit}; subscribe to fewer topics, use fewer members, or raise the setting"
                )
                if join.now >= self._silent_until:
                    self._silent_until = join.now + WARNING_INTERVAL_MS
                    log.warning("%s", detail)
                raise self._rejection(join, f"{name}={limit}", detail)

    def _rejection(self, join: Join, why: str, detail: str) -> KafkaError:
        """The error for a member that does not fit. If it was in the group, it is removed."""
        group, member_id = join.group, join.request.member_id
        member = group.members.get(member_id)
        if member is not None:
            self._rebalance.dismiss(group, member, join.now, join.effects)
            cause = Cause(history.NO_ROOM, member_id, why)
            self._rebalance.members_removed(group, join.now, join.effects, [cause])
        elif group.forget_pending(member_id) and group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.complete_if_all_joined(group, join.now, join.effects)
        return KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)

    # --- new members --------------------------------------------------------------------------------------

    def _join_new(self, join: Join) -> None:
        member_id = self._make_id(join.info.client_id)
        if join.info.api_version >= MEMBER_ID_REQUIRED_SINCE:
            # Only the second JoinGroup, with the id, adds a member. If the client never receives this answer, the
            # others do not have to wait for a member that does not exist (KIP-394).
            until = join.now + join.request.session_timeout_ms
            self._rebalance.expect(join.group, member_id, until, join.now, join.effects)
            answer = join_error(ErrorCode.MEMBER_ID_REQUIRED, join.info.api_version, member_id)
            join.effects.reply(join.waiting.request_id, answer)
        else:
            self._add(join, member_id)

    def _add(self, join: Join, member_id: str) -> None:
        group = join.group
        group.begin_story(join.now)
        member = Member(
            member_id,
            join.request.group_instance_id,
            join.info.client_id,
            join.info.client_host,
            0,
            join.request.session_timeout_ms,
            join.protocols,
        )
        self._take_details(join, member)
        member.is_new = True
        group.add(member, join.request.protocol_type)
        group.park(member, join.waiting)
        group.new_member_added = True
        self._rebalance.set_session(group, member, join.now + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare_or_complete(
            group, join.now, join.effects, Cause(history.JOINED, member_id, join.reason)
        )

    def _make_id(self, prefix: str) -> str:
        return f"{prefix[:ID_PREFIX_MAX]}-{self._make_uuid()}"

    # --- members with an id -------------------------------------------------------------------------------

    def _join_known(self, join: Join) -> None:
        group, request, effects = join.group, join.request, join.effects
        if request.member_id in group.pending_members and request.group_instance_id is None:
            self._add(join, request.member_id)
            return
        member = group.member(request.member_id, request.group_instance_id)
        is_unchanged = member.protocols == join.protocols
        if group.state is GroupState.PREPARING_REBALANCE:
            self._update(join, member)
            self._rebalance.complete_if_all_joined(group, join.now, effects)
        elif is_unchanged and not (group.state is GroupState.STABLE and group.is_leader(member)):
            # Its response got lost, or it rejoins for a rebalance that is already over.
            effects.reply(join.waiting.request_id, join_reply(group, member))
        else:
            # A leader that rejoins a stable group requests a new assignment, whatever its reason.
            cause = self._why(join, member, is_unchanged)
            self._update(join, member)
            self._rebalance.prepare(group, join.now, effects, cause)

    def _why(self, join: Join, member: Member, is_unchanged: bool) -> Cause:
        """The cause to record for a rejoin that starts a rebalance."""
        group, now = join.group, join.now
        # Only the chosen protocol of a member read from the log is known, so it seems to have changed.
        metadata = dict(join.protocols).get(group.protocol or "")
        is_same = is_unchanged or (member.is_loaded and metadata == member.metadata_for(group.protocol))
        if not is_same:
            return Cause(history.CHANGED_SUBSCRIPTION, member.member_id, join.reason)
        if group.loaded_at is not None and now - group.loaded_at <= group.rebalance_timeout_ms:
            return Cause(history.COORDINATOR_MOVED, member.member_id, join.reason)
        if not group.is_leader(member):
            return Cause(history.REJOINED, member.member_id, join.reason)
        changed = self._rebalance.changed_topics(group)
        if changed:
            reason = f"{changed}; {join.reason}" if join.reason else changed
            return Cause(history.TOPIC_CHANGED, member.member_id, reason)
        return Cause(history.LEADER_REJOINED, member.member_id, join.reason)

    def _update(self, join: Join, member: Member) -> None:
        """The member rejoins, perhaps with other protocols, and waits."""
        self._take_details(join, member)
        join.group.set_protocols(member, join.protocols)
        earlier = member.join
        if earlier is not None:
            # The client gave up on its first JoinGroup and sent another; only the second gets the real answer.
            answer = join_error(ErrorCode.REBALANCE_IN_PROGRESS, earlier.api_version, member.member_id)
            join.effects.reply(earlier.request_id, answer)
        join.group.park(member, join.waiting)

    # --- static members -----------------------------------------------------------------------------------

    def _join_static(self, join: Join) -> None:
        group, instance_id = join.group, join.request.group_instance_id
        assert instance_id is not None
        new_id = self._make_id(instance_id)
        if instance_id not in group.static_members:
            self._add(join, new_id)
            return
        is_stable = group.state is GroupState.STABLE
        old_leader = group.leader_id
        group.begin_story(join.now)
        member = self._replace(join, instance_id, new_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._update(join, member)
            self._rebalance.complete_if_all_joined(group, join.now, join.effects)
        elif is_stable and group.vote() == group.protocol:
            # It keeps its place and its partitions; the other members do not notice (KIP-345).
            group.story = None
            reply = join_reply(group, member)
            if join.info.api_version >= SKIP_ASSIGNMENT_SINCE:
                reply.skip_assignment = group.is_leader(member)
            else:
                # An older client would run the assignment if it were leader; the id of its predecessor prevents that.
                reply.leader = old_leader or ""
                reply.members = []
            self._rebalance.store(group, join.effects)
            join.effects.reply(join.waiting.request_id, reply)
        else:
            what = history.CHANGED_SUBSCRIPTION if is_stable else history.CAME_BACK
            group.park(member, join.waiting)
            self._rebalance.prepare(group, join.now, join.effects, Cause(what, new_id, join.reason))

    def _replace(self, join: Join, instance_id: str, new_id: str) -> Member:
        """Replaces the member id of a static member; requests under the old id get FENCED_INSTANCE_ID."""
        group = join.group
        old = group.members[group.static_members[instance_id]]
        waiting = group.unpark(old)
        if waiting is not None:
            answer = join_error(ErrorCode.FENCED_INSTANCE_ID, waiting.api_version, old.member_id)
            join.effects.reply(waiting.request_id, answer)
        answer_sync(old, ErrorCode.FENCED_INSTANCE_ID, join.effects)
        member = group.replace_static(instance_id, new_id)
        self._take_details(join, member)
        group.set_protocols(member, join.protocols)
        self._rebalance.restart_session(group, member, join.now)
        return member

    @staticmethod
    def _take_details(join: Join, member: Member) -> None:
        request, info = join.request, join.info
        member.client_id, member.client_host = info.client_id, info.client_host
        member.session_timeout_ms = request.session_timeout_ms
        # Version 0 has no rebalance timeout; the session timeout is used instead (KIP-62).
        member.rebalance_timeout_ms = (
            request.rebalance_timeout_ms if info.api_version >= 1 else request.session_timeout_ms
        )
