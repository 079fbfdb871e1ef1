"""What handlers of protected resources share: errors, and lists of what a client may see. Pure."""

from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError
from ottla.security.resources import Operation, Resource, ResourceType

if TYPE_CHECKING:
    from ottla.security.principal import Principal

REFUSALS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


def refusal(operation: Operation, resource: Resource, principal: "Principal") -> KafkaError:
    """The error for a client that may not do this."""
    kind = resource.type.name.lower().replace("_", " ")
    name = "" if resource.type is ResourceType.CLUSTER else f" {resource.name}"
    return KafkaError(REFUSALS[resource.type], f"{principal} may not {operation.name} the {kind}{name}")
