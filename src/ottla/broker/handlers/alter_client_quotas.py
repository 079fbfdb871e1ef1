"""AlterClientQuotas v0-1: sets and removes quotas of users, client ids and addresses (KIP-546).

v1   flexible (KIP-482)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.metadata.changes.quota_changes import QuotaChange
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.ALTER_CLIENT_QUOTAS)
async def alter_client_quotas(request: AlterClientQuotasRequest, context: Context) -> AlterClientQuotasResponse:
    wanted = [
        QuotaChange(
            [(part.entity_type, part.entity_name) for part in entry.entity],
            [(change.key, None if change.remove else change.value) for change in entry.ops],
        )
        for entry in request.entries
    ]
    if not context.allows(Operation.ALTER_CONFIGS, CLUSTER):
        return _refuse(request, context)
    results = await context.services.metadata.changes.alter_client_quotas(
        wanted, validate_only=request.validate_only, by=context.requester
    )
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=result.error,
                error_message=result.message,
                entity=[
                    AlterClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
                    for entity_type, name in result.entity
                ],
            )
            for result in results
        ]
    )


def _refuse(request: AlterClientQuotasRequest, context: Context) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                error_message=f"{context.principal} may not ALTER_CONFIGS the cluster",
                entity=[
                    AlterClientQuotasResponse.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )
