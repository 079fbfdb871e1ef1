"""ListGroups v0-5: lists the groups that this broker coordinates.

v3   flexible (KIP-482)
v4   filter by state, ignoring case (KIP-518)
v5   filter by type, ignoring case (KIP-848)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


@handles(ApiKey.LIST_GROUPS)
def list_groups(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    groups = context.services.groups
    if groups.is_loading():
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    found = [group for hosted in groups.active_shards() for group in hosted.shard.list(states, types)]
    return ListGroupsResponse(groups=found)
