"""DescribeGroups v0-6: describes classic groups and their members.

v3   authorized operations (KIP-430)
v4   group instance ids (KIP-345)
v5   flexible (KIP-482)
v6   an unknown group is GROUP_ID_NOT_FOUND (KIP-1043); earlier versions get a Dead group
"""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.authorized_operations import authorized_operations
from ottla.broker.handler_support.group_requests import require_group
from ottla.broker.handler_support.sliced_response import SlicedResponse, answer_each
from ottla.broker.services import Context
from ottla.coordinator.runtime import settled
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.security.resources import Operation, Resource, ResourceType

GROUPS_PER_SLICE = 20
"""A group may have many members."""


@handles(ApiKey.DESCRIBE_GROUPS)
async def describe_groups(request: DescribeGroupsRequest, context: Context) -> DescribeGroupsResponse | SlicedResponse:
    return await answer_each(
        DescribeGroupsResponse(),
        "groups",
        context.api_version,
        # A group that is named twice is described once, so that a small request cannot cause a huge response.
        list(dict.fromkeys(request.groups)),
        lambda group_id: _describe(group_id, request.include_authorized_operations, context),
        GROUPS_PER_SLICE,
    )


async def _describe(group_id: str, with_operations: bool, context: Context) -> DescribeGroupsResponse.DescribedGroup:
    try:
        require_group(context, Operation.DESCRIBE, group_id)
        described = await settled(
            context.services.groups.read(group_id, lambda shard: shard.describe(group_id, context.api_version))
        )
    except KafkaError as error:
        described = DescribeGroupsResponse.DescribedGroup(group_id=group_id, error_code=error.code)
        if context.api_version >= 6:
            described.error_message = error.detail or None
    if with_operations and described.error_code == ErrorCode.NONE:
        described.authorized_operations = authorized_operations(context, Resource(ResourceType.GROUP, group_id))
    return described
