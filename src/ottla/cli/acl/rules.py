"""Turns the options of `ottla acl`, which are those of kafka-acls, into ACLs and filters. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ottla.errors import ConfigError, OttlaError
from ottla.security.acls import (
    WILDCARD,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    ResourcePattern,
)
from ottla.security.principal import parse_principal
from ottla.security.resources import CLUSTER_NAME, Operation, PatternType, PermissionType, ResourceType

OPERATIONS = {each.name.lower().replace("_", "-"): each for each in Operation if each > Operation.ANY}
_BY_KAFKA_NAME = {name.replace("-", ""): operation for name, operation in OPERATIONS.items()}

PRODUCER_OPERATIONS = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
CONSUMER_OPERATIONS = (Operation.READ, Operation.DESCRIBE)

VALID_OPERATIONS = {
    ResourceType.TOPIC: {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.ALL,
    },
    ResourceType.GROUP: {
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.ALL,
    },
    ResourceType.CLUSTER: {
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.ALL,
    },
    ResourceType.TRANSACTIONAL_ID: {
        Operation.DESCRIBE,
        Operation.WRITE,
        Operation.TWO_PHASE_COMMIT,
        Operation.ALL,
    },
}
"""The operations that brokers check for each type of resource. An ACL for another one would have no effect."""


def parse_operation(text: str) -> Operation:
    """`read`, `Read`, `describe-configs` and Kafka's `DescribeConfigs` are names of operations."""
    found = _BY_KAFKA_NAME.get(text.strip().lower().replace("-", "").replace("_", ""))
    if found is None:
        raise OttlaError(f"{text!r} is not an operation", f"operations: {', '.join(OPERATIONS)}")
    return found


def check_principal(text: str) -> str:
    try:
        return str(parse_principal(text))
    except ConfigError as error:
        raise OttlaError(error.message, error.hint) from None


@dataclass(frozen=True)
class Options:
    """The options that select resources, principals and operations."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False
    pattern_type: PatternType = PatternType.LITERAL
    allowed: Sequence[str] = ()
    denied: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    deny_hosts: Sequence[str] = ()
    operations: Sequence[Operation] = field(default_factory=tuple)
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False

    def resources(self) -> list[ResourcePattern]:
        found = [
            ResourcePattern(kind, name, self.pattern_type)
            for kind, names in (
                (ResourceType.TOPIC, self.topics),
                (ResourceType.GROUP, self.groups),
                (ResourceType.TRANSACTIONAL_ID, self.transactional_ids),
            )
            for name in names
        ]
        if self.cluster:
            # There is only one cluster, so a prefix is meaningless.
            found.append(ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME))
        return found

    def granted(self) -> list[tuple[ResourcePattern, Operation]]:
        """The resources, each with its operations."""
        if not (self.producer or self.consumer):
            return [(pattern, each) for pattern in self.resources() for each in self.operations or (Operation.ALL,)]
        return list(dict.fromkeys(self._for_roles()))

    def _for_roles(self) -> Iterator[tuple[ResourcePattern, Operation]]:
        if self.operations:
            raise OttlaError("--operation cannot be combined with --producer or --consumer", "omit --operation")
        if not self.topics:
            raise OttlaError("--producer and --consumer need a topic", "add --topic NAME")
        if self.consumer and not self.groups:
            raise OttlaError("--consumer needs a group", "add --group NAME, or --group '*' for all groups")
        if self.cluster:
            raise OttlaError("--producer and --consumer cannot be combined with --cluster", "omit --cluster")
        if self.idempotent and not self.producer:
            raise OttlaError("--idempotent needs --producer", "add --producer")
        for pattern in self.resources():
            if pattern.type is ResourceType.TOPIC:
                for operation in PRODUCER_OPERATIONS if self.producer else ():
                    yield pattern, operation
                for operation in CONSUMER_OPERATIONS if self.consumer else ():
                    yield pattern, operation
            elif pattern.type is ResourceType.GROUP and self.consumer:
                yield pattern, Operation.READ
            elif pattern.type is ResourceType.TRANSACTIONAL_ID and self.producer:
                yield pattern, Operation.WRITE
                yield pattern, Operation.DESCRIBE
        if self.idempotent:
            yield ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME), Operation.IDEMPOTENT_WRITE

    def who(self) -> list[tuple[str, str, PermissionType]]:
        """(principal, host, permission) for each combination."""
        found = []
        for permission, principals, hosts, option in (
            (PermissionType.ALLOW, self.allowed, self.allow_hosts, "allow"),
            (PermissionType.DENY, self.denied, self.deny_hosts, "deny"),
        ):
            if hosts and not principals:
                raise OttlaError(f"--{option}-host without --{option}-principal", f"add --{option}-principal User:NAME")
            found += [
                (check_principal(principal), host, permission)
                for principal in principals
                for host in hosts or (WILDCARD,)
            ]
        return found


def bindings_of(options: Options) -> list[AclBinding]:
    """The ACLs to add."""
    if not options.resources():
        raise OttlaError("no resource", "name one with --topic, --group, --transactional-id or --cluster")
    who = options.who()
    if not who:
        raise OttlaError("no principal", "add --allow-principal User:NAME or --deny-principal User:NAME")
    bindings = []
    for pattern, operation in options.granted():
        valid = VALID_OPERATIONS[pattern.type]
        if operation not in valid:
            names = ", ".join(name for name, each in OPERATIONS.items() if each in valid)
            kind = pattern.type.name.lower().replace("_", " ")
            raise OttlaError(f"{operation.name} does not apply to a {kind}", f"operations: {names}")
        bindings += [
            AclBinding(pattern, AccessControlEntry(principal, host, operation, permission))
            for principal, host, permission in who
        ]
    return bindings


def filters_of(options: Options, principals: Sequence[str] = ()) -> list[AclBindingFilter]:
    """The filters for the options of `list` and `remove`. Without a resource, all resources."""
    patterns = options.resources()
    if options.producer or options.consumer:
        wanted = [(pattern.type, pattern.name, operation) for pattern, operation in options.granted()]
    elif patterns:
        wanted = [
            (pattern.type, pattern.name, operation)
            for pattern in patterns
            for operation in options.operations or (Operation.ANY,)
        ]
    else:
        wanted = [(ResourceType.ANY, "", operation) for operation in options.operations or (Operation.ANY,)]
    who: list[tuple[str | None, str | None, PermissionType]] = [
        (principal, host if hosts else None, permission)
        for principal, host, permission in options.who()
        for hosts in (options.allow_hosts if permission is PermissionType.ALLOW else options.deny_hosts,)
    ]
    who += [(check_principal(principal), None, PermissionType.ANY) for principal in principals]
    return [
        AclBindingFilter(
            kind,
            name or None,
            PatternType.LITERAL if kind is ResourceType.CLUSTER else options.pattern_type,
            principal,
            host,
            operation,
            permission,
        )
        for kind, name, operation in wanted
        for principal, host, permission in who or [(None, None, PermissionType.ANY)]
    ]
