"""Admin calls about client quotas: of users, client ids and addresses (KIP-546)."""

from collections.abc import Mapping
from types import EllipsisType

from ottla.client.admin.requests import ask, fixed, retrying
from ottla.client.core.model import ClientQuota
from ottla.client.core.network import Network
from ottla.client.core.polling import CONTROLLER
from ottla.errors import ArgumentError, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.security.quota_entities import ENTITY_TYPES

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


async def describe_client_quotas(
    network: Network, entity: Mapping[str, str | EllipsisType | None], *, strict: bool = False
) -> list[ClientQuota]:
    for entity_type in entity:
        _check_type(entity_type)
    components = [
        DescribeClientQuotasRequest.ComponentData(
            entity_type=entity_type,
            match_type=_SPECIFIED if name is ... else _DEFAULT if name is None else _EXACT,
            match=name if isinstance(name, str) else None,
        )
        for entity_type, name in entity.items()
    ]
    message = DescribeClientQuotasRequest(components=components, strict=strict)

    async def attempt() -> list[ClientQuota]:
        response = await ask(network, ApiKey.DESCRIBE_CLIENT_QUOTAS, fixed(message))
        raise_for(response.error_code, "describing quotas", response.error_message)
        found = [
            ClientQuota(
                {part.entity_type: part.entity_name for part in entry.entity},
                {quota.key: quota.value for quota in entry.values},
            )
            for entry in response.entries or ()
        ]
        return sorted(found, key=_order)

    return await retrying(network, attempt)


async def alter_client_quotas(
    network: Network,
    entity: Mapping[str, str | None],
    changes: Mapping[str, float | None],
    *,
    validate_only: bool = False,
) -> None:
    if not entity:
        raise ArgumentError("a quota needs an entity", f"Name one or two of {', '.join(ENTITY_TYPES)}.")
    for entity_type in entity:
        _check_type(entity_type)
    entry = AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity.items()
        ],
        ops=[
            AlterClientQuotasRequest.OpData(key=name, value=0.0 if value is None else value, remove=value is None)
            for name, value in changes.items()
        ],
    )
    message = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)

    async def attempt() -> None:
        response = await ask(network, ApiKey.ALTER_CLIENT_QUOTAS, fixed(message), CONTROLLER)
        for result in response.entries:
            raise_for(result.error_code, "changing quotas", result.error_message)

    await retrying(network, attempt)


def _check_type(entity_type: str) -> None:
    if entity_type not in ENTITY_TYPES:
        raise ArgumentError(f"there are no quotas for a {entity_type!r}", f"Use one of {', '.join(ENTITY_TYPES)}.")


def _order(quota: ClientQuota) -> list[tuple[bool, str]]:
    """By user, client id and address: names in order, then the default or no name of that type."""
    return [
        (entity_type not in quota.entity or quota.entity[entity_type] is None, quota.entity.get(entity_type) or "")
        for entity_type in ENTITY_TYPES
    ]
