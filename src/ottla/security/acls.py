"""ACLs: which principal may do what, on which resources, from where; and filters to find them. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.security.resources import CLUSTER_NAME, Operation, PatternType, PermissionType, ResourceType, known

WILDCARD = "*"
"""As a resource name: every resource of the type. As a host: every host."""
WILDCARD_PRINCIPAL = "User:*"


class ResourcePattern(NamedTuple):
    """The resources that an ACL applies to: the one with this name, or all whose names start with it."""

    type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.type.name}:{self.pattern_type.name}:{self.name}"


class AccessControlEntry(NamedTuple):
    """What one principal may do, or must not."""

    principal: str
    """As in `User:alice`; `User:*` is everyone."""
    host: str
    """An address, or `*` for all of them."""
    operation: Operation
    permission: PermissionType

    def __str__(self) -> str:
        return f"{self.principal} {self.permission.name} {self.operation.name} from {self.host}"


class AclBinding(NamedTuple):
    """One ACL."""

    pattern: ResourcePattern
    entry: AccessControlEntry

    def __str__(self) -> str:
        return f"{self.entry} on {self.pattern}"


Acls = Mapping[ResourcePattern, tuple[AccessControlEntry, ...]]
"""All ACLs of a cluster."""


class AclBindingFilter(NamedTuple):
    """Finds ACLs. None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Whether ACLs with this resource pattern can match."""
        if self.resource_type not in (ResourceType.ANY, pattern.type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == pattern.name
        # MATCH selects every ACL that applies to the resource with this name.
        if pattern.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(pattern.name)
        return pattern.name in (self.name, WILDCARD)

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        """Whether principal, host, operation and permission match."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (PermissionType.ANY, entry.permission)
        )

    def find(self, acls: Acls) -> list[AclBinding]:
        """The ACLs that match."""
        # One resource is looked up directly: there may be a hundred thousand others.
        if self.name is not None and self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
            types = list(ResourceType) if self.resource_type is ResourceType.ANY else [self.resource_type]
            patterns = [ResourcePattern(kind, self.name, self.pattern_type) for kind in types]
        else:
            patterns = [pattern for pattern in acls if self.matches_pattern(pattern)]
        return [
            AclBinding(pattern, entry)
            for pattern in patterns
            for entry in acls.get(pattern, ())
            if self.matches_entry(entry)
        ]


def binding_in(resource: Any, pattern_type: int, entry: Any) -> AclBinding:
    """The ACL in the parts of a message, in which the pattern type has different names. It may be invalid."""
    return AclBinding(
        ResourcePattern(
            known(ResourceType, resource.resource_type), resource.resource_name, known(PatternType, pattern_type)
        ),
        AccessControlEntry(
            entry.principal,
            entry.host,
            known(Operation, entry.operation),
            known(PermissionType, entry.permission_type),
        ),
    )


def check_binding(binding: AclBinding) -> None:
    """Raises INVALID_REQUEST for an ACL that cannot be created."""
    (kind, name, pattern_type), (principal, host, operation, permission) = binding
    if kind in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"Invalid resourceType {kind.name}")
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {pattern_type.name}")
    if operation in (Operation.UNKNOWN, Operation.ANY):
        raise _invalid(f"Invalid operation {operation.name}")
    if permission not in (PermissionType.ALLOW, PermissionType.DENY):
        raise _invalid(f"Invalid permissionType {permission.name}")
    if kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise _invalid("Invalid empty resource name")
    if not all(principal.partition(":")):
        raise _invalid(f"Invalid principal {principal!r}: it is not of the form TYPE:NAME, for example User:alice")
    if not host:
        raise _invalid("Invalid empty host: use an address, or * for all hosts")


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
