"""OffsetDelete v0: deletes committed offsets of a group, in topics that it does not consume (KIP-496)."""

from collections.abc import Awaitable
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group, require_group_id
from ottla.broker.handler_support.offset_access import refused_topics, take_refused, then
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.security.resources import Operation


@handles(ApiKey.OFFSET_DELETE)
def offset_delete(
    request: OffsetDeleteRequest, context: Context
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    require_group(context, Operation.DELETE, request.group_id)
    require_group_id(request.group_id)
    refused = take_refused(request, context)
    if not refused:
        return _delete(request, context)
    answer = _delete(request, context) if request.topics else OffsetDeleteResponse()
    return then(answer, lambda response: _add_refused(response, refused))


def _delete(request: OffsetDeleteRequest, context: Context) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.delete_offsets(request, info, request_id, now)
    )


def _add_refused(response: OffsetDeleteResponse, refused: list[Any]) -> OffsetDeleteResponse:
    if response.error_code == ErrorCode.NONE:
        response.topics += refused_topics(
            refused, OffsetDeleteResponse.OffsetDeleteResponseTopic, OffsetDeleteResponse.OffsetDeleteResponsePartition
        )
    return response
