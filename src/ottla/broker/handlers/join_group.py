"""JoinGroup v0-9: enters a classic group and waits for the others. v4 hands out a member id first (KIP-394), v5 knows
static members, v8 carries a reason, v9 tells a returning leader to skip the assignment."""

from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import require_group_id
from ottla.broker.services import Context
from ottla.coordinator.effects import RequestInfo
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.join_group import JoinGroupRequest


@handles(ApiKey.JOIN_GROUP, versions=range(0, 10))
def join_group(request: JoinGroupRequest, context: Context) -> Any:
    require_group_id(request.group_id)
    info = RequestInfo(context.api_version, context.client_id, context.client_host)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.join(request, info, request_id, now)
    )
