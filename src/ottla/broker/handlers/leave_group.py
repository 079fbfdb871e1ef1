"""LeaveGroup v0-5: members leave a classic group. v0-2 one member, v3 several, static ones by their instance id too;
v5 a reason for each."""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse


@handles(ApiKey.LEAVE_GROUP, versions=range(0, 6))
def leave_group(request: LeaveGroupRequest, context: Context) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    require_group_id(request.group_id)
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.leave(request, info, request_id, now)
    )
