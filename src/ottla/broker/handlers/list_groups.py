"""ListGroups v0-5: lists the groups that this broker coordinates.

v3   flexible (KIP-482)
v4   filter by state, ignoring case (KIP-518)
v5   filter by type, ignoring case (KIP-848)
"""

from collections.abc import Awaitable

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.later import Later
from ottla.broker.handler_support.sliced_response import SLICE, SlicedResponse, in_slices
from ottla.broker.services import Context
from ottla.coordinator.group.classic_group import ClassicGroup
from ottla.coordinator.group.shard import listed
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.security.resources import CLUSTER, Operation, ResourceType


@handles(ApiKey.LIST_GROUPS)
def list_groups(
    request: ListGroupsRequest, context: Context
) -> ListGroupsResponse | Awaitable[ListGroupsResponse | SlicedResponse]:
    groups = context.services.groups
    if groups.is_loading():
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    found = [group for hosted in groups.active_shards() for group in hosted.shard.groups.values()]
    if not context.allows(Operation.DESCRIBE, CLUSTER, quietly=True):
        describable = context.allowed(Operation.DESCRIBE, ResourceType.GROUP, quietly=True)
        found = [group for group in found if describable is None or describable[group.group_id]]
    if len(found) <= SLICE:
        return ListGroupsResponse(groups=listed(found, states, types))
    return Later(lambda: _in_slices(found, states, types, context.api_version))


async def _in_slices(found: list[ClassicGroup], states: set[str], types: set[str], version: int) -> SlicedResponse:
    """A group that changes meanwhile is listed in its old or its new state."""
    response = SlicedResponse(ListGroupsResponse(), "groups", version)
    for groups in in_slices(found):
        await response.add(listed(groups, states, types))
    return response
