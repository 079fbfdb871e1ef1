"""The controller's rules for client quotas: AlterClientQuotas and DescribeClientQuotas (KIP-546). Pure.

Each entity is changed atomically: if one of its quotas is rejected, none of them changes.
"""

import enum
import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata import records
from ottla.metadata.controller.decisions import Decision, Put, Remove
from ottla.metadata.image import ClusterImage
from ottla.security.quota_entities import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    DEFAULT,
    ENTITY_TYPES,
    IP,
    IP_QUOTAS,
    USER,
    WHOLE_NUMBERS,
    QuotaEntity,
    Quotas,
    quota_path,
    quotas_in,
)

Names = Sequence[tuple[str, str | None]]
"""The types and names of an entity as a request has them; None is the name of a default."""


class QuotaChange(NamedTuple):
    entity: Names
    changes: Sequence[tuple[str, float | None]]
    """Quotas and their new values; None removes one."""


class QuotaResult(NamedTuple):
    entity: Names
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class MatchType(enum.IntEnum):
    """How a component of a filter matches the name of an entity."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2
    """Any name, and the default."""


class Component(NamedTuple):
    entity_type: str
    match_type: int
    match: str | None = None


def client_quotas(image: ClusterImage) -> Quotas:
    """The quotas in an image; computed once for each."""
    found: Quotas | None = image.memo.get("client_quotas")
    if found is None:
        found = image.memo["client_quotas"] = quotas_in(image.entity_configs)
    return found


# AlterClientQuotas


def alter_client_quotas(
    image: ClusterImage, requests: Iterable[QuotaChange], *, validate_only: bool = False
) -> Decision[list[QuotaResult]]:
    # In a request, the last name of a type wins, as in Kafka.
    entries = [QuotaChange(tuple(dict(entity).items()), changes) for entity, changes in requests]
    results: dict[frozenset[tuple[str, str | None]], QuotaResult] = {}
    commits: list[Put | Remove] = []
    times = Counter(frozenset(entry.entity) for entry in entries)
    for entry in entries:
        names = frozenset(entry.entity)
        if names in results:
            continue
        try:
            if times[names] > 1 or len(dict(entry.changes)) < len(entry.changes):
                shown = ", ".join(f"{entity_type}={name or '<default>'}" for entity_type, name in entry.entity)
                raise _invalid(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")
            change = _altered(image, entry)
        except KafkaError as error:
            results[names] = QuotaResult(entry.entity, error.code, error.detail)
        else:
            results[names] = QuotaResult(entry.entity)
            if change is not None:
                commits.append(change)
    return Decision(list(results.values()), () if validate_only else tuple(commits))


def _altered(image: ClusterImage, request: QuotaChange) -> Put | Remove | None:
    """The change to store; None if nothing changes."""
    entity = _entity(request.entity)
    allowed = CLIENT_QUOTAS if entity.ip is None else IP_QUOTAS
    path = quota_path(entity)
    before = image.entity_configs.get(path, {})
    configs = dict(before)  # a user's credentials are stored beside the quotas
    for name, value in request.changes:
        if value is None:
            if name in allowed:
                configs.pop(name, None)
            continue
        if name not in allowed:
            raise _invalid(f"Invalid configuration key {name}")
        configs[name] = _checked(name, value)
    if configs == before:
        return None
    key = records.entity_config_key(path)
    return Put(key, records.write_config(configs)) if configs else Remove(key)


def _entity(names: Names) -> QuotaEntity:
    if not names:
        raise _invalid("Invalid empty client quota entity")
    for entity_type, name in names:
        if entity_type not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise _invalid(f"Empty {entity_type} not supported")
    found = {entity_type: DEFAULT if name is None else name for entity_type, name in names}
    ip = found.get(IP)
    if ip is not None and len(found) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    if ip:
        try:
            ip = str(ipaddress.ip_address(ip))
        except ValueError:
            # Kafka would also accept a name that it can resolve.
            raise _invalid(f"{ip} is not a valid IP address.") from None
    return QuotaEntity(found.get(USER), found.get(CLIENT_ID), ip)


def _checked(name: str, value: float) -> str:
    """The text to store for a value."""
    if not value > 0:  # written so that NaN is rejected
        raise _invalid(f"Quota {name} must be greater than 0")
    largest = WHOLE_NUMBERS.get(name)
    if largest is not None:
        if value > largest:
            kind = "an INT" if largest < 2**31 else "a LONG"
            raise _invalid(f"Proposed value for {name} is too large for {kind}.")
        if value % 1.0 > 1e-6:
            raise _invalid(f"{name} cannot be a fractional value.")
    elif value == float("inf"):
        raise _invalid(f"Quota {name} must be finite")
    return str(float(value))


# DescribeClientQuotas


def describe_client_quotas(quotas: Quotas, components: Sequence[Component], *, strict: bool = False) -> Quotas:
    """The quotas of the entities that match every component; with `strict`, of those that have no other type."""
    wanted = _filter(components)
    return {
        entity: values
        for entity, values in quotas.items()
        if _matches(dict(entity.items()), wanted) and (not strict or dict(entity.items()).keys() == wanted.keys())
    }


def _matches(names: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(
        entity_type in names and (name is None or names[entity_type] == name) for entity_type, name in wanted.items()
    )


def _filter(components: Sequence[Component]) -> dict[str, str | None]:
    """The name that each type must have; None for any."""
    wanted: dict[str, str | None] = {}
    unmatchable = "\0"
    for entity_type, match_type, match in components:
        if not entity_type:
            raise _invalid("Invalid empty entity type.")
        if entity_type in wanted:
            raise _invalid(f"Entity type {entity_type} cannot appear more than once in the filter.")
        if entity_type not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
        if match_type == MatchType.EXACT:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            wanted[entity_type] = match or unmatchable  # no entity has an empty name; in memory, the default has
        elif match_type in (MatchType.DEFAULT, MatchType.SPECIFIED):
            if match is not None:
                name = f"MATCH_TYPE_{MatchType(match_type).name}"
                raise _invalid(f"Request specified {name}, but also specified a match string.")
            wanted[entity_type] = DEFAULT if match_type == MatchType.DEFAULT else None
        else:
            raise _invalid(f"Unknown match type {match_type}")
    if IP in wanted and len(wanted) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return wanted


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
