"""Decides by ACLs what a principal may do, as Kafka's StandardAuthorizer does. Pure.

A super user may do everything. Otherwise an ACL that denies overrides all that allow, and if no ACL matches, access is
denied. An authorizer is immutable: new ACLs create a new one, so decisions can be cached.
"""

import enum
import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from ottla.checks import TOPIC_NAME_LENGTH_MAX
from ottla.security.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AccessControlEntry,
    AclBinding,
    Acls,
    ResourcePattern,
)
from ottla.security.principal import Principal
from ottla.security.resources import NOT_REPORTED, Operation, PatternType, PermissionType, Resource, ResourceType

CACHED_MAX = 50_000
"""The most cached decisions and clients. Beyond it, the cache is cleared."""
CACHED_NAME_MAX = TOPIC_NAME_LENGTH_MAX
"""Longer names, which only hostile clients send in large numbers, are not cached."""

_NO_ACLS: Acls = {}

IMPLYING_DESCRIBE = frozenset(
    (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL)
)
IMPLYING_DESCRIBE_CONFIGS = frozenset((Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL))


class Reason(enum.Enum):
    """Why something is allowed or denied."""

    SUPER_USER = "super user"
    DENY = "an ACL denies it"
    ALLOW = "an ACL allows it"
    NO_MATCH = "no ACL matches"
    NO_ACLS = "the resource has no ACLs"


class Verdict(NamedTuple):
    """A decision, and what it is based on."""

    is_allowed: bool
    reason: Reason
    acl: AclBinding | None = None
    """The ACL that decided, if one did."""


class Denial(NamedTuple):
    """An operation that a client was denied. Denials from the cache are reported too."""

    principal: Principal
    host: str
    operation: Operation
    resource: Resource
    api_key: int


def _ignore(denial: Denial, authorizer: "Authorizer") -> None: ...


class Decisions(dict[str, bool]):
    """Whether one client may do one operation, by the name of the resource. Look names up with `[]`.

    The dictionary holds the allowed names; all others go through `__missing__`, which reports denials.
    """

    __slots__ = ("_api_key", "_authorizer", "_denied", "_host", "_operation", "_principal", "_type")

    def __init__(
        self,
        authorizer: "Authorizer",
        principal: Principal,
        host: str,
        operation: Operation,
        kind: ResourceType,
        api_key: int,
    ) -> None:
        super().__init__()
        self._api_key = api_key
        self._denied: set[str] = set()
        self._authorizer = authorizer
        self._principal = principal
        self._host = host
        self._operation = operation
        self._type = kind

    def __missing__(self, name: str) -> bool:
        authorizer, resource = self._authorizer, Resource(self._type, name)
        if name not in self._denied:
            is_allowed = authorizer.decide(self._principal, self._host, self._operation, resource).is_allowed
            if len(name) <= CACHED_NAME_MAX:
                authorizer.count_cached()
                if is_allowed:
                    self[name] = True
                else:
                    self._denied.add(name)
            if is_allowed:
                return True
        if self._api_key != NOT_REPORTED:
            denial = Denial(self._principal, self._host, self._operation, resource, self._api_key)
            authorizer.on_denied(denial, authorizer)
        return False

    @property
    def cached_count(self) -> int:
        return len(self) + len(self._denied)


