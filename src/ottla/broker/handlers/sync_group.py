"""SyncGroup v0-5: the leader sends everyone's assignment, and each member receives its own.

v3   static members (KIP-345)
v4   flexible (KIP-482)
v5   protocol type and name must match the group's (KIP-559)
"""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group, require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.security.resources import Operation


@handles(ApiKey.SYNC_GROUP)
def sync_group(request: SyncGroupRequest, context: Context) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    require_group(context, Operation.READ, request.group_id)
    require_group_id(request.group_id)
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.sync(request, info, request_id, now)
    )
