"""DescribeClientQuotas v0-1: the quotas of users, client ids and addresses that match a filter (KIP-546).

v1   flexible (KIP-482)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import KafkaError
from ottla.metadata.changes.quota_changes import Component, client_quotas, describe_client_quotas
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS)
def describe(request: DescribeClientQuotasRequest, context: Context) -> DescribeClientQuotasResponse:
    components = [Component(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        context.require(Operation.DESCRIBE_CONFIGS, CLUSTER)
        found = describe_client_quotas(client_quotas(context.services.image), components, strict=request.strict)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.detail, entries=None)
    return DescribeClientQuotasResponse(
        error_message="",
        entries=[
            DescribeClientQuotasResponse.EntryData(
                entity=[
                    DescribeClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name or None)
                    for entity_type, name in entity.items()
                ],
                values=[
                    DescribeClientQuotasResponse.ValueData(key=name, value=value) for name, value in quotas.items()
                ],
            )
            for entity, quotas in found.items()
        ],
    )
