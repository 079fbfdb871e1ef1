"""OffsetDelete v0: forgets a group's positions in topics it does not consume."""

from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.group_requests import require_group_id
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest


@handles(ApiKey.OFFSET_DELETE, versions=range(0, 1))
def offset_delete(request: OffsetDeleteRequest, context: Context) -> Any:
    require_group_id(request.group_id)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.delete_offsets(request, request_id)
    )
