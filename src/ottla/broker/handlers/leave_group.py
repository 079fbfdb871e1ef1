"""LeaveGroup v0-5: members leave a classic group. v0-2 one member, v3 several, static ones by their instance id too;
v5 a reason for each."""

from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import require_group_id
from ottla.broker.services import Context
from ottla.coordinator.effects import RequestInfo
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.leave_group import LeaveGroupRequest


@handles(ApiKey.LEAVE_GROUP, versions=range(0, 6))
def leave_group(request: LeaveGroupRequest, context: Context) -> Any:
    require_group_id(request.group_id)
    info = RequestInfo(context.api_version, context.client_id, context.client_host)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.leave(request, info, request_id, now)
    )
