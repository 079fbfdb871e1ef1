"""ListConfigResources v0-1: the resources that have settings.

v0   client metrics subscriptions (KIP-1000), here none
v1   any type of resource; no type requests all (KIP-1142)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.wire_values import ConfigResourceType
from ottla.security.resources import CLUSTER, Operation

Resource = ListConfigResourcesResponse.ConfigResource


@handles(ApiKey.LIST_CONFIG_RESOURCES)
def list_config_resources(request: ListConfigResourcesRequest, context: Context) -> ListConfigResourcesResponse:
    context.require(Operation.DESCRIBE_CONFIGS, CLUSTER)
    if context.api_version == 0:
        return ListConfigResourcesResponse()
    wanted = set(request.resource_types) or set(ConfigResourceType)
    if not wanted <= set(ConfigResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = context.services.image
    found = []
    if ConfigResourceType.TOPIC in wanted:
        found += [Resource(resource_name=name, resource_type=ConfigResourceType.TOPIC) for name in image.topics]
    for kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        if kind in wanted:
            found += [Resource(resource_name=str(id_), resource_type=kind) for id_ in image.brokers]
    return ListConfigResourcesResponse(config_resources=found)