class Authorizer:
    """Decides by one set of ACLs."""

    def __init__(
        self,
        acls: Acls = _NO_ACLS,
        *,
        super_users: Collection[Principal] = (),
        allow_everyone_if_no_acl_found: bool = False,
        on_denied: "Callable[[Denial, Authorizer], None]" = _ignore,
    ) -> None:
        self.acls = acls
        self.super_users = frozenset(super_users)
        self.allow_everyone_if_no_acl_found = allow_everyone_if_no_acl_found
        self.on_denied = on_denied
        """Called with each denial."""
        self._prefix_lengths: dict[ResourceType, list[int]] = {}
        """The lengths of the prefixes that have ACLs: of each length, only one prefix can match a name."""
        lengths: dict[ResourceType, set[int]] = {}
        for kind, name, pattern_type in acls:
            if pattern_type is PatternType.PREFIXED:
                lengths.setdefault(kind, set()).add(len(name))
        for kind, found in lengths.items():
            self._prefix_lengths[kind] = sorted(found, reverse=True)
        self._clients: dict[tuple[Principal, str, int], list[Decisions | None]] = {}
        """For each client and API: the decisions by resource type and operation."""
        self._any: dict[tuple[Principal, str, Operation, ResourceType], bool] = {}
        self._cached = 0

    def with_acls(self, acls: Acls) -> "Authorizer":
        """The same rules with other ACLs."""
        return Authorizer(
            acls,
            super_users=self.super_users,
            allow_everyone_if_no_acl_found=self.allow_everyone_if_no_acl_found,
            on_denied=self.on_denied,
        )

    # -- queries --

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource: Resource,
        api_key: int = NOT_REPORTED,
    ) -> bool:
        """Whether a client with this principal and address may do it."""
        return self.decisions(principal, host, operation, resource.type, api_key)[resource.name]

    def decisions(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        kind: ResourceType,
        api_key: int = NOT_REPORTED,
    ) -> Decisions:
        """What a client may do, by the names of resources; cached. Denials are reported with the API key."""
        by_client = self._clients.get((principal, host, api_key))
        if by_client is None:
            self.count_cached()
            by_client = self._clients[principal, host, api_key] = [None] * _SLOTS
        slot = kind << 4 | operation
        found = by_client[slot]
        if found is None:
            found = by_client[slot] = Decisions(self, principal, host, operation, kind, api_key)
        return found

    def decide(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> Verdict:
        """A decision with its reason."""
        if principal in self.super_users:
            return Verdict(True, Reason.SUPER_USER)
        host, who = canonical_host(host), str(principal)
        allowing: AclBinding | None = None
        has_acls = False
        for pattern in self._patterns(resource):
            for entry in self.acls.get(pattern, ()):
                has_acls = True
                if _applies(entry, who, host, operation):
                    if entry.permission is PermissionType.DENY:
                        return Verdict(False, Reason.DENY, AclBinding(pattern, entry))
                    allowing = allowing or AclBinding(pattern, entry)
        if allowing is not None:
            return Verdict(True, Reason.ALLOW, allowing)
        if has_acls:
            return Verdict(False, Reason.NO_MATCH)
        return Verdict(self.allow_everyone_if_no_acl_found, Reason.NO_ACLS)

    def allows_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there can be a resource of this type on which the client may do this (KIP-679)."""
        key = (principal, host, operation, kind)
        found = self._any.get(key)
        if found is None:
            self.count_cached()
            found = self._any[key] = self._decide_any(principal, host, operation, kind)
        return found

    # -- implementation --

    def _patterns(self, resource: Resource) -> Iterator[ResourcePattern]:
        """The patterns that match a resource, if there are ACLs for them."""
        kind, name = resource
        yield ResourcePattern(kind, name)
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                yield ResourcePattern(kind, name[:length], PatternType.PREFIXED)
        if name != WILDCARD:
            yield ResourcePattern(kind, WILDCARD)

    def _decide_any(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        # Any name works to check for super users, ACLs for all names, and allow.everyone.if.no.acl.found.
        if self.decide(principal, host, operation, Resource(kind, "hardcode")).is_allowed:
            return True
        host, who = canonical_host(host), str(principal)
        allowed: list[ResourcePattern] = []
        denied: set[ResourcePattern] = set()
        for pattern, entries in self.acls.items():
            if pattern.type is not kind:
                continue
            for entry in entries:
                # Implied operations are ignored: callers check operations that no other implies.
                if entry.operation not in (operation, Operation.ALL) or not _is_from(entry, who, host):
                    continue
                if entry.permission is PermissionType.ALLOW:
                    allowed.append(pattern)
                else:
                    denied.add(pattern)
        everything = ResourcePattern(kind, WILDCARD)
        if everything in denied:
            return False
        return any(pattern == everything or not _is_denied(pattern, denied) for pattern in allowed)

    @property
    def cached_count(self) -> int:
        """How many clients and decisions are cached."""
        decisions = (each for client in self._clients.values() for each in client if each is not None)
        return len(self._any) + len(self._clients) + sum(each.cached_count for each in decisions)

    def count_cached(self) -> None:
        self._cached += 1
        if self._cached > CACHED_MAX:
            self._clients.clear()
            self._any.clear()
            self._cached = 0


_SLOTS = (max(ResourceType) << 4 | max(Operation)) + 1


def _applies(entry: AccessControlEntry, who: str, host: str, operation: Operation) -> bool:
    if not _is_from(entry, who, host):
        return False
    granted = entry.operation
    if granted is operation or granted is Operation.ALL:
        return True
    if entry.permission is not PermissionType.ALLOW:
        # Only ALLOW implies other operations: a denied READ does not deny DESCRIBE.
        return False
    if operation is Operation.DESCRIBE:
        return granted in IMPLYING_DESCRIBE
    return operation is Operation.DESCRIBE_CONFIGS and granted in IMPLYING_DESCRIBE_CONFIGS


def _is_from(entry: AccessControlEntry, who: str, host: str) -> bool:
    if entry.principal not in (who, WILDCARD_PRINCIPAL):
        return False
    return entry.host == WILDCARD or canonical_host(entry.host) == host


def _is_denied(pattern: ResourcePattern, denied: Collection[ResourcePattern]) -> bool:
    """Whether `denied` covers everything that the pattern allows."""
    if pattern.pattern_type is PatternType.LITERAL and pattern in denied:
        return True
    prefixes: Iterable[str] = (pattern.name[:length] for length in range(1, len(pattern.name) + 1))
    return any(ResourcePattern(pattern.type, prefix, PatternType.PREFIXED) in denied for prefix in prefixes)


@lru_cache(4096)
def canonical_host(host: str) -> str:
    """The canonical text of an address. An IPv4 address mapped to IPv6 becomes IPv4.

    >>> canonical_host("0:0:0:0:0:0:0:1"), canonical_host("::ffff:10.0.0.7"), canonical_host("10.0.0.7")
    ('::1', '10.0.0.7', '10.0.0.7')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)
