"""OffsetCommit v2-10: stores committed offsets of a group.

v2   retention time
v5   no retention time: the broker's setting decides (KIP-211)
v6   leader epoch (KIP-320)
v7   static members (KIP-345)
v8   flexible (KIP-482)
v9   GROUP_ID_NOT_FOUND for an unknown group (KIP-848); earlier versions get ILLEGAL_GENERATION
v10  topic ids (KIP-848)

An empty group id is allowed, for consumers that only store offsets.
"""

from collections.abc import Awaitable
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info, require_group
from ottla.broker.handler_support.offset_access import refused_topics, take_refused, then
from ottla.broker.services import Context
from ottla.coordinator.group.offset_requests import COMMIT_BY_ID_SINCE
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.security.resources import Operation


@handles(ApiKey.OFFSET_COMMIT)
def offset_commit(
    request: OffsetCommitRequest, context: Context
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    require_group(context, Operation.READ, request.group_id)
    refused = take_refused(request, context, by_id=context.api_version >= COMMIT_BY_ID_SINCE)
    if not refused:
        return _commit(request, context)
    answer = _commit(request, context) if request.topics else OffsetCommitResponse()
    return then(answer, lambda response: _add_refused(response, refused))


def _commit(request: OffsetCommitRequest, context: Context) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.commit_offsets(request, info, request_id, now)
    )


def _add_refused(response: OffsetCommitResponse, refused: list[Any]) -> OffsetCommitResponse:
    response.topics += refused_topics(
        refused, OffsetCommitResponse.OffsetCommitResponseTopic, OffsetCommitResponse.OffsetCommitResponsePartition
    )
    return response
