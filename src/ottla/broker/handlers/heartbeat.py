"""Heartbeat v0-4: keeps a member of a classic group alive, and tells it to rejoin when the group rebalances.

v3   static members (KIP-345)
v4   flexible (KIP-482)
"""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group, require_group_id
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.security.resources import Operation


@handles(ApiKey.HEARTBEAT)
def heartbeat(request: HeartbeatRequest, context: Context) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    require_group(context, Operation.READ, request.group_id)
    require_group_id(request.group_id)
    info = request_info(context)
    try:
        return context.services.groups.submit(
            request.group_id,
            lambda shard, request_id, now: shard.heartbeat(request, info, request_id, now),
            may_write=False,
        )
    except KafkaError as error:
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Its session starts again after the load; the member can just continue.
            return HeartbeatResponse()
        raise
