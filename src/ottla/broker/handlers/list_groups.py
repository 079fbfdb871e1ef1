"""ListGroups v0-5: the groups this broker coordinates. v4 filters by state, v5 by type; both without regard to case."""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


@handles(ApiKey.LIST_GROUPS, versions=range(0, 6))
def list_groups(request: ListGroupsRequest, context: Context) -> ListGroupsResponse:
    groups = context.services.groups
    if groups.is_loading():
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    found = [group for hosted in groups.active_shards() for group in hosted.shard.list(states, types)]
    return ListGroupsResponse(groups=found)
