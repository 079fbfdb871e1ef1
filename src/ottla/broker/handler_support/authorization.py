"""What handlers of protected resources share: errors, and lists of what a client may see. Pure."""

from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.config_changes import ResourceResult
from ottla.protocol.wire_values import ConfigResourceType
from ottla.security.resources import CLUSTER, Operation, Resource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.services import Context
    from ottla.metadata.changes.config_changes import ResourceChange
    from ottla.security.principal import Principal

_CLUSTER_CONFIGS = (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER, ConfigResourceType.CLIENT_METRICS)

REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def check_config_access(context: "Context", operation: Operation, kind: int, name: str) -> None:
    """Raises the error for a client that may not describe or alter the settings of a resource."""
    if context.services.authorizer is None:
        return
    if kind in _CLUSTER_CONFIGS:
        context.require(operation, CLUSTER)
    elif kind == ConfigResourceType.TOPIC:
        context.require(operation, Resource(ResourceType.TOPIC, name))
    elif kind == ConfigResourceType.GROUP:
        context.require(operation, Resource(ResourceType.GROUP, name))


def split_config_changes(
    context: "Context", changes: "Sequence[ResourceChange]"
) -> "tuple[list[ResourceChange], list[ResourceResult]]":
    """The changes of settings that the client may make, and the results of the others."""
    allowed, refused = [], []
    for change in changes:
        try:
            check_config_access(context, Operation.ALTER_CONFIGS, change.resource_type, change.name)
            allowed.append(change)
        except KafkaError as error:
            refused.append(ResourceResult(change.resource_type, change.name, error.code, error.detail))
    return allowed, refused


def refusal(operation: Operation, resource: Resource, principal: "Principal") -> KafkaError:
    """The error for a client that may not do this."""
    kind = resource.type.name.lower().replace("_", " ")
    name = "" if resource.type is ResourceType.CLUSTER else f" {resource.name}"
    return KafkaError(REFUSALS[resource.type], f"{principal} may not {operation.name} the {kind}{name}")
