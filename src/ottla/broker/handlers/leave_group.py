"""LeaveGroup v0-5: removes members from a classic group.

v0   one member
v3   several members, static ones by instance id (KIP-345)
v4   flexible (KIP-482)
v5   a reason for each member (KIP-800)
"""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group, require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.security.resources import Operation


@handles(ApiKey.LEAVE_GROUP)
def leave_group(request: LeaveGroupRequest, context: Context) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    require_group(context, Operation.READ, request.group_id)
    require_group_id(request.group_id)
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.leave(request, info, request_id, now)
    )
