"""The authorized operations in responses (KIP-430). Pure."""

from typing import TYPE_CHECKING

from ottla.security.resources import CLUSTER, Operation, Resource, ResourceType

if TYPE_CHECKING:
    from ottla.broker.services import Context

NOT_REQUESTED = -(2**31)

OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that exist for a type of resource, and are reported to clients."""

_ALL = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS.items()}


def authorized_operations(context: "Context", resource: Resource) -> int:
    """What the client may do with a resource, one bit for each operation. Without an authorizer that is everything."""
    if context.services.authorizer is None:
        return _ALL[resource.type]
    return sum(
        1 << operation for operation in OPERATIONS[resource.type] if context.allows(operation, resource, quietly=True)
    )


def authorized_cluster_operations(context: "Context") -> int:
    """The same for the cluster: nothing for a client that may not even describe it."""
    return authorized_operations(context, CLUSTER) if context.allows(Operation.DESCRIBE, CLUSTER, quietly=True) else 0
