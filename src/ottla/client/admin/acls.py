"""Admin calls about ACLs: who may do what."""

from collections.abc import Sequence
from typing import Any

from ottla.client.admin.requests import ask, fixed, retrying
from ottla.client.core.network import Network
from ottla.errors import raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.security.acls import AclBinding, AclBindingFilter, binding_in, check_binding


async def create_acls(network: Network, acls: Sequence[AclBinding]) -> None:
    for acl in acls:
        check_binding(acl)
    message = CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=pattern.type,
                resource_name=pattern.name,
                resource_pattern_type=pattern.pattern_type,
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for pattern, entry in acls
        ]
    )

    async def attempt() -> None:
        response = await ask(network, ApiKey.CREATE_ACLS, fixed(message))
        for acl, result in zip(acls, response.results, strict=True):
            raise_for(result.error_code, f"adding the ACL {acl}", result.error_message)

    await retrying(network, attempt)


async def describe_acls(network: Network, matching: AclBindingFilter) -> list[AclBinding]:
    message = DescribeAclsRequest(**_filter_fields(matching))

    async def attempt() -> list[AclBinding]:
        response = await ask(network, ApiKey.DESCRIBE_ACLS, fixed(message))
        raise_for(response.error_code, "listing ACLs", response.error_message)
        return sorted(
            _binding(resource, description) for resource in response.resources for description in resource.acls
        )

    return await retrying(network, attempt)


async def delete_acls(network: Network, filters: Sequence[AclBindingFilter]) -> list[AclBinding]:
    wanted = [DeleteAclsRequest.DeleteAclsFilter(**_filter_fields(each)) for each in filters]
    message = DeleteAclsRequest(filters=wanted)
    deleted: set[AclBinding] = set()

    async def attempt() -> list[AclBinding]:
        response = await ask(network, ApiKey.DELETE_ACLS, fixed(message))
        for result in response.filter_results:
            raise_for(result.error_code, "deleting ACLs", result.error_message)
            for acl in result.matching_acls:
                raise_for(acl.error_code, f"deleting the ACL {_binding(acl, acl)}", acl.error_message)
                deleted.add(_binding(acl, acl))
        return sorted(deleted)

    return await retrying(network, attempt)


def _filter_fields(matching: AclBindingFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": matching.resource_type,
        "resource_name_filter": matching.name,
        "pattern_type_filter": matching.pattern_type,
        "principal_filter": matching.principal,
        "host_filter": matching.host,
        "operation": matching.operation,
        "permission_type": matching.permission,
    }


def _binding(resource: Any, description: Any) -> AclBinding:
    return binding_in(resource, resource.pattern_type, description)
