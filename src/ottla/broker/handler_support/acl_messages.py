"""ACLs and their filters in messages: CreateAcls, DescribeAcls and DeleteAcls have the same fields. Pure."""

from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode, KafkaError
from ottla.security.acls import AclBindingFilter
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType, known

if TYPE_CHECKING:
    from ottla.broker.services import Context
    from ottla.security.authorizer import Authorizer


def authorizer_of(context: "Context") -> "Authorizer":
    """Raises SECURITY_DISABLED without one."""
    authorizer = context.services.authorizer
    if authorizer is None:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED, "No authorizer is configured on the broker: set authorizer.class.name."
        )
    return authorizer


def read_filter(message: Any) -> AclBindingFilter:
    """A filter of DescribeAcls or DeleteAcls. Raises INVALID_REQUEST."""
    found = AclBindingFilter(
        known(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        known(PatternType, message.pattern_type_filter),
        message.principal_filter,
        message.host_filter,
        known(Operation, message.operation),
        known(PermissionType, message.permission_type),
    )
    for field, value in (
        ("resource type", found.resource_type),
        ("pattern type", found.pattern_type),
        ("operation", found.operation),
        ("permission type", found.permission),
    ):
        if value == 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The filter has an unknown {field}.")
    return found
