"""OffsetCommit v2-10: stores a group's positions. v2-4 may ask for a retention time, v6 leader epochs, v7 static
members, v10 topic ids. An empty group id is allowed, for consumers that only store offsets."""

from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.coordinator.effects import RequestInfo
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_commit import OffsetCommitRequest


@handles(ApiKey.OFFSET_COMMIT, versions=range(2, 11))
def offset_commit(request: OffsetCommitRequest, context: Context) -> Any:
    info = RequestInfo(context.api_version, context.client_id, context.client_host)
    return context.services.groups.submit(
        request.group_id, lambda shard, request_id, now: shard.commit_offsets(request, info, request_id, now)
    )
