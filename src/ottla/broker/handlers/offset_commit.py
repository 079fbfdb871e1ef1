"""OffsetCommit v2-10: stores a group's positions. v2-4 may ask for a retention time, v6 leader epochs, v7 static
members, v10 topic ids. An empty group id is allowed, for consumers that only store offsets."""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import request_info
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse


@handles(ApiKey.OFFSET_COMMIT, versions=range(2, 11))
def offset_commit(
    request: OffsetCommitRequest, context: Context
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    info = request_info(context)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.commit_offsets(request, info, request_id, now)
    )
