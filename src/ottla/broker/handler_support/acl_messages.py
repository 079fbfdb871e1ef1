"""ACLs and their filters in messages: CreateAcls, DescribeAcls and DeleteAcls have the same fields. Pure."""

import enum
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.errors import ErrorCode, KafkaError
from ottla.security.acls import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType

if TYPE_CHECKING:
    from ottla.broker.services import Context
    from ottla.security.authorizer import Authorizer

E = TypeVar("E", bound=enum.IntEnum)


def authorizer_of(context: "Context") -> "Authorizer":
    """Raises SECURITY_DISABLED without one."""
    authorizer = context.services.authorizer
    if authorizer is None:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED, "No authorizer is configured on the broker: set authorizer.class.name."
        )
    return authorizer


def _known(kind: type[E], value: int) -> E:
    """The member with this number; UNKNOWN, which is 0, if there is none."""
    try:
        return kind(value)
    except ValueError:
        return kind(0)


def read_binding(message: Any) -> AclBinding:
    """An ACL of CreateAcls. Whether it is valid is checked later."""
    return AclBinding(
        ResourcePattern(
            _known(ResourceType, message.resource_type),
            message.resource_name,
            _known(PatternType, message.resource_pattern_type),
        ),
        AccessControlEntry(
            message.principal,
            message.host,
            _known(Operation, message.operation),
            _known(PermissionType, message.permission_type),
        ),
    )


def read_filter(message: Any) -> AclBindingFilter:
    """A filter of DescribeAcls or DeleteAcls. Raises INVALID_REQUEST."""
    found = AclBindingFilter(
        _known(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        _known(PatternType, message.pattern_type_filter),
        message.principal_filter,
        message.host_filter,
        _known(Operation, message.operation),
        _known(PermissionType, message.permission_type),
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
