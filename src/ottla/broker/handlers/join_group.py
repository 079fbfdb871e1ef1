"""JoinGroup v0-9: joins a classic group. The response is sent when every member has joined.

v1   rebalance timeout (KIP-62); in v0 the session timeout is used
v4   the first request only returns a member id, with MEMBER_ID_REQUIRED (KIP-394)
v5   static members (KIP-345)
v6   flexible (KIP-482)
v7   protocol type in the response; the protocol name can be null (KIP-559)
v8   a reason, kept in the rebalance history (KIP-800)
v9   a static leader that returns must skip the assignment (KIP-814)
"""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group, require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.security.resources import Operation


@handles(ApiKey.JOIN_GROUP)
def join_group(request: JoinGroupRequest, context: Context) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    require_group(context, Operation.READ, request.group_id)
    require_group_id(request.group_id)
    info = request_info(context)
    answer = context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.join(request, info, request_id, now)
    )
    # The response may take minutes. The group has its own copy of the metadata; the request need not keep another.
    request.protocols = []
    return answer
