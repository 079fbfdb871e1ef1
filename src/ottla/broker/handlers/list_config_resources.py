"""ListConfigResources v0-1: which topics and brokers have settings to describe.

v0 asks for client metrics subscriptions only, of which there are none; v1 names the types, none for all.
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.config_changes import ResourceType
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

Resource = ListConfigResourcesResponse.ConfigResource


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=range(0, 2))
def list_config_resources(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    if context.api_version == 0:
        return ListConfigResourcesResponse()
    wanted = set(request.resource_types) or set(ResourceType)
    if not wanted <= set(ResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = context.services.image
    found = []
    if ResourceType.TOPIC in wanted:
        found += [Resource(resource_name=name, resource_type=ResourceType.TOPIC) for name in image.topics]
    if ResourceType.BROKER in wanted:
        found += [Resource(resource_name=str(id_), resource_type=ResourceType.BROKER) for id_ in image.brokers]
    return ListConfigResourcesResponse(config_resources=found)
