"""How ACLs are stored: one key for each resource pattern, in Kafka's layout in ZooKeeper. Pure."""

from collections.abc import Sequence
from urllib.parse import quote, unquote

from ottla.metadata.records import RecordError, read_json
from ottla.security.acls import AccessControlEntry, ResourcePattern
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType
from ottla.types import compact_json

LITERAL_ACLS = "/kafka-acl"
PREFIXED_ACLS = "/kafka-acl-extended/prefixed"


def _camel_case(name: str) -> str:
    """
    >>> _camel_case("TRANSACTIONAL_ID")
    'TransactionalId'
    """
    return "".join(word.capitalize() for word in name.split("_"))


_TYPE_NAMES = {kind: _camel_case(kind.name) for kind in ResourceType if kind > ResourceType.ANY}
_OPERATION_NAMES = {operation: _camel_case(operation.name) for operation in Operation if operation > Operation.ANY}
_PERMISSION_NAMES = {PermissionType.ALLOW: "Allow", PermissionType.DENY: "Deny"}
_TYPES = {name: kind for kind, name in _TYPE_NAMES.items()}
_OPERATIONS = {name: operation for operation, name in _OPERATION_NAMES.items()}
_PERMISSIONS = {name: permission for permission, name in _PERMISSION_NAMES.items()}


def acl_key(pattern: ResourcePattern) -> str:
    """The name of a group may have slashes, so it is quoted.

    >>> acl_key(ResourcePattern(ResourceType.GROUP, "a/b", PatternType.PREFIXED))
    '/kafka-acl-extended/prefixed/Group/a%2Fb'
    """
    kind, name, pattern_type = pattern
    parent = PREFIXED_ACLS if pattern_type is PatternType.PREFIXED else LITERAL_ACLS
    return f"{parent}/{_TYPE_NAMES[kind]}/{quote(name, safe='*')}"


def read_pattern(key: str, kind: str, name: str) -> ResourcePattern:
    if kind not in _TYPES:
        raise RecordError(f"{key}: {kind} is not a type of resource")
    is_prefixed = key.startswith(PREFIXED_ACLS)
    return ResourcePattern(_TYPES[kind], unquote(name), PatternType.PREFIXED if is_prefixed else PatternType.LITERAL)


def write_acls(entries: Sequence[AccessControlEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": _PERMISSION_NAMES[entry.permission],
            "operation": _OPERATION_NAMES[entry.operation],
            "host": entry.host,
        }
        for entry in entries
    ]
    return compact_json({"version": 1, "acls": acls})


def read_acls(key: str, value: bytes) -> tuple[AccessControlEntry, ...]:
    try:
        return tuple(
            AccessControlEntry(
                str(each["principal"]),
                str(each["host"]),
                _OPERATIONS[each["operation"]],
                _PERMISSIONS[each["permissionType"]],
            )
            for each in read_json(key, value)["acls"]
        )
    except (KeyError, TypeError) as error:
        raise RecordError(f"{key}: {error!r}") from None
