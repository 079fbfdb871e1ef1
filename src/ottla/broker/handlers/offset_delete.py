"""OffsetDelete v0: forgets a group's positions in topics it does not consume."""

from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import require_group_id
from ottla.broker.services import Context
from ottla.coordinator.effects import RequestInfo
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest


@handles(ApiKey.OFFSET_DELETE, versions=range(0, 1))
def offset_delete(request: OffsetDeleteRequest, context: Context) -> Any:
    require_group_id(request.group_id)
    info = RequestInfo(context.api_version, context.client_id, context.client_host)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.delete_offsets(request, info, request_id, now)
    )
