"""SyncGroup, Heartbeat and LeaveGroup to a classic group. Pure."""

from typing import Any

from ottla.coordinator.effects import Effects, RequestInfo
from ottla.coordinator.group import history
from ottla.coordinator.group.classic_group import ClassicGroup, GroupState, Waiting
from ottla.coordinator.group.history import Cause
from ottla.coordinator.group.rebalance import ClassicRebalance, answer_sync, sync_reply
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_REQUIRED_SINCE = 5
MEMBER_LIST_SINCE = 3


class Membership:
    """The rules for members of a group."""

    def __init__(self, rebalance: ClassicRebalance) -> None:
        self._rebalance = rebalance
        self._groups = rebalance.groups

    def _existing(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} does not exist")
        return group

    # --- SyncGroup ----------------------------------------------------------------------------------------

    def sync(
        self, request: SyncGroupRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[SyncGroupResponse]:
        effects: Effects[SyncGroupResponse] = Effects()
        try:
            self._sync(request, info, request_id, now, effects)
        except KafkaError as error:
            effects.reply(request_id, SyncGroupResponse(error_code=error.code))
        return effects

    def _sync(
        self, request: SyncGroupRequest, info: RequestInfo, request_id: int, now: int, effects: Effects[Any]
    ) -> None:
        asked = (request.protocol_type, request.protocol_name)
        if info.api_version >= PROTOCOL_REQUIRED_SINCE and None in asked:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"SyncGroup v{info.api_version} needs a protocol type and name"
            )
        group = self._existing(request.group_id)
        member = group.member(request.member_id, request.group_instance_id)
        group.check_generation(request.generation_id)
        if info.api_version >= PROTOCOL_REQUIRED_SINCE and asked != (group.protocol_type, group.protocol):
            known = (group.protocol_type, group.protocol)
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"group {group.group_id} has protocol type and name {known}, not {asked}",
            )
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.mark_synced(member.member_id)
        if group.state is GroupState.STABLE:
            self._rebalance.restart_session(group, member, now)
            effects.reply(request_id, sync_reply(group, member))
            return
        # The client has abandoned an earlier SyncGroup.
        answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, effects)
        member.sync = Waiting(request_id, info.api_version)
        if group.is_leader(member):
            assigned = {part.member_id: part.assignment for part in request.assignments}
            self._rebalance.assign(group, assigned, now, effects)

    # --- Heartbeat ----------------------------------------------------------------------------------------

    def heartbeat(self, request: HeartbeatRequest, request_id: int, now: int) -> Effects[HeartbeatResponse]:
        effects: Effects[HeartbeatResponse] = Effects()
        try:
            group = self._existing(request.group_id)
            member = group.member(request.member_id, request.group_instance_id)
            group.check_generation(request.generation_id)
            self._rebalance.restart_session(group, member, now)
            if group.state is GroupState.PREPARING_REBALANCE:
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
            effects.reply(request_id, HeartbeatResponse())
        except KafkaError as error:
            effects.reply(request_id, HeartbeatResponse(error_code=error.code))
        return effects

    # --- LeaveGroup ---------------------------------------------------------------------------------------

    def leave(
        self, request: LeaveGroupRequest, info: RequestInfo, request_id: int, now: int
    ) -> Effects[LeaveGroupResponse]:
        effects: Effects[LeaveGroupResponse] = Effects()
        if info.api_version < MEMBER_LIST_SINCE:
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
                gone.append(self._leave(group, each, now, effects))
            except KafkaError as error:
                code = error.code
            results.append(
                LeaveGroupResponse.MemberResponse(
                    member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code
                )
            )
        if gone and group is not None:
            self._rebalance.members_removed(group, now, effects, gone)
        if info.api_version < MEMBER_LIST_SINCE:
            response = LeaveGroupResponse(error_code=results[0].error_code)
        else:
            response = LeaveGroupResponse(members=results)
        effects.reply(request_id, response)
        return effects

    def _leave(
        self, group: ClassicGroup, leaving: LeaveGroupRequest.MemberIdentity, now: int, effects: Effects[Any]
    ) -> Cause:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if not member_id and instance_id is not None:
            # An admin client removes a static member, whose current member id it does not know.
            member_id = group.static_members.get(instance_id, "")
        elif group.forget_pending(member_id):
            return Cause(history.LEFT_BEFORE_JOINING, member_id, leaving.reason or "")
        self._rebalance.dismiss(group, group.member(member_id, instance_id), now, effects)
        return Cause(history.LEFT, member_id, leaving.reason or "")
