"""DeleteGroups v0-3: deletes empty groups and their offsets (KIP-229).

v2   flexible (KIP-482)
v3   error message

The empty group id is allowed, because it may have offsets.
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.group_requests import require_group
from ottla.broker.handler_support.sliced_response import SlicedResponse, answer_each
from ottla.broker.services import Context
from ottla.coordinator.runtime import settled
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.security.resources import Operation

_MESSAGES = {
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; stop them first",
}

GROUPS_PER_SLICE = 50
"""Each deletion is an append."""


@handles(ApiKey.DELETE_GROUPS)
async def delete_groups(request: DeleteGroupsRequest, context: Context) -> DeleteGroupsResponse | SlicedResponse:
    return await answer_each(
        DeleteGroupsResponse(),
        "results",
        context.api_version,
        # A group that is named twice is deleted and reported once.
        list(dict.fromkeys(request.groups_names)),
        lambda group_id: _delete(group_id, context),
        GROUPS_PER_SLICE,
    )


async def _delete(group_id: str, context: Context) -> DeleteGroupsResponse.DeletableGroupResult:
    message = None
    try:
        require_group(context, Operation.DELETE, group_id)
        code = await settled(
            context.services.groups.submit(
                group_id, lambda shard, request_id, now: shard.delete_group(group_id, request_id)
            )
        )
        message = _MESSAGES.get(code)
    except KafkaError as error:
        code, message = error.code, error.detail or None
    return DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code, error_message=message)
