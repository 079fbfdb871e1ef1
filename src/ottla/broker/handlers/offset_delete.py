"""OffsetDelete v0: deletes committed offsets of a group, in topics that it does not consume (KIP-496)."""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse


@handles(ApiKey.OFFSET_DELETE)
def offset_delete(
    request: OffsetDeleteRequest, context: Context
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    require_group_id(request.group_id)
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.delete_offsets(request, info, request_id, now)
    )
