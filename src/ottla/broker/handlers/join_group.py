"""JoinGroup v0-9: enters a classic group and waits for the others. v4 hands out a member id first (KIP-394), v5 knows
static members, v8 carries a reason, v9 tells a returning leader to skip the assignment."""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


@handles(ApiKey.JOIN_GROUP, versions=range(0, 10))
def join_group(request: JoinGroupRequest, context: Context) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    require_group_id(request.group_id)
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.join(request, info, request_id, now)
    )
